"""What a loss pulls and pushes, and how hard: ∂L/∂S of a batch, and of one pair as its similarity changes."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import FuncNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import ScalarFormatter
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from nearkin.explain.choice import LossChoice
from nearkin.explain.pair_weighting import check_weighs_pairs, similarity_weights
from nearkin.losses import Loss, ProxyLoss
from nearkin.losses.base import require_count
from nearkin.pictures.style import (
    GREY,
    GRID,
    INK,
    MONOSPACE,
    PAPER,
    PULL,
    PULL_TO_PUSH,
    PUSH,
    SHADES,
    Path,
    dress_small,
    save,
    styled,
)

_SWEEP = 201
_IN_A_ROW = 5
_CAPTION = (
    "Blue pulls together, orange pushes apart (colours on a square-root scale). Curves: the batch's hardest "
    "negative pair and its anchor's hardest positive one, all else fixed; dots: where they are."
)


@dataclass(frozen=True)
class Batch:
    """Embeddings whose weights are shown, sorted by class.

    Attributes:
        embeddings: ``(B, D)``.
        labels: ``(B,)``, numbered from 0, ascending.
        title: What they are.
    """

    embeddings: Tensor
    labels: Tensor
    title: str

    @property
    def num_classes(self) -> int:
        """C."""
        return int(self.labels.max()) + 1


def structured_batch(
    classes: int = 8, images_per_class: int = 5, embedding_dim: int = 32, spread: float = 0.9, seed: int = 0
) -> Batch:
    """A made-up batch in which classes come in similar pairs, so that some negatives are hard.

    Args:
        classes: Number of classes C.
        images_per_class: Number of embeddings of each class.
        embedding_dim: Dimension D.
        spread: Length of the noise that is added to the class's direction, which has length 1.
        seed: Seed of the random numbers.

    >>> structured_batch().embeddings.shape
    torch.Size([40, 32])
    """
    require_count(classes=classes, images_per_class=images_per_class, embedding_dim=embedding_dim)
    generator = torch.Generator().manual_seed(seed)

    def directions(count: int) -> Tensor:
        return normalize(torch.randn(count, embedding_dim, generator=generator), dim=1)

    families = directions((classes + 1) // 2).repeat_interleave(2, dim=0)[:classes]
    centres = normalize(families + 0.8 * directions(classes), dim=1)
    labels = torch.arange(classes).repeat_interleave(images_per_class)
    embeddings = normalize(centres[labels] + spread * directions(len(labels)), dim=1)
    return Batch(embeddings, labels, f"made-up batch, {classes} classes × {images_per_class}")


def draw_balanced(
    labels: Tensor, *, classes: int = 8, images_per_class: int = 5, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Draw a balanced batch from a data set, sorted by class.

    Classes with fewer samples are passed over while there are enough of the others.

    Args:
        labels: Labels of the data set ``(N,)``.
        classes: Number of classes to draw.
        images_per_class: Number of samples to draw of each class.
        seed: Seed of the random numbers.

    Returns:
        Indices of the samples ``(B,)``, and their classes numbered from 0 ``(B,)``.

    >>> draw_balanced(torch.tensor([5, 6, 5, 7, 6, 7]), classes=2)[1]
    tensor([0, 0, 1, 1])
    """
    require_count(classes=classes, images_per_class=images_per_class)
    generator = torch.Generator().manual_seed(seed)
    present, counts = labels.unique(return_counts=True)
    shuffled = torch.randperm(len(present), generator=generator)
    fullest_first = counts[shuffled].clamp_max(images_per_class).argsort(descending=True, stable=True)
    order = torch.randperm(len(labels), generator=generator)
    chosen = [
        order[labels[order] == label][:images_per_class]
        for label in present[shuffled[fullest_first[:classes]]]
    ]
    if len(chosen) < 2 or max(map(len, chosen)) < 2:
        raise ValueError("needs at least two classes, one of them with two images")
    numbers = [torch.full((len(images),), number) for number, images in enumerate(chosen)]
    return torch.cat(chosen), torch.cat(numbers)


class Weights(NamedTuple):
    """What a loss makes of a batch.

    Attributes:
        S: Similarities ``(B, B)``, or ``(B, M)`` to proxies.
        weights: ∂L/∂S of the same shape.
        positive: ``(B, M)`` boolean: pairs of one class, no sample with itself.
        negative: The pairs of two classes.
        has_proxies: Whether the columns are proxies.
    """

    S: Tensor
    weights: Tensor
    positive: Tensor
    negative: Tensor
    has_proxies: bool


