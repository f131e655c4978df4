"""What a person looks at after a run: the learning curve, who finds whom, and a map of the embedding."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import hsv_to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from PIL import Image
from sklearn.manifold import TSNE
from torch import Tensor
from torch.nn.functional import normalize

from nearkin.atomic import atomic_path
from nearkin.data import SampleSet
from nearkin.evaluation import nearest_neighbours

_RIGHT, _WRONG, _QUERY = "#2a9d4a", "#d1342f", "#333333"
INK, SECOND_INK, GRID = "#1f5fa8", "#d97706", "#d8d8d8"

Path = str | os.PathLike[str]


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, whole or not at all."""
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=150, bbox_inches="tight", facecolor="white", format="png")


def learning_curve(
    rows: Sequence[dict[str, Any]],
    path: Path,
    *,
    title: str,
    chosen_epoch: int,
    scored_on: str = "validation classes",
) -> None:
    """Draw the loss and the validation scores over the epochs.

    Args:
        rows: The lines of ``metrics.jsonl``.
        path: Where the PNG goes.
        title: What the run is.
        chosen_epoch: Marked, where there is a validation.
        scored_on: Which classes chose it.
    """
    recalls = [key for key in rows[-1] if key.startswith("recall_at_")]
    figure = Figure(figsize=(10, 3.8) if recalls else (5.5, 3.8), layout="constrained")
    figure.suptitle(title)
    axes = figure.subplots(1, 2 if recalls else 1, squeeze=False)[0]
    trained = [row for row in rows if "loss" in row]
    axes[0].plot([r["epoch"] for r in trained], [r["loss"] for r in trained], color=INK, marker="o", ms=3)
    _dress(axes[0], "training loss")
    if recalls:
        epochs = [row["epoch"] for row in rows]
        for number, key in enumerate(recalls):
            values = [100 * row[key] for row in rows]
            strength = 1 - 0.7 * number / len(recalls)
            label = f"Recall@{key.removeprefix('recall_at_')}"
            axes[1].plot(epochs, values, color=INK, alpha=strength, marker="o", ms=3, label=label)
        axes[1].axvline(chosen_epoch, color=SECOND_INK, linestyle="--", linewidth=1)
        axes[1].annotate(
            f" chosen: {chosen_epoch}",
            (chosen_epoch, 0.02),
            xycoords=("data", "axes fraction"),
            color=SECOND_INK,
            ha="right" if chosen_epoch > epochs[-1] / 2 else "left",
        )
        axes[1].legend(frameon=False, loc="lower center")
        _dress(axes[1], f"on {scored_on}, %")
    save(figure, path)


def fold_curves(
    folds: Sequence[Sequence[dict[str, Any]]], path: Path, *, title: str, chosen_epochs: Sequence[int]
) -> None:
    """Draw the loss and the first Recall@k of every fold over the epochs.

    Args:
        folds: The lines of each fold's ``metrics.jsonl``.
        path: Where the PNG goes.
        title: What the run is.
        chosen_epochs: Of each fold, marked.
    """
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    figure.suptitle(title)
    losses, scores = figure.subplots(1, 2)
    key = next(key for key in folds[0][-1] if key.startswith("recall_at_"))
    for rows, chosen in zip(folds, chosen_epochs, strict=True):
        trained = [row for row in rows if "loss" in row]
        losses.plot([r["epoch"] for r in trained], [r["loss"] for r in trained], color=INK, alpha=0.5)
        scores.plot([r["epoch"] for r in rows], [100 * r[key] for r in rows], color=INK, alpha=0.5)
        best = next(row for row in rows if row["epoch"] == chosen)
        scores.plot(chosen, 100 * best[key], color=SECOND_INK, marker="o", ms=5)
    scores.plot([], [], color=SECOND_INK, marker="o", ms=5, linestyle="none", label="chosen")
    scores.legend(frameon=False, loc="lower right")
    _dress(losses, f"training loss of {len(folds)} folds")
    _dress(scores, f"Recall@{key.removeprefix('recall_at_')} on each fold's validation classes, %")
    save(figure, path)


