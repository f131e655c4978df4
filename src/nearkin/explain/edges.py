"""Who pulls whom in a batch, and how hard: samples and proxies as nodes, gradients as edges between them."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any, NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor
from torch.nn.functional import normalize

from nearkin.explain.choice import LossChoice
from nearkin.explain.pair_weighting import same_draws
from nearkin.explain.weights import Batch, class_proxies, structured_batch
from nearkin.losses import Loss, ProxyLoss
from nearkin.pictures.style import (
    GREY,
    INK,
    MONOSPACE,
    PAPER,
    PULL,
    PUSH,
    Path,
    colour_of,
    columns_of_grid,
    marker_of,
    save,
    styled,
)

_PANEL, _WORDS, _FOOT = 2.3, 0.42, 0.5
"""Inches: side of a panel, room for words above it, and for the legend below all."""

_WIDEST = 4.5
"""Points: the width of the edge with the largest gradient of a panel."""

_DRAWN = 0.01
"""Of the largest gradient; thinner edges could not be seen."""

_FIRST_COLOUR = 2
"""Of the classes: the colours before it are those of edges."""

_PROGRESS = 0.5
"""The cosine of a proxy with the mean of its class: 0 where proxies start, 1 where they would end."""

_APART = 0.19
"""Between any two nodes, where the half of a panel is 1."""


@dataclass(frozen=True)
class PrintedFigure:
    """A figure of the survey or the thesis that shows edges, and what it is drawn with here.

    Attributes:
        losses: As :meth:`LossChoice.parse` reads them.
        classes: Of the batch.
        images_per_class: Of the batch.
        about: What it shows.
    """

    losses: tuple[str, ...]
    classes: int
    images_per_class: int
    about: str


FIGURES = {
    "17": PrintedFigure(
        ("contrastive", "triplet:mining=all", "lifted_structure:mining=all"),
        3,
        2,
        "a batch of six: pairs, triplets, and all pairs at once",
    ),
    "18": PrintedFigure(("lifted_structure:mining=hard",), 3, 2, "hard negatives of each positive pair"),
    "20": PrintedFigure(("triplet:mining=all", "proxy_nca"), 2, 4, "48 triplets, or 8 samples and 2 proxies"),
    "21": PrintedFigure(("softmax:normalized=true", "arcface"), 3, 3, "an angular margin for the own proxy"),
    "22": PrintedFigure(("softmax:normalized=true", "soft_triple"), 2, 6, "one proxy per class, or several"),
    "23": PrintedFigure(
        ("triplet", "npair", "lifted_structure", "proxy_nca", "proxy_anchor:alpha=8"),
        3,
        4,
        "which relations five losses use",
    ),
    "32": PrintedFigure(
        ("proxy_repulsion:through_samples=false,alpha=8", "proxy_repulsion:alpha=8"),
        3,
        3,
        "the thesis's own loss",
    ),
    "survey-1": PrintedFigure(
        ("multi_similarity", "proxy_anchor:alpha=8", "direction_multi_similarity"),
        3,
        4,
        "losses over pairs, over proxies, and with a direction",
    ),
    "survey-9": PrintedFigure(
        ("triplet:mining=all,metric=squared_euclidean,margin=1", "direction_triplet:margin=1"),
        2,
        2,
        "what a direction adds to anchors, positives and negatives",
    ),
}
"""Figures of the thesis by their number, of the survey with ``survey-`` before it."""


class Edges(NamedTuple):
    """A batch and the proxies of a loss as the nodes of a graph.

    Attributes:
        nodes: ``(n, D)``: the samples, then the proxies.
        labels: ``(n,)``.
        samples: How many of the nodes are samples.
        weights: ``(n, n)``, symmetric with an empty diagonal: ∂L/∂(u·v) of each pair of nodes, both ways
            together; below 0 where the loss pulls them together, above 0 where it pushes them apart.
    """

    nodes: Tensor
    labels: Tensor
    samples: int
    weights: Tensor

    def listed(self) -> list[tuple[int, int, float]]:
        """Both ends and the weight of each edge, the strongest first, down to a hundredth of that."""
        first, second = torch.triu_indices(len(self.nodes), len(self.nodes), offset=1)
        strength = self.weights[first, second]
        kept = (strength.abs() > _DRAWN * strength.abs().max()).nonzero().flatten()
        kept = kept[strength[kept].abs().argsort(descending=True)]
        return [(int(first[k]), int(second[k]), float(strength[k])) for k in kept]


def measure_edges(loss: Loss, batch: Batch) -> Edges:
    """The gradient between any two nodes, of any loss that is a function of inner products.

    Of such a loss the gradient at node u is ``Σ_v w_uv v``, and a multiple of u itself: with nodes that are
    linearly independent, the w are found from the gradients alone, whatever the loss is made of. Proxies are
    half-way from a random direction, where they start, to the mean of their class.

    Args:
        loss: With the batch's number of classes and dimensions, if it has proxies.
        batch: The embeddings.

    Raises:
        ValueError: There are more nodes than dimensions, or two of them coincide.

    >>> from nearkin import losses
    >>> batch = Batch(torch.eye(3) + 0.1, torch.tensor([0, 0, 1]), "three")
    >>> measure_edges(losses.build("contrastive", margin=0.0), batch).weights.round(decimals=2)
    tensor([[ 0.0000, -1.0000,  0.5000],
            [-1.0000,  0.0000,  0.5000],
            [ 0.5000,  0.5000,  0.0000]])
    """
    rows = batch.embeddings.double()
    rows = normalize(rows, dim=1) if getattr(loss, "on_sphere", True) else rows
    loss, labels = loss.double(), batch.labels
    nodes = rows
    if isinstance(loss, ProxyLoss):
        proxies, their_labels = class_proxies(loss, rows, labels)
        with torch.no_grad():
            proxies = _halfway(proxies)
            loss.proxies.copy_(proxies.view_as(loss.proxies))
        nodes, labels = torch.cat([rows, proxies]), torch.cat([labels, their_labels])
    _check_independent(nodes)
    gradients = _gradients(loss, rows, batch.labels)
    weights = gradients @ torch.linalg.pinv(nodes)
    weights = (weights + weights.T) / 2  # equal up to rounding, but for the diagonal
    return Edges(nodes, labels, len(rows), weights.fill_diagonal_(0).float())


def _halfway(means: Tensor) -> Tensor:
    """Vectors as long as these, at an angle to them, each in a random direction of its own."""
    drawn = torch.randn(means.shape, generator=torch.Generator().manual_seed(1)).to(means)
    directions = normalize(means, dim=1)
    aside = normalize(drawn - (drawn * directions).sum(dim=1, keepdim=True) * directions, dim=1)
    turned: Tensor = _PROGRESS * directions + sqrt(1 - _PROGRESS**2) * aside
    lengths: Tensor = torch.linalg.vector_norm(means, dim=1, keepdim=True)
    return turned * lengths


def _gradients(loss: Loss, rows: Tensor, labels: Tensor) -> Tensor:
    """Of samples and then of proxies, ``(n, D)``."""
    rows = rows.clone().requires_grad_()
    inputs = [rows, loss.proxies] if isinstance(loss, ProxyLoss) else [rows]
    with same_draws(loss):
        value = loss(rows, labels)
    found = torch.autograd.grad(value, inputs, materialize_grads=True)
    return torch.cat([gradient.flatten(0, -2) for gradient in found])


def _check_independent(nodes: Tensor) -> None:
    rank = int(torch.linalg.matrix_rank(normalize(nodes, dim=1), atol=1e-6))
    if rank < len(nodes):
        raise ValueError(
            f"the {len(nodes)} nodes (samples and proxies) span {rank} of {nodes.shape[1]} dimensions: "
            "their edges cannot be told apart: draw fewer classes or images, or take other embeddings"
        )


def figure_batch(name: str) -> tuple[list[LossChoice], Batch]:
    """The losses and the made-up batch of a printed figure.

    Raises:
        ValueError: There is no such figure.
    """
    if name not in FIGURES:
        raise ValueError(f"figure {name!r} has no edges: choose one of {', '.join(FIGURES)}")
    figure = FIGURES[name]
    batch = structured_batch(figure.classes, figure.images_per_class, embedding_dim=32, spread=1.2, seed=2)
    return [LossChoice.parse(loss) for loss in figure.losses], batch


def draw_edges(
    choices: Sequence[LossChoice], batch: Batch, path: Path, *, columns: int | None = None
) -> list[Edges]:
    """Draw the edges of several losses over one batch, as PNG, SVG or PDF.

    Args:
        choices: The losses.
        batch: Few samples, in at least as many dimensions as there are nodes.
        path: Where the picture goes.
        columns: Panels in a row.

    Returns:
        What was drawn, loss by loss.
    """
    measured = [
        measure_edges(one.build(batch.num_classes, batch.embeddings.shape[1]), batch) for one in choices
    ]
    columns = columns_of_grid(len(choices), columns)
    rows = ceil(len(choices) / columns)
    with styled():
        size = (max(_PANEL * columns, 4.2), (_PANEL + _WORDS) * rows + _FOOT)
        figure = Figure(figsize=size)
        left = (size[0] - _PANEL * columns) / 2
        for number, (choice, edges) in enumerate(zip(choices, measured, strict=True)):
            row, column = divmod(number, columns)
            x, y = left + column * _PANEL, _FOOT + (rows - 1 - row) * (_PANEL + _WORDS)
            axes = figure.add_axes((x / size[0], y / size[1], _PANEL / size[0], _PANEL / size[1]))
            _draw_panel(axes, choice, edges)
        _legend(figure, batch, any(len(one.nodes) > one.samples for one in measured))
        save(figure, path)
    return measured


def _draw_panel(axes: Axes, choice: LossChoice, edges: Edges) -> None:
    places = places_of(edges.nodes)
    axes.set(xlim=(-1.15, 1.15), ylim=(-1.15, 1.15), aspect="equal")
    axes.set_axis_off()
    listed = edges.listed()
    strongest = abs(listed[0][2]) if listed else 1.0
    for order, (one, other, weight) in enumerate(listed):
        x, y = zip(places[one].tolist(), places[other].tolist(), strict=True)
        width = _WIDEST * abs(weight) / strongest
        # Thin edges lie above thick ones, so that none hides another.
        axes.plot(
            x,
            y,
            color=PULL if weight < 0 else PUSH,
            linewidth=width,
            alpha=0.75,
            solid_capstyle="round",
            zorder=1 + order / len(listed),
        )
    for number, (x_, y_) in enumerate(places.tolist()):
        label, is_proxy = int(edges.labels[number]), number >= edges.samples
        axes.plot(
            x_,
            y_,
            marker=marker_of(label),
            markersize=9.5 if is_proxy else 6.5,
            color=INK if is_proxy else colour_of(label + _FIRST_COLOUR),
            markeredgecolor=colour_of(label + _FIRST_COLOUR) if is_proxy else PAPER,
            markeredgewidth=1.6 if is_proxy else 0.9,
            zorder=4 if is_proxy else 3,
        )
    pulls = sum(weight < 0 for *_, weight in listed)
    axes.text(0, 1.37, choice.name, ha="center", va="bottom", fontsize=8, color=INK, family=MONOSPACE)
    counts = f"edges: {pulls} pull, {len(listed) - pulls} push"
    words = f"{choice.settings}\n{counts}" if choice.settings else counts
    axes.text(0, 1.34, words, ha="center", va="top", fontsize=6, color=GREY, linespacing=1.25)


def places_of(nodes: Tensor) -> Tensor:
    """Places ``(n, 2)`` in a square from −1 to 1 whose distances are near to those of the nodes.

    Classical scaling: the two directions in which the nodes vary most; nodes that would cover each other are
    then moved apart.
    """
    centred = nodes.double() - nodes.double().mean(dim=0)
    U, scale, _ = torch.linalg.svd(centred, full_matrices=False)
    flat = U[:, :2] * scale[:2]
    signs = torch.sign(flat.gather(0, flat.abs().argmax(dim=0, keepdim=True)))
    flat = flat * signs  # the same picture with every linear algebra library
    flat = flat / flat.abs().max().clamp_min(1e-12)
    for _ in range(200):
        gap = flat.unsqueeze(1) - flat
        distance = gap.norm(dim=2).clamp_min(1e-9)
        missing = (_APART - distance).clamp_min(0).fill_diagonal_(0)
        if not missing.any():
            break
        flat = flat + (0.5 * missing / distance).unsqueeze(2).mul(gap).sum(dim=1)
        flat = flat.clamp(-1, 1)
    places: Tensor = flat.float()
    return places


def _legend(figure: Figure, batch: Batch, proxies: bool) -> None:
    def mark(**keywords: Any) -> Line2D:
        return Line2D([], [], **keywords)

    handles = [
        mark(color=PULL, linewidth=2.5, label="pulls together"),
        mark(color=PUSH, linewidth=2.5, label="pushes apart"),
        mark(linestyle="", marker="o", markersize=5.5, color=GREY, label="sample"),
    ]
    if proxies:
        style: dict[str, Any] = {"linestyle": "", "marker": "o", "markersize": 7.5, "color": INK}
        handles.append(mark(**style, markeredgecolor=GREY, markeredgewidth=1.6, label="proxy"))
    height = float(figure.get_size_inches()[1])
    figure.legend(
        handles=handles,
        loc="lower center",
        ncols=4,
        fontsize=6.5,
        handletextpad=0.5,
        columnspacing=1.4,
        bbox_to_anchor=(0.5, 0.23 / height),
        borderaxespad=0,
    )
    words = (
        f"{batch.title}. Shape and colour: class. Thickness: gradient between two nodes, in parts of the "
        "panel's largest; below a hundredth not drawn."
    )
    width = int(float(figure.get_size_inches()[0]) * 20)
    lines = "\n".join(textwrap.wrap(words, width))
    figure.text(0.5, 0.05 / height, lines, ha="center", va="bottom", fontsize=5.5, color=GREY)