def measure_weights(loss: Loss, batch: Batch) -> Weights:
    """S and ∂L/∂S of a batch; a proxy loss has its proxies at the means of the classes.

    Args:
        loss: With the batch's number of classes and dimensions, if it has proxies.
        batch: The embeddings.
    """
    check_weighs_pairs(loss)
    on_sphere = getattr(loss, "on_sphere", True)
    rows = normalize(batch.embeddings, dim=1) if on_sphere else batch.embeddings
    same = batch.labels.unsqueeze(1) == batch.labels
    itself = torch.eye(len(same), dtype=torch.bool)
    others, positive, negative = rows, same & ~itself, ~same
    if isinstance(loss, ProxyLoss):
        others, their_labels = class_proxies(loss, rows, batch.labels)
        positive = batch.labels.unsqueeze(1) == their_labels
        negative = ~positive
    S = rows @ others.T
    weights = similarity_weights(loss, S, batch.labels, batch.embeddings.shape[1])
    return Weights(S, weights, positive, negative, isinstance(loss, ProxyLoss))


def class_proxies(loss: ProxyLoss, rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Proxies ``(C·K, D)`` and their classes: a mean per class, or K means of parts of it."""
    per_class = loss.proxies.shape[1] if loss.proxies.dim() == 3 else 1
    proxies = [
        members[part::per_class].mean(dim=0) if len(members) > part else members.mean(dim=0)
        for members in (rows[labels == label] for label in range(loss.num_classes))
        for part in range(per_class)
    ]
    means = torch.stack(proxies)
    their_labels = torch.arange(loss.num_classes).repeat_interleave(per_class)
    return (normalize(means, dim=1) if loss.on_sphere else means), their_labels


class Curve(NamedTuple):
    """The weight of one pair while its similarity goes from −1 to 1 and nothing else changes.

    Attributes:
        similarity: ``(T,)``.
        weight: ∂L/∂S of the pair ``(T,)``.
        at: Where the pair is in the batch.
        weight_there: Its weight there.
    """

    similarity: Tensor
    weight: Tensor
    at: float
    weight_there: float


def weight_curve(loss: Loss, batch: Batch, pair: tuple[int, int]) -> Curve:
    """Sweep the similarity of one pair, a row and a column of S."""
    measured = measure_weights(loss, batch)
    D = batch.embeddings.shape[1]
    row, column = pair
    S = measured.S.clone()
    sweep = torch.linspace(-1, 1, _SWEEP)
    weights = []
    for similarity in sweep:
        S[row, column] = similarity
        weights.append(similarity_weights(loss, S, batch.labels, D)[row, column])
    there = measured.weights[row, column]
    return Curve(sweep, torch.stack(weights), float(measured.S[row, column]), float(there))


def hardest_pairs(measured: Weights) -> tuple[tuple[int, int], tuple[int, int]]:
    """The most similar negative pair and, of the same row, the least similar positive one."""
    negatives = torch.where(
        measured.negative & measured.positive.any(dim=1, keepdim=True), measured.S, -torch.inf
    )
    row, negative = divmod(int(negatives.argmax()), measured.S.shape[1])
    positive = torch.where(measured.positive[row], measured.S[row], torch.inf).argmin()
    return (row, int(positive)), (row, negative)


def draw_weights(choices: Sequence[LossChoice], batch: Batch, path: Path) -> list[Weights]:
    """Draw ∂L/∂S of a batch as heat maps, and under each how the weight of a pair depends on its similarity.

    The first column shows the batch: its similarities and how they are distributed. In the heat maps rows are
    anchors (samples), columns samples, or proxies at the class means, sorted by class. A curve follows the
    batch's hardest negative pair and its anchor's hardest positive one, with everything else as it is.

    Args:
        choices: The losses.
        batch: Embeddings, for instance of a :func:`structured_batch` or of what :func:`draw_balanced` drew.
        path: A PNG, SVG or PDF.

    Returns:
        What was drawn, loss by loss.
    """
    built = [choice.build(batch.num_classes, batch.embeddings.shape[1]) for choice in choices]
    found = [measure_weights(loss, batch) for loss in built]
    with styled():
        cells = _Cells(1 + len(choices))
        _draw_batch(*cells.axes(0), batch)
        for number, (choice, loss, measured) in enumerate(zip(choices, built, found, strict=True), start=1):
            above, below = cells.axes(number)
            _heat_map(above, choice, batch, measured)
            _curves(below, loss, batch, measured)
        save(cells.figure, path)
    return found


class _Cells:
    """A grid whose cells hold a heat map above a curve, measured in inches."""

    width, height, map_side, curve_height = 1.86, 2.95, 1.28, 0.72
    left, below = 0.36, 0.36

    def __init__(self, count: int) -> None:
        self.columns = min(count, _IN_A_ROW)
        self.rows = ceil(count / self.columns)
        across = self.columns * self.width + 0.22
        caption = textwrap.wrap(_CAPTION, int(across / 0.042))
        self.foot = 0.12 * len(caption) + 0.1
        self.figure = Figure(figsize=(across, self.rows * self.height + self.foot))
        place = (0.5, 0.05 / self.figure.get_figheight())
        self.figure.text(*place, "\n".join(caption), ha="center", va="bottom", fontsize=5.5, color=GREY)

    def axes(self, number: int) -> tuple[Axes, Axes]:
        """The two axes of a cell."""
        row, column = divmod(number, self.columns)
        x = column * self.width + self.left
        y = self.foot + (self.rows - 1 - row) * self.height + self.below
        across, up = self.figure.get_size_inches()

        def add(bottom: float, height: float) -> Axes:
            return self.figure.add_axes((x / across, bottom / up, self.map_side / across, height / up))

        above = add(y + self.curve_height + 0.27, self.map_side)
        return above, add(y, self.curve_height)


def _draw_batch(above: Axes, below: Axes, batch: Batch) -> None:
    """The similarities of the batch and their distribution."""
    rows = normalize(batch.embeddings, dim=1)
    S = rows @ rows.T
    image = above.imshow(
        S.numpy(), cmap=SHADES, vmin=min(0.0, float(S.min())), vmax=1, interpolation="nearest"
    )
    _title(above, "similarities S", batch.title)
    _class_lines(above, batch.labels, batch.labels, PAPER)
    _bar(above, image)
    same = batch.labels.unsqueeze(1) == batch.labels
    once = torch.ones_like(same).triu(1)
    bins = np.linspace(-1, 1, 41).tolist()
    for kind, colour, name in ((~same, PUSH, "negative pairs"), (same, PULL, "positive pairs")):
        below.hist(S[kind & once].numpy(), bins=bins, density=True, color=colour, alpha=0.75, label=name)
    below.set(xlim=(-1, 1), yticks=[])
    below.set_ylim(top=1.55 * below.get_ylim()[1])
    below.set_xlabel("S", fontsize=7, labelpad=1)
    below.legend(
        fontsize=5.5, frameon=False, handlelength=0.8, handletextpad=0.4, loc="upper left", borderaxespad=0
    )
    dress_small(below)
    below.grid(False)


def _heat_map(axes: Axes, choice: LossChoice, batch: Batch, measured: Weights) -> None:
    largest = float(measured.weights.abs().max())
    norm = FuncNorm((_signed_root, _signed_square), vmin=-max(largest, 1e-12), vmax=max(largest, 1e-12))
    image = axes.imshow(
        measured.weights.numpy(), cmap=PULL_TO_PUSH, norm=norm, interpolation="nearest", aspect="auto"
    )
    _title(axes, choice.name, choice.settings)
    columns = batch.labels
    if measured.has_proxies:
        per_class = measured.weights.shape[1] // batch.num_classes
        columns = torch.arange(batch.num_classes).repeat_interleave(per_class)
        axes.set_xlabel("proxies", fontsize=5.5, labelpad=1.5, color=GREY)
    _class_lines(axes, batch.labels, columns, GRID)
    _bar(axes, image).set_yticks([-largest, 0, largest], [f"−{largest:.1g}", "0", f"{largest:.1g}"])


def _signed_root(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.copysign(np.sqrt(np.abs(values)), values)


def _signed_square(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.copysign(np.square(values), values)


def _curves(axes: Axes, loss: Loss, batch: Batch, measured: Weights) -> None:
    positive, negative = hardest_pairs(measured)
    for pair, colour in ((negative, PUSH), (positive, PULL)):
        curve = weight_curve(loss, batch, pair)
        axes.plot(curve.similarity.numpy(), curve.weight.numpy(), color=colour, linewidth=1.2)
        axes.plot(curve.at, curve.weight_there, marker="o", markersize=3.5, color=colour, mec=PAPER, mew=0.5)
    axes.axhline(0, color=GREY, linewidth=0.6, zorder=1)
    axes.set_xlim(-1, 1)
    axes.margins(y=0.1)
    axes.set_xlabel("S of one pair", fontsize=7, labelpad=1)
    axes.set_ylabel("∂L/∂S", fontsize=6, labelpad=0)
    ticks = ScalarFormatter()
    ticks.set_powerlimits((-1, 2))
    axes.yaxis.set_major_formatter(ticks)
    axes.yaxis.get_offset_text().set_fontsize(5.5)
    axes.locator_params(axis="y", nbins=3)
    dress_small(axes)


def _title(axes: Axes, name: str, below: str) -> None:
    axes.set_title(name, fontsize=7, color=INK, pad=10 if below else 3, family=MONOSPACE)
    axes.text(0.5, 1.015, below, transform=axes.transAxes, ha="center", va="bottom", fontsize=5.5, color=GREY)


def _class_lines(axes: Axes, rows: Tensor, columns: Tensor, colour: str) -> None:
    """Thin lines between classes instead of numbered ticks, and a frame around all of them."""
    axes.spines[:].set_visible(True)
    axes.set_xticks([])
    axes.set_yticks([])
    for labels, line in ((rows, axes.axhline), (columns, axes.axvline)):
        for place in (labels.diff() != 0).nonzero().flatten().tolist():
            line(place + 0.5, color=colour, linewidth=0.4)


def _bar(axes: Axes, image: AxesImage) -> Axes:
    """A colour bar at the right of a heat map."""
    inset = axes.inset_axes((1.03, 0, 0.045, 1))
    colorbar = axes.get_figure(root=True).colorbar(image, cax=inset)  # type: ignore[union-attr]
    colorbar.outline.set_linewidth(0.4)
    inset.tick_params(labelsize=5.5, length=1.5, pad=1)
    return inset
