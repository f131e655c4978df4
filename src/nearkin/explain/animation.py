"""A toy set of points under each loss, step after step, as a GIF or as a page that needs no network."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from math import ceil
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.animation import PillowWriter
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from torch import Tensor

from nearkin.atomic import atomic_path, write_text
from nearkin.evaluation import retrieval_scores
from nearkin.explain.choice import LossChoice
from nearkin.explain.forces import NOTHING, forces_at, place_proxies
from nearkin.explain.layouts import Layout
from nearkin.losses import Loss, ProxyLoss
from nearkin.losses.base import require_count
from nearkin.pictures.style import (
    DARK,
    GREY,
    INK,
    LIGHT,
    MONOSPACE,
    PALE,
    PAPER,
    Path,
    check_format,
    colour_of,
    columns_of_grid,
    css_of,
    marker_of,
    styled,
)

FORMATS = ("gif", "html")
_STEP = 0.05
"""Of the fastest point, at most, in units of the circle's radius."""

_TRAIL = 12
_HOLD_SECONDS = 1.2


class Trajectory(NamedTuple):
    """How points move under a loss.

    Attributes:
        points: ``(T, N, 2)``.
        proxies: ``(T, M, 2)``; M is 0 where the loss has none.
        proxy_labels: ``(M,)``.
        values: The loss at each moment.
        recalls: Recall@1 at each moment.
    """

    points: Tensor
    proxies: Tensor
    proxy_labels: Tensor
    values: list[float]
    recalls: list[float]


def descend(loss: Loss, layout: Layout, steps: int = 60) -> Trajectory:
    """Follow the forces from a layout.

    Every point and proxy goes along its own negative gradient. Losses differ in scale by a thousand and more,
    so that their learning rates do: each has the one with which its fastest point first goes a twentieth of
    the radius; never more than that later. Where the loss looks at directions only, points stay on the unit
    circle.

    Args:
        loss: With ``embedding_dim=2`` and the layout's number of classes.
        layout: Where the points start.
        steps: How many.
    """
    require_count(steps=steps)
    if isinstance(loss, ProxyLoss):
        place_proxies(loss, layout)
    on_sphere = getattr(loss, "on_sphere", False)
    points, rate = layout.points.clone(), 0.0
    moments: list[tuple[Tensor, Tensor, float, float]] = []
    for _ in range(steps + 1):
        found = forces_at(loss, points, layout.labels)
        recall = retrieval_scores(points, layout.labels, recall_at=(1,)).recall_at[1]
        moments.append((points, found.proxies, found.value, recall))
        rate = rate or (_STEP / found.longest if found.longest > NOTHING else 0.0)
        step = min(rate, _STEP / max(found.longest, NOTHING))
        points = _moved(points, found.on_points * step, on_sphere)
        if isinstance(loss, ProxyLoss):
            proxies = _moved(found.proxies, found.on_proxies * step, on_sphere)
            with torch.no_grad():
                loss.proxies.copy_(proxies.view_as(loss.proxies))
    tracks, proxy_tracks, values, recalls = zip(*moments, strict=True)
    return Trajectory(
        torch.stack(tracks), torch.stack(proxy_tracks), found.proxy_labels, list(values), list(recalls)
    )


def _moved(places: Tensor, by: Tensor, on_sphere: bool) -> Tensor:
    moved = places + by
    return torch.nn.functional.normalize(moved, dim=1) if on_sphere else moved


def animate(
    choices: Sequence[LossChoice], layout: Layout, path: Path, *, steps: int = 60, columns: int | None = None
) -> list[Trajectory]:
    """Write a GIF, or a page with the moving points inside, of a layout under several losses.

    Args:
        choices: The losses.
        layout: Where the points start.
        path: A .gif or .html file.
        steps: How many steps of gradient descent.
        columns: Panels in a row.

    Returns:
        What was drawn, loss by loss.
    """
    kind = check_format(path, FORMATS)
    tracks = [descend(choice.build(layout.num_classes, 2), layout, steps) for choice in choices]
    columns = columns_of_grid(len(choices), columns)
    if kind == "gif":
        with styled():
            _write_gif(choices, layout, tracks, path, columns)
    else:
        write_text(path, page(choices, layout, tracks))
    return tracks


def reach(track: Trajectory) -> float:
    """How far from the middle anything ever gets, at least 1."""
    return max(1.0, float(torch.cat([track.points, track.proxies], dim=1).abs().max()))


