"""Progress for people: in a terminal, in a pipe or log file, in a notebook."""

from __future__ import annotations

import os
from typing import Any

from rich.console import Console

from nearkin.display.console import console, is_live, shown_path
from nearkin.display.lines import LineDisplay
from nearkin.display.notebook import NotebookDisplay, in_notebook
from nearkin.display.search import SearchDisplay, SearchListener
from nearkin.display.terminal import TerminalDisplay
from nearkin.observer import Observer

__all__ = [
    "LineDisplay",
    "NotebookDisplay",
    "SearchDisplay",
    "TerminalDisplay",
    "console",
    "is_live",
    "observer_for",
    "shown_path",
]


def observer_for(progress: bool | Observer, *, search: Any = None, on: Console | None = None) -> Any:
    """Who is told about progress: the given observer, a display that fits the place, or nobody.

    Args:
        progress: An observer; or whether to show anything.
        search: The search for hyperparameters that is shown, if it is one.
        on: Where to show it; by default standard output.
    """
    place = console if on is None else on
    observer = progress if isinstance(progress, Observer) else _display(place, shown=progress)
    if search is None:
        return observer
    if isinstance(progress, Observer) or type(observer) is Observer:
        return SearchListener(observer)
    return SearchDisplay(observer, place, records=search.records(), epochs=search.plan.recipe.training.epochs)


def _display(place: Console, *, shown: bool) -> Observer:
    if not shown or not _is_first_process():
        return Observer()
    if place is console and in_notebook():
        return NotebookDisplay()
    return TerminalDisplay(place) if is_live(place) else LineDisplay(place)


def _is_first_process() -> bool:
    """Of several processes that train together, the first one talks."""
    return int(os.environ.get("WORLD_SIZE", "1")) == 1 or int(os.environ.get("RANK", "0")) == 0
