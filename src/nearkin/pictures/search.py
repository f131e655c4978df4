"""What a person looks at after a search: how it went, what mattered, and where the good values lie."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from nearkin.losses import Range
from nearkin.pictures.run import GRID, INK, SECOND_INK, save
from nearkin.tuning.search import Search, TrialRecord
from nearkin.tuning.strategy import importances

_FAINT = "#9a9a9a"


def draw_search(search: Search) -> list[Path]:
    """Draw the pictures of a search into its directory: history, importance and slices."""
    records = [record for record in search.records() if record.score is not None]
    history, importance, slices = (
        search.path / f"{name}.png" for name in ("history", "importance", "slices")
    )
    score = f"Recall@{search.plan.recipe.evaluation.recall_at[0]} on validation classes, %"
    if records:
        _draw_history(records, history, score)
        _draw_slices(search, records, slices, score)
    with search.study() as study:
        shares = importances(study)
    if shares:
        _draw_importance(shares, importance)
    return [picture for picture in (history, importance, slices) if picture.exists()]


def _draw_history(records: Sequence[TrialRecord], path: Path, score: str) -> None:
    figure = Figure(figsize=(7, 3.8), layout="constrained")
    axes = figure.subplots()
    _scatter(axes, records, [record.number for record in records])
    best, numbers, highest = 0.0, [], []
    for record in records:
        if record.state == "done":
            best = max(best, _percent(record))
            numbers.append(record.number)
            highest.append(best)
    axes.step(numbers, highest, where="post", color=SECOND_INK, linewidth=1.5, label="best so far", zorder=1)
    axes.legend(frameon=False, loc="lower right")
    axes.set_xlabel("trial")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _dress(axes, score)
    save(figure, path)


def _draw_importance(shares: dict[str, float], path: Path) -> None:
    figure = Figure(figsize=(7, 0.9 + 0.42 * len(shares)), layout="constrained")
    axes = figure.subplots()
    names = sorted(shares, key=lambda key: shares[key])
    bars = axes.barh(names, [100 * shares[name] for name in names], color=INK, height=0.6)
    axes.bar_label(bars, fmt="%.0f %%", padding=4)
    axes.set_xlim(0, 115 * max(shares.values()) or 1)
    axes.xaxis.set_visible(False)
    _dress(axes, "share of the differences between trials that each value explains")
    axes.grid(visible=False)
    axes.spines["bottom"].set_visible(False)
    save(figure, path)


def _draw_slices(search: Search, records: Sequence[TrialRecord], path: Path, score: str) -> None:
    space = search.plan.space
    columns = min(len(space), 3)
    rows = math.ceil(len(space) / columns)
    figure = Figure(figsize=(3.6 * columns, 3.1 * rows + 0.3), layout="constrained")
    figure.suptitle(score, fontsize=10)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True).flatten()
    best = search.best() if any(record.state == "done" for record in records) else None
    for axes, (key, where) in zip(grid, space.items(), strict=False):
        numeric = isinstance(where, Range)
        _scatter(axes, records, [_place(record.values[key], numeric) for record in records])
        if best is not None:
            axes.plot(
                [_place(best.values[key], numeric)],
                [_percent(best)],
                color=SECOND_INK,
                marker="*",
                ms=13,
                linestyle="none",
                label="best",
            )
        if isinstance(where, Range) and where.log:
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter(NullFormatter())
        _dress(axes, key)
    for axes in grid[len(space) :]:
        axes.set_visible(False)
    grid[0].legend(frameon=False, fontsize=8)
    save(figure, path)


def _scatter(axes: Axes, records: Sequence[TrialRecord], places: Sequence[Any]) -> None:
    """Trials that were done, and behind them those that were given up with the score they had then."""
    for state, color, marker in (("given up", _FAINT, "x"), ("done", INK, "o")):
        chosen = [index for index, record in enumerate(records) if record.state == state]
        if chosen:
            axes.scatter(
                [places[index] for index in chosen],
                [_percent(records[index]) for index in chosen],
                color=color,
                marker=marker,
                s=22,
                label=state,
                zorder=2,
            )


def _place(value: Any, numeric: bool) -> Any:
    return value if numeric else str(value)


def _percent(record: TrialRecord) -> float:
    return 100 * (record.score or 0.0)


def _dress(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=10)
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
