"""What a person looks at after a search: how it went, what mattered, and where the good values lie."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from nearkin.pictures.style import LIGHT, TITLE, Theme, dress, save, styled

Scale = Literal["linear", "log", "choice"]
"""How the values of a hyperparameter are laid out: as numbers, by orders of magnitude, or side by side."""


@dataclass(frozen=True)
class Trial:
    """A trial that has a score.

    Attributes:
        number: Its place in the search.
        values: What was tried, by name.
        score: Between 0 and 1.
        done: Whether it came to its end; otherwise it was given up with this score.
    """

    number: int
    values: Mapping[str, Any]
    score: float
    done: bool = True


@dataclass(frozen=True)
class SearchHistory:
    """What the pictures of a search show.

    Attributes:
        trials: The trials in the order of the search.
        scales: How the values of each hyperparameter are laid out, by name.
        score_name: What was searched for the largest value of.
        importances: The share of the differences between trials that each hyperparameter explains, where
            there are enough trials to say so.
    """

    trials: Sequence[Trial]
    scales: Mapping[str, Scale]
    score_name: str
    importances: Mapping[str, float] = field(default_factory=dict)

    @property
    def best(self) -> Trial | None:
        """The finished trial with the best score, the earlier one of equals."""
        done = [trial for trial in self.trials if trial.done]
        return max(done, key=lambda trial: (trial.score, -trial.number), default=None)


def draw_search(history: SearchHistory, folder: Path, *, theme: Theme = LIGHT) -> list[Path]:
    """Draw ``history.png``, ``importance.png`` and ``slices.png`` of a search, as far as there is anything.

    Args:
        history: What they show.
        folder: Where they go.
        theme: Colours of the picture.

    Returns:
        Those that are there now.
    """
    pictures = [folder / f"{name}.png" for name in ("history", "importance", "slices")]
    with styled(theme):
        if history.trials:
            save(_history(history, theme), pictures[0])
            save(_slices(history, theme), pictures[2])
        if history.importances:
            save(_importance(history.importances, theme), pictures[1])
    return [picture for picture in pictures if picture.exists()]


def _history(history: SearchHistory, theme: Theme) -> Figure:
    figure = Figure(figsize=(7, 3.8), layout="constrained")
    axes = figure.subplots()
    _scatter(axes, history.trials, [trial.number for trial in history.trials], theme)
    best, numbers, highest = 0.0, [], []
    for trial in history.trials:
        if trial.done:
            best = max(best, 100 * trial.score)
            numbers.append(trial.number)
            highest.append(best)
    axes.step(numbers, highest, where="post", color=theme.second, label="best so far", zorder=1)
    figure.legend(loc="outside lower center", ncols=3)
    axes.set_xlabel("trial")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    dress(axes, f"{history.score_name}, %")
    return figure


def _importance(shares: Mapping[str, float], theme: Theme) -> Figure:
    figure = Figure(figsize=(7, 0.9 + 0.42 * len(shares)), layout="constrained")
    axes = figure.subplots()
    names = sorted(shares, key=lambda key: shares[key])
    bars = axes.barh(names, [100 * shares[name] for name in names], color=theme.accent, height=0.6)
    axes.bar_label(bars, fmt="%.0f %%", padding=4)
    axes.set_xlim(0, 115 * max(shares.values()) or 1)
    axes.xaxis.set_visible(False)
    dress(axes, "share of the differences between trials that each value explains")
    axes.grid(visible=False)
    axes.spines["bottom"].set_visible(False)
    return figure


def _slices(history: SearchHistory, theme: Theme) -> Figure:
    columns = min(len(history.scales), 3)
    rows = math.ceil(len(history.scales) / columns)
    figure = Figure(figsize=(3.6 * columns, 3.1 * rows + 0.5), layout="constrained")
    figure.suptitle(f"{history.score_name}, %", fontsize=TITLE)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True).flatten()
    best = history.best
    for axes, (name, scale) in zip(grid, history.scales.items(), strict=False):
        _scatter(axes, history.trials, [_place(trial, name, scale) for trial in history.trials], theme)
        if best is not None:
            mark: dict[str, Any] = {"marker": "*", "markersize": 13, "linestyle": "none", "label": "best"}
            axes.plot([_place(best, name, scale)], [100 * best.score], color=theme.second, **mark)
        if scale == "log":
            _by_magnitude(axes, [trial.values[name] for trial in history.trials])
        elif scale == "choice":
            axes.margins(x=0.25)
        dress(axes, name)
    for axes in grid[len(history.scales) :]:
        axes.set_visible(False)
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure


def _by_magnitude(axes: Axes, values: Sequence[float]) -> None:
    """A logarithmic axis with as many numbers as it has room for."""
    decades = math.log10(max(values) / min(values))
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if decades < 2 else (1.0,), numticks=6))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())


def _scatter(axes: Axes, trials: Sequence[Trial], places: Sequence[Any], theme: Theme) -> None:
    """Trials that were done, and behind them those that were given up with the score they had then."""
    for done, label, colour, marker in (
        (False, "given up", theme.soft, "x"),
        (True, "done", theme.accent, "o"),
    ):
        chosen = [number for number, trial in enumerate(trials) if trial.done == done]
        if chosen:
            axes.scatter(
                [places[number] for number in chosen],
                [100 * trials[number].score for number in chosen],
                color=colour,
                marker=marker,
                s=22,
                label=label,
                zorder=2,
            )


def _place(trial: Trial, name: str, scale: Scale) -> Any:
    return str(trial.values[name]) if scale == "choice" else trial.values[name]
