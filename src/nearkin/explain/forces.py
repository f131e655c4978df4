"""Where each loss pushes points of the plane in one step: the survey's Figures 3 and 9 for every loss."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, nan
from typing import NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, FancyArrowPatch
from matplotlib.transforms import Bbox
from torch import Tensor

from nearkin.explain.choice import LossChoice
from nearkin.explain.layouts import Layout, turned
from nearkin.explain.pair_weighting import similarity_weights
from nearkin.losses import Loss, ProxyLoss
from nearkin.losses.base import require_one_of
from nearkin.pictures.style import (
    GREY,
    INK,
    MONOSPACE,
    PALE,
    PAPER,
    Path,
    colour_of,
    columns_of_grid,
    marker_of,
    save,
    styled,
)

SPACES = ("circle", "plane")
_LONGEST = 0.6
"""Of the arrows of a panel, in units of the circle's radius."""

NOTHING = 1e-6
"""Forces below it are rounding."""

_PANEL, _GAP, _WORDS, _WORDS_BELOW, _FOOT = 1.9, 0.08, 0.5, 0.27, 0.26
"""Inches: width of a panel, white at its sides, room for words above and below it, and for the legend."""

_LONE_PANEL = 3.4

_MARGIN = 0.14
_BETWEEN_PROXIES = 16.0
"""Degrees between neighbouring proxies of one class."""


class Forces(NamedTuple):
    """What one step of gradient descent does.

    Attributes:
        on_points: −∂L/∂x ``(N, 2)``.
        proxies: ``(M, 2)``; none where the loss has none.
        on_proxies: −∂L/∂w ``(M, 2)``.
        proxy_labels: ``(M,)``.
        value: The loss; NaN in the plane, where only forces are computed.
    """

    on_points: Tensor
    proxies: Tensor
    on_proxies: Tensor
    proxy_labels: Tensor
    value: float

    @property
    def longest(self) -> float:
        """Length of the longest arrow."""
        return float(torch.cat([self.on_points, self.on_proxies]).norm(dim=1).max())


def forces(loss: Loss, layout: Layout, space: str = "circle") -> Forces:
    """The negative gradient at every point and proxy.

    Args:
        loss: With ``embedding_dim=2`` and the layout's number of classes, if it has proxies: they are moved
            to where the layout wants them.
        layout: The points.
        space: "circle": the loss as it is. It looks at directions, so that points of the unit circle move
            along it. "plane": general pair weighting as the survey draws it (Figure 3), points free in the
            plane and S = 1 − ‖x − y‖²/2: every pair pulls or pushes along its connecting line with ∂L/∂S.
            Terms that are no function of S (lengths, proxies among themselves) have no part in it.

    >>> from nearkin import losses
    >>> from nearkin.explain import layouts
    >>> found = forces(losses.build("contrastive"), layouts.find("easy"))
    >>> found.on_points[:2].round(decimals=2)
    tensor([[-0.4200, -0.0700],
            [ 0.3500,  0.2400]])
    """
    require_one_of(SPACES, space=space)
    if isinstance(loss, ProxyLoss):
        place_proxies(loss, layout)
    return forces_at(loss, layout.points, layout.labels) if space == "circle" else _in_plane(loss, layout)


def place_proxies(loss: ProxyLoss, layout: Layout) -> None:
    """Move the loss's proxies to the layout's; several of a class stand side by side."""
    with torch.no_grad():
        if loss.proxies.dim() == 2:
            loss.proxies.copy_(layout.proxies)
            return
        K = loss.proxies.shape[1]
        for k in range(K):
            loss.proxies[:, k] = turned(layout.proxies, (k - (K - 1) / 2) * _BETWEEN_PROXIES)


def _proxies_of(loss: Loss, like: Tensor) -> tuple[Tensor, Tensor]:
    """All proxies ``(M, 2)`` and their classes ``(M,)``."""
    if not isinstance(loss, ProxyLoss):
        return like.new_zeros(0, 2), torch.zeros(0, dtype=torch.long)
    proxies = loss.proxies.detach().flatten(0, -2)
    per_class = len(proxies) // loss.num_classes
    return proxies.clone(), torch.arange(loss.num_classes).repeat_interleave(per_class)


