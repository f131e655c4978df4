"""The critical-difference diagram: average ranks on a line, and bars over those that cannot be told apart.

:func:`rank_diagram` lays it out once; the report draws it with links, and
:func:`critical_difference_diagram` as a picture of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nearkin.pictures.style import LIGHT, Theme, save, styled

# In units of the diagram, 760 of which are as wide as a picture's 8 inches; y grows downwards.
_WIDTH = 760.0
_SIDE = 216.0
_NAMES = 176.0
_RULER = 22.0
_AXIS = 61.0
_FIRST_BAR = 12.0
_BAR = 9.0
_LINE = 21.0
_MOST_TICKS = 12

_INCHES = 8.0
_POINTS = 72 * _INCHES / _WIDTH


@dataclass(frozen=True)
class RankMark:
    """A contender: its average rank is at ``x`` of the axis, its name at the ``end`` of the line ``y``."""

    label: str
    average: str
    x: float
    y: float
    end: float
    left: bool


@dataclass(frozen=True)
class RankBar:
    """A bar below contenders that cannot be told apart."""

    x1: float
    x2: float
    y: float
    names: Sequence[str]


@dataclass(frozen=True)
class RankDiagram:
    """A critical-difference diagram (Demšar, 2006, JMLR), in units of its own ``width`` and ``height``."""

    width: float
    height: float
    axis_y: float
    end: float
    ticks: Sequence[tuple[float, str]]
    marks: Sequence[RankMark]
    bars: Sequence[RankBar]
    ruler: tuple[float, float]
    ruler_y: float
    ruler_label: str
    description: str


def rank_diagram(
    averages: Mapping[str, float],
    *,
    critical_difference: float,
    groups: Sequence[Sequence[str]],
    alpha: float = 0.05,
) -> RankDiagram:
    """Lay out average ranks, the best at the left, and the bars that join what cannot be told apart.

    The better half of the names is on the left, best first; the others are on the right, worst first.

    Args:
        averages: The average rank of each contender, best first.
        critical_difference: The critical difference of the Nemenyi test, in average ranks.
        groups: Contenders that it cannot tell apart, best first in each.
        alpha: Its level.
    """
    count = len(averages)
    scale = (_WIDTH - 2 * _SIDE) / max(count - 1, 1)

    def place(rank: float) -> float:
        return round(_SIDE + (rank - 1) * scale, 1)

    places = {name: place(average) for name, average in averages.items()}
    bars = _bars(places, groups)
    below = max((bar.y for bar in bars), default=_AXIS) + _FIRST_BAR + _BAR
    first_half = math.ceil(count / 2)
    marks = []
    for number, (name, average) in enumerate(averages.items()):
        left = number < first_half
        line = number if left else count - 1 - number
        end = _NAMES if left else _WIDTH - _NAMES
        marks.append(RankMark(name, f"{average:.2f}", places[name], below + _LINE * line, end, left))
    named = "; ".join(f"{mark.label} {mark.average}" for mark in marks)
    joined = "; ".join(", ".join(group) for group in groups) or "none"
    return RankDiagram(
        width=_WIDTH,
        height=below + _LINE * first_half,
        axis_y=_AXIS,
        end=place(count),
        ticks=[
            (place(rank), str(rank)) for rank in range(1, count + 1, max(1, math.ceil(count / _MOST_TICKS)))
        ],
        marks=marks,
        bars=bars,
        ruler=(place(1), place(1 + critical_difference)),
        ruler_y=_RULER,
        ruler_label=f"critical difference {critical_difference:.2f} (Nemenyi, α = {alpha:g})",
        description=f"Average ranks: {named}. Not told apart: {joined}.",
    )


def _bars(places: Mapping[str, float], groups: Sequence[Sequence[str]]) -> list[RankBar]:
    """A bar for every group; bars that overlap are on different levels."""
    taken: list[float] = []
    bars = []
    for group in groups:
        start, end = places[group[0]], places[group[-1]]
        level = next((number for number, until in enumerate(taken) if until < start), len(taken))
        taken[level : level + 1] = [end]
        bars.append(RankBar(start - 4, end + 4, _AXIS + _FIRST_BAR + _BAR * level, list(group)))
    return bars


def critical_difference_diagram(
    averages: Mapping[str, float],
    path: Path,
    *,
    critical_difference: float,
    groups: Sequence[Sequence[str]],
    alpha: float = 0.05,
    theme: Theme = LIGHT,
) -> Path:
    """Draw the diagram without paper, as SVG, PDF or PNG, by the ending of ``path``.

    Args:
        averages: The average rank of each contender, best first.
        path: Where it goes; written whole or not at all.
        critical_difference: The critical difference of the Nemenyi test, in average ranks.
        groups: Contenders that it cannot tell apart, best first in each.
        alpha: Its level.
        theme: Colours of the picture.
    """
    diagram = rank_diagram(averages, critical_difference=critical_difference, groups=groups, alpha=alpha)
    with styled(theme):
        figure = Figure(figsize=(_INCHES, _INCHES * diagram.height / diagram.width))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set_xlim(0, diagram.width)
        axes.set_ylim(diagram.height, 0)
        axes.set_prop_cycle(color=[theme.ink])
        _draw_scale(axes, diagram)
        for mark in diagram.marks:
            _draw_mark(axes, mark, diagram.axis_y, theme)
        for bar in diagram.bars:
            axes.plot(
                [bar.x1, bar.x2], [bar.y, bar.y], color=theme.accent, linewidth=3.2, solid_capstyle="round"
            )
        save(figure, path, transparent=True)
    return path


def _draw_scale(axes: Axes, diagram: RankDiagram) -> None:
    """The axis with its ticks, and above it a ruler as long as the critical difference."""
    (start, end), y = diagram.ruler, diagram.ruler_y
    axes.plot([start, start, start, end, end, end], [y - 3, y + 3, y, y, y - 3, y + 3], linewidth=1.2)
    axes.text(start, y - 8, diagram.ruler_label, va="baseline", fontsize=12 * _POINTS)
    axes.plot([diagram.ticks[0][0], diagram.end], [diagram.axis_y] * 2, linewidth=1.2)
    for x, text in diagram.ticks:
        axes.plot([x, x], [diagram.axis_y, diagram.axis_y - 6], linewidth=1.2)
        axes.text(x, diagram.axis_y - 11, text, ha="center", va="baseline", fontsize=12 * _POINTS)


def _draw_mark(axes: Axes, mark: RankMark, axis_y: float, theme: Theme) -> None:
    outwards = -1 if mark.left else 1
    sides = ("right", "left") if mark.left else ("left", "right")
    axes.plot([mark.x, mark.x, mark.end], [axis_y, mark.y, mark.y], color=theme.soft, linewidth=0.9)
    axes.text(mark.end + 6 * outwards, mark.y, mark.label, ha=sides[0], va="center", fontsize=12.5 * _POINTS)
    axes.text(
        mark.end - 4 * outwards,
        mark.y - 4,
        mark.average,
        ha=sides[1],
        fontsize=11 * _POINTS,
        color=theme.soft,
    )
