"""Samples side by side: queries with what is found nearest to them, and some samples of each class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from nearkin.evaluation import nearest_neighbours
from nearkin.pictures.samples import (
    LabelledSamples,
    Portrait,
    draw_portrait,
    one_line,
    portrait,
    shortened,
    text_width,
)
from nearkin.pictures.style import (
    LIGHT,
    NORMAL,
    POINTS_PER_INCH,
    SMALL,
    Path,
    Theme,
    check_format,
    save,
    styled,
)

_IMAGE = (1.0, 1.0)
_WORDS = (1.7, 0.8)
"""Inches: width and height of an image's cell, and of a cell that holds words."""

_GAP, _HEAD = 0.1, 0.25
_NAME = 34
"""Letters of a class name that are written beside its samples."""


@dataclass(frozen=True)
class Retrieved:
    """A query, its nearest neighbours (rows of the gallery), and which of them are of its class."""

    query: int
    neighbours: list[int]
    right: list[bool]


def retrieved(
    samples: LabelledSamples,
    embeddings: Tensor,
    *,
    gallery: LabelledSamples | None = None,
    gallery_embeddings: Tensor | None = None,
    queries: int = 12,
    neighbours: int = 8,
    seed: int = 0,
) -> list[Retrieved]:
    """Random queries, each of another class, with what is found nearest to them.

    Takes what :func:`retrieval_gallery` takes, which draws it.
    """
    chosen = _one_per_class(samples.labels, queries, seed)
    searched = gallery if gallery is not None else samples
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
        name = samples.class_names[int(samples.labels[query])]
        right = [searched.class_names[int(searched.labels[neighbour])] == name for neighbour in row]
        rows.append(Retrieved(query, row, right))
    return rows


def _one_per_class(labels: Tensor, count: int, seed: int) -> Tensor:
    """Random samples, no two of a class."""
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


def retrieval_gallery(
    samples: LabelledSamples,
    embeddings: Tensor,
    path: Path,
    *,
    gallery: LabelledSamples | None = None,
    gallery_embeddings: Tensor | None = None,
    queries: int = 12,
    neighbours: int = 8,
    seed: int = 0,
    theme: Theme = LIGHT,
) -> None:
    """Draw queries with their nearest neighbours, framed by whether they are of the query's class.

    Those of its class have a frame in the colour of positives and a tick, the others one in the colour of
    negatives and a cross. The queries are drawn at random, each of another class, not chosen for looking
    good. Images are shown; of other samples, their words or their names.

    Args:
        samples: The queries.
        embeddings: Embeddings of all samples ``(N, D)``.
        path: A PNG, SVG or PDF.
        gallery: The samples that are searched; by default the queries themselves.
        gallery_embeddings: Embeddings of all samples of the gallery.
        queries: Number of queries, one per row.
        neighbours: Number of neighbours of each.
        seed: Seed of the random choice of queries.
        theme: Colours of the picture.
    """
    check_format(path)
    found = retrieved(
        samples,
        embeddings,
        gallery=gallery,
        gallery_embeddings=gallery_embeddings,
        queries=queries,
        neighbours=neighbours,
        seed=seed,
    )
    searched = gallery if gallery is not None else samples
    portraits = [
        [portrait(samples, row.query), *(portrait(searched, neighbour) for neighbour in row.neighbours)]
        for row in found
    ]
    with styled(theme):
        cells = _Cells(portraits, top=_HEAD)
        cells.draw(theme)
        for axes, title in zip(cells.axes[0], ("query", "nearest"), strict=False):
            axes.set_title(title, fontsize=NORMAL)
        for (query, *others), row in zip(cells.axes, found, strict=True):
            _frame(query, theme.ink, 1.0)
            for axes, right in zip(others, row.right, strict=True):
                _judge(axes, right, theme)
        save(cells.figure, path)


def _frame(axes: Axes, colour: str, width: float) -> None:
    for spine in axes.spines.values():
        spine.set_color(colour)
        spine.set_linewidth(width)


