"""Groups of bars: every contender with a bar per series, such as k, embedding size or network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from nearkin.pictures.style import LIGHT, NORMAL, SMALL, Path, Theme, dress, save, styled

_INCHES_PER_GROUP = 0.82
_ROOM = 0.8  # of a group's width that its bars take
_MOST_VALUES = 60  # that are written above their bars


def grouped_bars(
    values: Mapping[str, Mapping[str, float]],
    path: Path,
    *,
    title: str,
    unit: str,
    highlighted: str | None = None,
    theme: Theme = LIGHT,
) -> None:
    """Draw and write groups of bars, in the order given.

    The axis begins a little below the smallest value: differences are what is looked at, and it says so.

    Args:
        values: Group → series → value; a group may lack a series.
        path: Where it goes; its extension says the format.
        title: Above the picture.
        unit: Of the values.
        highlighted: A series in full colour, the others pale.
        theme: The colours.
    """
    series = list(dict.fromkeys(name for group in values.values() for name in group))
    known = [value for group in values.values() for value in group.values()]
    if not known:
        raise ValueError("there is nothing to draw: no group has a value")
    with styled(theme):
        figure = Figure(figsize=(max(4.0, _INCHES_PER_GROUP * len(values)), 3.6), layout="constrained")
        axes = figure.subplots()
        dress(axes, title)
        axes.grid(visible=False, axis="x")
        low, high = min(known), max(known)
        floor = max(0.0, low - 0.15 * ((high - low) or 1.0))
        width = _ROOM / len(series)
        for number, name in enumerate(series):
            places = [place for place, group in enumerate(values.values()) if name in group]
            heights = [group[name] for group in values.values() if name in group]
            offset = (number - (len(series) - 1) / 2) * width
            bars = axes.bar(
                [place + offset for place in places],
                [height - floor for height in heights],
                width,
                bottom=floor,
                label=name,
                color=_colour(number, name, highlighted, theme),
            )
            if len(known) <= _MOST_VALUES:
                axes.bar_label(
                    bars,
                    [f"{height:.1f}" for height in heights],
                    fontsize=SMALL - 1.5,
                    rotation=90,
                    padding=2,
                )
        axes.set_ylim(floor, high + 0.12 * ((high - low) or 1.0))
        axes.set_xticks(range(len(values)), list(values), rotation=30, ha="right", fontsize=NORMAL)
        axes.set_ylabel(unit if floor == 0 else f"{unit}, from {floor:.0f}")
        if len(series) > 1:
            axes.legend(ncols=len(series), loc="upper left", bbox_to_anchor=(0, -0.28), fontsize=SMALL)
        save(figure, path)


def _colour(number: int, name: str, highlighted: str | None, theme: Theme) -> str:
    if highlighted is None:
        return theme.series[number % len(theme.series)]
    return theme.accent if name == highlighted else theme.pale


def in_groups(rows: Sequence[tuple[str, str, float]]) -> dict[str, dict[str, float]]:
    """Triples of group, series and value as :func:`grouped_bars` takes them, in the order of their first.

    >>> in_groups([("triplet", "64", 57.6), ("triplet", "128", 60.5), ("npair", "64", 57.3)])
    {'triplet': {'64': 57.6, '128': 60.5}, 'npair': {'64': 57.3}}
    """
    found: dict[str, dict[str, float]] = {}
    for group, series, value in rows:
        found.setdefault(group, {})[series] = value
    return found