def forces_at(loss: Loss, points: Tensor, labels: Tensor) -> Forces:
    """The negative gradient at points ``(N, 2)`` and at the loss's proxies, wherever they are."""
    points = points.clone().requires_grad_()
    proxies, proxy_labels = _proxies_of(loss, points.detach())
    inputs = [points, loss.proxies] if isinstance(loss, ProxyLoss) else [points]
    value = loss(points, labels)
    gradients = torch.autograd.grad(value, inputs, materialize_grads=True)
    on_proxies = -gradients[1].flatten(0, -2) if len(gradients) > 1 else torch.zeros_like(proxies)
    return Forces(-gradients[0], proxies, on_proxies, proxy_labels, value.item())


def _in_plane(loss: Loss, layout: Layout) -> Forces:
    points = layout.points
    proxies, proxy_labels = _proxies_of(loss, points)
    others = proxies if isinstance(loss, ProxyLoss) else points
    S = 1 - torch.cdist(points, others).square() / 2
    weights = similarity_weights(loss, S, layout.labels)
    on_points = _along_lines(weights, points, others)
    on_others = _along_lines(weights.T, others, points)
    if isinstance(loss, ProxyLoss):
        return Forces(on_points, proxies, on_others, proxy_labels, nan)
    return Forces(on_points + on_others, proxies, torch.zeros_like(proxies), proxy_labels, nan)


def _along_lines(weights: Tensor, points: Tensor, others: Tensor) -> Tensor:
    """−Σ_j w_ij ∂S_ij/∂x_i, where ∂S_ij/∂x_i = y_j − x_i."""
    return weights.sum(dim=1, keepdim=True) * points - weights @ others


def draw_forces(
    choices: Sequence[LossChoice],
    layout: Layout,
    path: Path,
    *,
    space: str = "circle",
    columns: int | None = None,
) -> list[Forces]:
    """Draw a grid of losses, each with its forces on the same points.

    Arrows are scaled panel by panel: the longest of each is equally long, and the number below says how long
    it really is.

    Args:
        choices: The losses.
        layout: The points.
        path: A PNG, SVG or PDF.
        space: As for :func:`forces`.
        columns: Panels in a row; by default about as many as rows and a half more.

    Returns:
        What was drawn, loss by loss.
    """
    columns = columns_of_grid(len(choices), columns)
    found = [forces(choice.build(layout.num_classes, 2), layout, space) for choice in choices]
    with styled():
        save(_force_figure(choices, layout, found, columns), path)
    return found


def _force_figure(
    choices: Sequence[LossChoice], layout: Layout, found: Sequence[Forces], columns: int
) -> Figure:
    """A panel per loss, and the legend below them."""
    rows = ceil(len(choices) / columns)
    window = _window(layout, found)
    panel = _LONE_PANEL if len(choices) == 1 else _PANEL
    width = panel - 2 * _GAP
    height = width * (window.y1 - window.y0) / (window.x1 - window.x0)
    figure = Figure(figsize=(max(columns * panel, _LONE_PANEL), rows * (height + _WORDS) + _FOOT))
    across, up = figure.get_size_inches()
    left = (across - columns * panel) / 2 + _GAP
    for number, (choice, result) in enumerate(zip(choices, found, strict=True)):
        row, column = divmod(number, columns)
        bottom = _FOOT + (rows - 1 - row) * (height + _WORDS) + _WORDS_BELOW
        axes = figure.add_axes(((left + column * panel) / across, bottom / up, width / across, height / up))
        axes.set(xlim=(window.x0, window.x1), ylim=(window.y0, window.y1), aspect="equal")
        _panel(axes, choice, layout, result)
    _legend(figure, layout, any(len(result.proxies) for result in found))
    return figure


