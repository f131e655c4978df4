"""Where the marks of a chart stand; the templates draw them.

Rows and panels are placed in per cent of their width, so that they fit a phone without shrinking the words.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nearkin.tournament.report.tables import Kind

_STEPS = (1, 2, 2.5, 5, 10)


@dataclass(frozen=True)
class Tick:
    """A number on an axis and its place."""

    text: str
    place: float


@dataclass(frozen=True)
class Axis:
    """A stretch of numbers laid over 0 to 100 per cent."""

    low: float
    high: float
    ticks: Sequence[Tick]

    def place(self, value: float) -> float:
        """Per cent from the low end, rounded to what a screen can show.

        >>> Axis(50, 100, []).place(60)
        20.0
        """
        return round(100 * (value - self.low) / (self.high - self.low), 2)


def axis_for(values: Iterable[float], *, count: int = 5, floor: float | None = None) -> Axis:
    """An axis with about ``count`` round numbers that holds all values, and ``floor`` if that is given.

    >>> [tick.text for tick in axis_for([61.2, 78.9]).ticks]
    ['60', '65', '70', '75', '80']
    """
    known = [value for value in values if math.isfinite(value)]
    low = min(known, default=0.0) if floor is None else floor
    high = max(known, default=1.0)
    if high <= low:
        low, high = (low - 0.5, high + 0.5) if floor is None else (low, low + 1)
    step = _round_step((high - low) / max(count - 1, 1))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    start, end = first * step, last * step
    digits = max(
        0, -math.floor(math.log10(step) + 1e-9) + (step * 10 ** -math.floor(math.log10(step)) == 2.5)
    )
    inner = Axis(start, end, [])
    return Axis(
        start,
        end,
        [
            Tick(f"{number * step:.{digits}f}", inner.place(number * step))
            for number in range(first, last + 1)
        ],
    )


def snug_axis(values: Iterable[float], *, count: int = 4) -> Axis:
    """An axis that ends a little beyond the values, with the round numbers that lie inside it.

    >>> [tick.text for tick in snug_axis([8.2, 50.3]).ticks]
    ['20', '40']
    """
    known = list(values)
    low, high = min(known), max(known)
    room = 0.04 * (high - low) or 0.5
    inner = Axis(low - room, high + room, [])
    ticks = [
        Tick(tick.text, inner.place(float(tick.text)))
        for tick in axis_for(known, count=count).ticks
        if inner.low <= float(tick.text) <= inner.high
    ]
    return Axis(inner.low, inner.high, ticks)


def _round_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(step * power for step in _STEPS if step * power >= rough * (1 - 1e-9))


@dataclass(frozen=True)
class Dot:
    """A mark in a row: where, of which series, and what it says when pointed at."""

    place: float
    series: int = 0
    title: str = ""
    small: bool = False


@dataclass(frozen=True)
class DotRow:
    """A line of a dot chart.

    Attributes:
        label: Who.
        target: Where the label leads.
        dots: The marks.
        whisker: Both ends of an interval.
        text: The number in words, at the right.
        kind: Baselines are drawn hollow.
    """

    label: str
    target: str
    dots: Sequence[Dot]
    whisker: tuple[float, float] | None = None
    text: str = ""
    kind: Kind = "entry"


@dataclass(frozen=True)
class DotChart:
    """Rows of dots over one axis.

    Attributes:
        title: What is drawn.
        description: The same for who cannot see it, with where to find the numbers.
        axis: The axis of all rows.
        rows: The rows from top to bottom.
        unit: Under the axis.
        series: Names of the series, where there are several.
        bars: Draw bars from the low end instead of dots.
    """

    title: str
    description: str
    axis: Axis
    rows: Sequence[DotRow]
    unit: str
    series: Sequence[str] = ()
    bars: bool = False


@dataclass(frozen=True)
class Panel:
    """One of many small line charts: its own lines, drawn over those of all panels.

    Attributes:
        label: Who.
        target: Where the label leads.
        lines: Points of each line, as SVG wants them.
        text: The number that matters, beside the label.
        marks: Points to mark, in the units of the lines.
        kind: Baselines are drawn in another ink.
    """

    label: str
    target: str
    lines: Sequence[str]
    text: str = ""
    marks: Sequence[tuple[float, float]] = ()
    kind: Kind = "entry"


@dataclass(frozen=True)
class PanelChart:
    """Small line charts with common axes.

    Attributes:
        name: The name of the pale lines that all panels share.
        title: What is drawn.
        description: The same in words, for readers who cannot see it.
        panels: Best first.
        background: The lines of all panels.
        x_ticks: Along the bottom.
        y_ticks: Along the side.
        x_unit: The unit of the horizontal axis.
        y_unit: The unit of the vertical axis.
    """

    name: str
    title: str
    description: str
    panels: Sequence[Panel]
    background: Sequence[str]
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    x_unit: str
    y_unit: str


@dataclass(frozen=True)
class Curve:
    """One line of a panel: points from left to right, and one of them to mark."""

    points: Sequence[tuple[float, float]]
    mark: tuple[float, float] | None = None


@dataclass(frozen=True)
class Curves:
    """All lines of one panel."""

    label: str
    target: str
    curves: Sequence[Curve]
    text: str = ""
    kind: Kind = "entry"


def panel_chart(
    name: str,
    panels: Sequence[Curves],
    *,
    title: str,
    description: str,
    x_unit: str,
    y_unit: str,
    x_places: Mapping[float, float] | None = None,
) -> PanelChart:
    """Lay curves into panels with common axes.

    Args:
        name: The name of the chart, once in a report.
        panels: Best first.
        title: What is drawn.
        description: The chart in words, for readers who cannot see it.
        x_unit: The unit of the horizontal axis.
        y_unit: The unit of the vertical axis.
        x_places: Where each x stands in per cent, for sizes that no ruler spaces evenly.
    """
    points = [point for panel in panels for curve in panel.curves for point in curve.points]
    y_axis = snug_axis(y for _, y in points)
    places = x_places or _spread_out({x for x, _ in points})
    ends = {min(places), max(places)}
    x_ticks = [Tick(f"{x:g}", place) for x, place in places.items() if x_places or x in ends]

    def at(point: tuple[float, float]) -> tuple[float, float]:
        return places[point[0]], round(100 - y_axis.place(point[1]), 2)

    drawn = [
        Panel(
            label=panel.label,
            target=panel.target,
            lines=[_line(map(at, curve.points)) for curve in panel.curves],
            text=panel.text,
            marks=[at(curve.mark) for curve in panel.curves if curve.mark is not None],
            kind=panel.kind,
        )
        for panel in panels
    ]
    return PanelChart(
        name=name,
        title=title,
        description=description,
        panels=drawn,
        background=[line for panel in drawn for line in panel.lines],
        x_ticks=x_ticks,
        y_ticks=y_axis.ticks,
        x_unit=x_unit,
        y_unit=y_unit,
    )


def _spread_out(values: set[float]) -> dict[float, float]:
    """Numbers over the whole width, in proportion."""
    low, high = min(values), max(values)
    return {value: round(100 * (value - low) / ((high - low) or 1), 2) for value in sorted(values)}


def _line(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in points)
