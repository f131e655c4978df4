"""The critical-difference diagram: average ranks on a line, and bars over those that cannot be told apart."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nearkin.atomic import atomic_path
from nearkin.benchmark.standings import NemenyiTest, Ranking

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Inches, downwards from the upper edge.
_WIDTH = 8.0
_MARGIN = 2.4
_RULER = -0.36
_AXIS = -0.95
_BAR = 0.13
_LINE = 0.26

# Names stay text in an SVG, and the same diagram is the same file.
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "nearkin",
    "font.family": "sans-serif",
    "lines.linewidth": 1.2,
}


class _Bar(NamedTuple):
    """A group's first and last average rank, and the level of its bar below the axis."""

    start: float
    end: float
    level: int


def critical_difference_diagram(
    ranking: Ranking, test: NemenyiTest, path: Path, *, colour: str = "#1f2328", accent: str = "#c2410c"
) -> Path:
    """Draw the diagram of Demšar (2006, JMLR) as SVG, PDF or PNG, by the ending of ``path``.

    Best on the left. A bar joins contenders whose average ranks are within the critical difference.

    Args:
        ranking: Rows, best first.
        test: Their Nemenyi test.
        path: Where it goes; written whole or not at all.
        colour: Of lines and names.
        accent: Of the bars.
    """
    from matplotlib import rc_context  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    bars = _stacked(ranking, test)
    below_bars = _AXIS - _BAR * (2 + max((bar.level for bar in bars), default=-1))
    height = -below_bars + _LINE * ((len(ranking.rows) + 1) // 2 + 0.5)
    with rc_context(_SETTINGS | {"lines.color": colour, "text.color": colour}):
        figure = Figure(figsize=(_WIDTH, height))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set_xlim(0, _WIDTH)
        axes.set_ylim(-height, 0)
        axes.set_prop_cycle(color=[colour])
        _draw_scale(axes, len(ranking.rows), test)
        for bar in bars:
            _draw_bar(axes, bar, len(ranking.rows), accent)
        _draw_names(axes, ranking, below_bars - 0.1)
        metadata = {"Date": None} if path.suffix == ".svg" else None
        with atomic_path(path) as temporary:
            figure.savefig(temporary, format=path.suffix[1:], dpi=200, transparent=True, metadata=metadata)
    return path


def _across(rank: float, contenders: int) -> float:
    """Where a rank is, from the left edge."""
    return _MARGIN + (rank - 1) / (contenders - 1) * (_WIDTH - 2 * _MARGIN)


def _draw_scale(axes: Axes, contenders: int, test: NemenyiTest) -> None:
    """The axis with its ticks, and above it a ruler as long as the critical difference."""
    start, end = _across(1, contenders), _across(contenders, contenders)
    axes.plot([start, end], [_AXIS, _AXIS])
    for rank in range(1, contenders + 1):
        x = _across(rank, contenders)
        axes.plot([x, x], [_AXIS, _AXIS + 0.08])
        axes.text(x, _AXIS + 0.13, f"{rank}", ha="center", va="bottom", fontsize=9)
    end = _across(1 + test.critical_difference, contenders)
    axes.plot([start, end], [_RULER, _RULER])
    for edge in (start, end):
        axes.plot([edge, edge], [_RULER - 0.05, _RULER + 0.05])
    label = f"critical difference {test.critical_difference:.2f} (Nemenyi, α = {test.alpha:g})"
    axes.text(start, _RULER + 0.09, label, ha="left", va="bottom", fontsize=9)


def _draw_bar(axes: Axes, bar: _Bar, contenders: int, accent: str) -> None:
    y = _AXIS - _BAR * (bar.level + 1)
    ends = [_across(bar.start, contenders) - 0.05, _across(bar.end, contenders) + 0.05]
    axes.plot(ends, [y, y], color=accent, linewidth=3.2, solid_capstyle="round")


def _draw_names(axes: Axes, ranking: Ranking, top: float) -> None:
    """The better half on the left, best first; the others on the right, worst first."""
    k = len(ranking.rows)
    for index, row in enumerate(ranking.rows):
        x = _across(row.average, k)
        if index < (k + 1) // 2:
            y, end, side = top - _LINE * index, _MARGIN - 0.15, -1
            text, align = f"{row.contender}  {row.average:.2f}", "right"
        else:
            y, end, side = top - _LINE * (k - 1 - index), _WIDTH - _MARGIN + 0.15, 1
            text, align = f"{row.average:.2f}  {row.contender}", "left"
        axes.plot([x, x, end], [_AXIS, y, y], linewidth=0.9)
        axes.plot([x], [_AXIS], "o", markersize=3.5)
        axes.text(end + 0.06 * side, y, text, ha=align, va="center", fontsize=9.5)


def _stacked(ranking: Ranking, test: NemenyiTest) -> list[_Bar]:
    """A bar for every group; bars that overlap are on different levels."""
    averages = {row.contender: row.average for row in ranking.rows}
    taken: list[float] = []
    bars = []
    for group in test.groups:
        start, end = averages[group[0]], averages[group[-1]]
        level = next((i for i, until in enumerate(taken) if until < start), len(taken))
        taken[level : level + 1] = [end]
        bars.append(_Bar(start, end, level))
    return bars