def _window(layout: Layout, found: Sequence[Forces]) -> Bbox:
    """What the panels show: every point and every arrow, and of the circle what is there."""
    seen = [layout.points]
    for result in found:
        places = torch.cat([layout.points, result.proxies])
        arrows = torch.cat([result.on_points, result.on_proxies])
        seen += [places, places + arrows * _scale(result)]
    everything = torch.cat(seen)
    (x0, y0), (x1, y1) = everything.amin(dim=0).tolist(), everything.amax(dim=0).tolist()
    widen = max(0.0, 0.6 * (y1 - y0) - (x1 - x0), 1.2 - (x1 - x0)) / 2
    heighten = max(0.0, 0.6 * (x1 - x0) - (y1 - y0), 1.0 - (y1 - y0)) / 2
    return Bbox.from_extents(
        x0 - _MARGIN - widen, y0 - _MARGIN - heighten, x1 + _MARGIN + widen, y1 + _MARGIN + heighten
    )


def _scale(result: Forces) -> float:
    """Drawn length of a force of 1."""
    return _LONGEST / result.longest if result.longest > NOTHING else 0.0


def _panel(axes: Axes, choice: LossChoice, layout: Layout, result: Forces) -> None:
    axes.set_axis_off()
    axes.add_patch(Circle((0, 0), 1, fill=False, color=PALE, linewidth=0.8, zorder=0))
    axes.set_title(choice.name, fontsize=7.5, color=INK, pad=2, family=MONOSPACE)
    scale = _scale(result)
    for place, arrow, label in zip(result.proxies, result.on_proxies, result.proxy_labels, strict=True):
        _arrow(axes, place, arrow * scale, colour_of(int(label)))
        axes.plot(*place, marker="*", markersize=8, color=colour_of(int(label)), mec=PAPER, mew=0.5, zorder=3)
    for place, arrow, label, name in zip(
        layout.points, result.on_points, layout.labels, layout.names, strict=True
    ):
        colour = colour_of(int(label))
        _arrow(axes, place, arrow * scale, colour)
        axes.plot(
            *place, marker=marker_of(int(label)), markersize=5.2, color=colour, mec=PAPER, mew=0.5, zorder=4
        )
        _name(axes, place, name, colour)
    says = f"longest {result.longest:.2g}" if scale else "no force: nothing violated"
    lines = [line for line in (choice.settings, says) if line]
    axes.text(
        0.5,
        -0.02,
        "\n".join(lines),
        transform=axes.transAxes,
        ha="center",
        va="top",
        fontsize=5.5,
        color=GREY,
    )


def _arrow(axes: Axes, place: Tensor, arrow: Tensor, colour: str) -> None:
    if arrow.norm() < 0.02:
        return
    (x0, y0), (x1, y1) = place.tolist(), (place + arrow).tolist()
    head = min(7.0, 2.0 + 14 * float(arrow.norm()))
    axes.add_patch(
        FancyArrowPatch(
            (x0, y0),
            (x1, y1),
            arrowstyle="-|>",
            mutation_scale=head,
            linewidth=1.3,
            color=colour,
            shrinkA=0,
            shrinkB=0,
            zorder=2,
        )
    )


def _name(axes: Axes, place: Tensor, name: str, colour: str) -> None:
    """Beside the point, towards the middle, where no arrow along the circle goes."""
    if name:
        x, y = (place * (1 - 0.2 / max(float(place.norm()), 0.4))).tolist()
        axes.text(x, y, name, ha="center", va="center", fontsize=7.5, style="italic", color=colour)


def _legend(figure: Figure, layout: Layout, proxies: bool) -> None:
    def mark(label: int, text: str) -> Line2D:
        return Line2D(
            [], [], linestyle="", marker=marker_of(label), color=colour_of(label), markersize=5, label=text
        )

    if layout.num_classes == 2 and "a" in layout.names:
        entries = [mark(0, "anchor a, positive p"), mark(1, "negative n")]
    else:
        entries = [mark(label, f"class {label + 1}") for label in range(min(layout.num_classes, 4))]
    if proxies:
        entries.append(Line2D([], [], linestyle="", marker="*", color=GREY, markersize=8, label="proxy"))
    entries.append(
        Line2D([], [], color=GREY, linewidth=1.3, marker=">", markevery=[1], markersize=4, label="−gradient")
    )
    figure.legend(
        handles=entries,
        loc="lower center",
        ncols=len(entries),
        frameon=False,
        fontsize=6.5,
        handletextpad=0.4,
        columnspacing=1.2,
        borderaxespad=0.2,
    )