def _judge(axes: Axes, right: bool, theme: Theme) -> None:
    """A frame in the colour that says whether a neighbour is right, and a sign for who sees no colours."""
    colour = theme.positive if right else theme.negative
    _frame(axes, colour, 2.5)
    axes.text(
        1,
        0,
        "✓" if right else "✗",
        transform=axes.transAxes,
        ha="right",
        va="bottom",
        fontsize=SMALL,
        color=theme.paper,
        bbox={"facecolor": colour, "edgecolor": "none", "pad": 1.2},
    )


class _Cells:
    """A grid of samples, all of one size: square for images, wider where there are words to read."""

    def __init__(
        self, portraits: Sequence[Sequence[Portrait]], *, left: float = 0.0, top: float = 0.0
    ) -> None:
        self.portraits = portraits
        self.size = _WORDS if any(one.text for row in portraits for one in row) else _IMAGE
        columns = max(len(row) for row in portraits)
        width = left + columns * (self.size[0] + _GAP) + _GAP
        height = top + len(portraits) * (self.size[1] + _GAP) + _GAP
        self.figure = Figure(figsize=(width, height))

        def place(row: int, column: int) -> tuple[float, float, float, float]:
            x = left + _GAP + column * (self.size[0] + _GAP)
            y = height - top - (row + 1) * (self.size[1] + _GAP)
            return x / width, y / height, self.size[0] / width, self.size[1] / height

        self.axes = [
            [self.figure.add_axes(place(row, column)) for column in range(len(line))]
            for row, line in enumerate(portraits)
        ]

    def draw(self, theme: Theme) -> None:
        """Draw every sample into its cell."""
        for row_of_axes, row in zip(self.axes, self.portraits, strict=True):
            for axes, seen in zip(row_of_axes, row, strict=True):
                draw_portrait(axes, seen, theme, size=self.size)


def contact_sheet(
    samples: LabelledSamples,
    path: Path,
    *,
    classes: int = 20,
    samples_per_class: int = 12,
    seed: int = 0,
    theme: Theme = LIGHT,
) -> None:
    """Draw some samples of some classes, a row per class with its name.

    Args:
        samples: A split of a data set.
        path: A PNG, SVG or PDF.
        classes: Number of classes, one per row.
        samples_per_class: Number of samples of each class; half as many where there are words to read.
        seed: Seed of the random choice of classes.
        theme: Colours of the picture.
    """
    check_format(path)
    chosen = some_of_each_class(samples.labels, classes, samples_per_class, seed)
    labels = samples.labels[chosen]
    rows = [chosen[labels == label].tolist() for label in dict.fromkeys(labels.tolist())]
    portraits = [[portrait(samples, index) for index in row] for row in rows]
    if any(one.text for row in portraits for one in row):
        portraits = [row[: max(1, samples_per_class // 2)] for row in portraits]
    names = [one_line(samples.class_names[int(samples.labels[row[0]])]) for row in rows]
    names = [shortened(name, _NAME) for name in names]
    left = _GAP + max(text_width(name) for name in names) * NORMAL / POINTS_PER_INCH
    with styled(theme):
        cells = _Cells(portraits, left=left)
        cells.draw(theme)
        for row_of_axes, name in zip(cells.axes, names, strict=True):
            box = row_of_axes[0].get_position(original=True)
            x = left / cells.figure.get_figwidth()
            cells.figure.text(x, (box.y0 + box.y1) / 2, name, ha="right", va="center", fontsize=NORMAL)
        save(cells.figure, path)


def some_of_each_class(labels: Tensor, classes: int, samples_per_class: int, seed: int) -> Tensor:
    """Random samples of random classes, those of a class in a row."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=generator)
    present = labels.unique()
    wanted = present[torch.randperm(len(present), generator=generator)[:classes]]
    chosen = [order[labels[order] == label][:samples_per_class] for label in wanted]
    return torch.cat(chosen)