def _dress(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(color=GRID, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def retrieval_gallery(
    images: SampleSet,
    embeddings: Tensor,
    path: Path,
    *,
    gallery: SampleSet | None = None,
    gallery_embeddings: Tensor | None = None,
    queries: int = 12,
    neighbours: int = 8,
    seed: int = 0,
) -> None:
    """Draw queries with their nearest neighbours: right ones framed green, wrong ones red.

    The queries are drawn at random, each of another class, not chosen for looking good.

    Args:
        images: The images that search.
        embeddings: Of all of them ``(N, D)``.
        path: Where the PNG goes.
        gallery: The images that are found; by default the same.
        gallery_embeddings: Of all of them.
        queries: How many rows.
        neighbours: How many columns.
        seed: Draws the queries.
    """
    rows = retrieved(
        images,
        embeddings,
        gallery=gallery,
        gallery_embeddings=gallery_embeddings,
        queries=queries,
        neighbours=neighbours,
        seed=seed,
    )
    searched = gallery if gallery is not None else images
    neighbours = len(rows[0].neighbours)
    figure = Figure(figsize=(1.0 * (neighbours + 1) + 0.3, 1.06 * len(rows) + 0.5))
    grid = figure.subplots(len(rows), neighbours + 1, squeeze=False)
    figure.subplots_adjust(wspace=0.12, hspace=0.12, left=0.01, right=0.99, bottom=0.01, top=0.95)
    for axes_row, row in zip(grid, rows, strict=True):
        _show(axes_row[0], images.samples[row.query], _QUERY, width=1.0)
        for axes, neighbour, right in zip(axes_row[1:], row.neighbours, row.right, strict=True):
            _show(axes, searched.samples[neighbour], _RIGHT if right else _WRONG, width=3.0)
    grid[0][0].set_title("query", fontsize=9)
    grid[0][1].set_title("nearest", fontsize=9)
    save(figure, path)


@dataclass(frozen=True)
class Retrieved:
    """A query, its nearest neighbours (rows of the gallery), and which of them are of its class."""

    query: int
    neighbours: list[int]
    right: list[bool]


def retrieved(
    images: SampleSet,
    embeddings: Tensor,
    *,
    gallery: SampleSet | None = None,
    gallery_embeddings: Tensor | None = None,
    queries: int = 12,
    neighbours: int = 8,
    seed: int = 0,
) -> list[Retrieved]:
    """Random queries, each of another class, with what is found nearest to them.

    Takes what :func:`retrieval_gallery` takes, which draws it.
    """
    chosen = _one_per_class(images.labels, queries, seed)
    searched = gallery if gallery is not None else images
    if gallery_embeddings is None:
        _, found = nearest_neighbours(embeddings, min(neighbours, len(searched) - 1))
        found = found[chosen.to(found.device)]
    else:
        query_embeddings = embeddings[chosen.to(embeddings.device)]
        _, found = nearest_neighbours(
            query_embeddings, min(neighbours, len(searched)), gallery=gallery_embeddings
        )
    rows = []
    for query, row in zip(chosen.tolist(), found.tolist(), strict=True):
        kin = images.class_names[int(images.labels[query])]
        right = [searched.class_names[int(searched.labels[neighbour])] == kin for neighbour in row]
        rows.append(Retrieved(query, row, right))
    return rows


def _one_per_class(labels: Tensor, count: int, seed: int) -> Tensor:
    """Random images, no two of a class."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    seen: set[int] = set()
    chosen = []
    for index in order.tolist():
        label = int(labels[index])
        if label not in seen:
            seen.add(label)
            chosen.append(index)
        if len(chosen) == count:
            break
    return torch.tensor(chosen)


def _show(axes: Axes, image: Tensor, colour: str, width: float) -> None:
    axes.imshow(pixels(image))
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color(colour)
        spine.set_linewidth(width)


def pixels(image: Tensor) -> NDArray[np.uint8]:
    """``uint8`` ``(C, H, W)``, grey or RGB, to RGB ``(H, W, 3)``."""
    rgb: NDArray[np.uint8] = image.expand(3, -1, -1).permute(1, 2, 0).numpy()
    return rgb


def embedding_map(
    images: SampleSet,
    embeddings: Tensor,
    path: Path,
    *,
    classes: int = 40,
    images_per_class: int = 12,
    side: int = 1800,
    thumbnail: int = 36,
    seed: int = 0,
) -> None:
    """Draw a 2-D map of the embedding (t-SNE) with the images themselves, framed in a colour per class.

    Args:
        images: What was embedded.
        embeddings: Of all of them ``(N, D)``.
        path: Where the PNG goes.
        classes: At most so many classes, drawn at random.
        images_per_class: At most so many images of each.
        side: Of the picture, in pixels.
        thumbnail: Long side of an image in it, in pixels.
        seed: Draws the classes and starts the map.
    """
    shown = _some_classes(images.labels, classes, images_per_class, seed)
    points = normalize(embeddings[shown.to(embeddings.device)], dim=1).double().cpu().numpy()
    perplexity = min(20.0, max(1.0, (len(points) - 1) / 3))
    places = TSNE(init="pca", perplexity=perplexity, random_state=seed).fit_transform(points)
    low, high = places.min(axis=0), places.max(axis=0)
    margin = thumbnail
    scaled = (places - low) / np.maximum(high - low, 1e-9) * (side - 2 * margin) + margin
    canvas = Image.new("RGB", (side, side), "white")
    labels = images.labels[shown]
    numbers = {label: number for number, label in enumerate(labels.unique().tolist())}
    for index, label, (x, y) in zip(shown.tolist(), labels.tolist(), scaled, strict=True):
        hue = numbers[label] * 0.618034 % 1  # golden ratio: neighbouring numbers get distant colours
        tile = _framed(images.samples[index], thumbnail, hue)
        canvas.paste(tile, (round(x - tile.width / 2), round(y - tile.height / 2)))
    with atomic_path(path) as temporary:
        canvas.save(temporary, format="png", optimize=True)


def _some_classes(labels: Tensor, classes: int, images_per_class: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=generator)
    present = labels.unique()
    wanted = present[torch.randperm(len(present), generator=generator)[:classes]]
    chosen = [order[labels[order] == label][:images_per_class] for label in wanted]
    return torch.cat(chosen)


def _framed(image: Tensor, thumbnail: int, hue: float) -> Image.Image:
    picture = Image.fromarray(pixels(image))
    scale = thumbnail / max(picture.size)
    picture = picture.resize((max(1, round(picture.width * scale)), max(1, round(picture.height * scale))))
    red, green, blue = (int(255 * channel) for channel in hsv_to_rgb((hue, 0.85, 0.8)))
    framed = Image.new("RGB", (picture.width + 6, picture.height + 6), (red, green, blue))
    framed.paste(picture, (3, 3))
    return framed


def contact_sheet(
    images: SampleSet, path: Path, *, classes: int = 20, images_per_class: int = 12, seed: int = 0
) -> None:
    """Draw some images of some classes, a row per class with its name.

    Args:
        images: A split of a data set.
        path: Where the PNG goes.
        classes: How many rows.
        images_per_class: How many columns.
        seed: Draws the classes.
    """
    shown = _some_classes(images.labels, classes, images_per_class, seed)
    labels = images.labels[shown]
    rows = [shown[labels == label].tolist() for label in dict.fromkeys(labels.tolist())]
    columns = max(len(row) for row in rows)
    figure = Figure(figsize=(0.8 * columns + 3.2, 0.84 * len(rows) + 0.2))
    grid = figure.subplots(len(rows), columns, squeeze=False)
    figure.subplots_adjust(
        wspace=0.06, hspace=0.06, left=3.2 / (0.8 * columns + 3.2), right=0.99, bottom=0.01, top=0.99
    )
    for axes_row, row in zip(grid, rows, strict=True):
        name = images.class_names[int(images.labels[row[0]])]
        axes_row[0].text(
            -0.15, 0.5, _shortened(name), transform=axes_row[0].transAxes, ha="right", va="center", fontsize=8
        )
        for axes in axes_row:
            axes.set_axis_off()
        for axes, index in zip(axes_row, row, strict=False):
            axes.imshow(pixels(images.samples[index]))
    save(figure, path)


def _shortened(name: str, length: int = 44) -> str:
    return name if len(name) <= length else name[: length - 1] + "…"