class _Panel:
    """One loss's axes, whose marks move."""

    def __init__(self, axes: Axes, choice: LossChoice, layout: Layout, track: Trajectory) -> None:
        self.track, self.labels = track, layout.labels
        limit = reach(track) * 1.12
        axes.set(xlim=(-limit, limit), ylim=(-limit, limit), aspect="equal")
        axes.set_axis_off()
        axes.add_patch(Circle((0, 0), 1, fill=False, color=PALE, linewidth=0.8, zorder=0))
        axes.set(xticks=[], yticks=[])
        words: dict[str, Any] = {"transform": axes.transAxes, "ha": "center"}
        axes.text(0.5, 1.02, choice.name, va="bottom", fontsize=7.5, color=INK, family=MONOSPACE, **words)
        self.says = axes.text(0.5, -0.01, "", va="top", fontsize=6, color=GREY, **words)
        self.marks = [
            axes.plot(
                [], [], linestyle="", marker=marker_of(c), ms=4.6, color=colour_of(c), mec=PAPER, mew=0.4
            )[0]
            for c in range(layout.num_classes)
        ]
        self.stars = [
            axes.plot(
                [], [], linestyle="", marker="*", ms=9, color=colour_of(c), mec=PAPER, mew=0.5, zorder=3
            )[0]
            for c in range(layout.num_classes)
        ]
        colours = [colour_of(label) for label in layout.labels.tolist()]
        self.trails = LineCollection([], colors=colours, linewidths=0.8, alpha=0.35, zorder=1)
        axes.add_collection(self.trails)

    def show(self, moment: int) -> None:
        """Move everything to a moment."""
        track = self.track
        points, proxies = track.points[moment], track.proxies[moment]
        for c, (mark, star) in enumerate(zip(self.marks, self.stars, strict=True)):
            mark.set_data(*points[self.labels == c].T.numpy())
            star.set_data(*proxies[track.proxy_labels == c].T.numpy())
        recent = track.points[max(0, moment - _TRAIL) : moment + 1]
        self.trails.set_segments(list(recent.transpose(0, 1).numpy()))
        self.says.set_text(f"loss {track.values[moment]:.3g}   Recall@1 {100 * track.recalls[moment]:.0f}%")


def _write_gif(
    choices: Sequence[LossChoice], layout: Layout, tracks: Sequence[Trajectory], path: Path, columns: int
) -> None:
    rows = ceil(len(choices) / columns)
    figure = Figure(figsize=(1.75 * columns, 2.05 * rows))
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, squeeze=False)
    figure.subplots_adjust(
        left=0.01,
        right=0.99,
        bottom=0.2 / (2.05 * rows),
        top=1 - 0.22 / (2.05 * rows),
        hspace=0.2,
        wspace=0.05,
    )
    for axes in grid.flat[len(choices) :]:
        axes.set_axis_off()
    panels = [
        _Panel(axes, choice, layout, track)
        for axes, choice, track in zip(grid.flat, choices, tracks, strict=False)
    ]
    writer = PillowWriter(fps=12)
    last = len(tracks[0].points) - 1
    moments = [*range(last + 1), *[last] * round(_HOLD_SECONDS * 12)]
    with atomic_path(path) as temporary, writer.saving(figure, str(temporary), dpi=140):
        for moment in moments:
            for panel in panels:
                panel.show(moment)
            writer.grab_frame(facecolor=PAPER)


def page(choices: Sequence[LossChoice], layout: Layout, tracks: Sequence[Trajectory]) -> str:
    """A page of HTML with the moving points inside: no picture, no script and no typeface from elsewhere."""
    panels = [
        {
            "name": choice.name,
            "settings": choice.settings,
            "reach": reach(track),
            "points": _rounded(track.points),
            "proxies": _rounded(track.proxies),
            "proxyLabels": track.proxy_labels.tolist(),
            "values": [float(f"{value:.4g}") for value in track.values],
            "recalls": [round(recall, 4) for recall in track.recalls],
        }
        for choice, track in zip(choices, tracks, strict=True)
    ]
    data = {"labels": layout.labels.tolist(), "colours": len(LIGHT.series), "panels": panels}
    template = (files("nearkin.explain") / "animation.html").read_text(encoding="utf-8")
    coloured = template.replace("/*LIGHT*/", css_of(LIGHT)).replace("/*DARK*/", css_of(DARK))
    return coloured.replace("/*DATA*/null", json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"))


def _rounded(places: Tensor) -> Any:
    return np.round(places.double().numpy(), 3).tolist()
