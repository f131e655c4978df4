from __future__ import annotations

import inspect
from typing import Any

import pytest

from nearkin.display import LineDisplay, NotebookDisplay
from nearkin.display.search import SearchDisplay
from nearkin.display.terminal import TerminalDisplay
from nearkin.observer import Observer, PassingOn
from nearkin.training import trackers
from nearkin.training.trackers import Observers

EVENTS = [name for name, _ in inspect.getmembers(Observer, inspect.isfunction)]


class Everything(Observer):
    """Remembers the names of what it is told."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        if name in EVENTS:
            return lambda *_, **__: self.heard.append(name)
        return super().__getattribute__(name)


def tell(observer: Observer, event: str) -> None:
    keywords = inspect.signature(getattr(Observer, event)).parameters
    values = {name: 0 for name in keywords if name != "self"}
    getattr(observer, event)(**values)


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("make", [PassingOn, lambda one: Observers([one])], ids=["passing on", "several"])
def test_everything_is_passed_on(make, event):
    listener = Everything()
    tell(make(listener), event)
    assert listener.heard == [event]


@pytest.mark.parametrize("display", [LineDisplay, NotebookDisplay, SearchDisplay, TerminalDisplay])
def test_every_display_listens_to_everything(display):
    assert [event for event in EVENTS if getattr(display, event) is getattr(Observer, event)] == []


def test_a_tracker_hears_notes_as_any_observer_does():
    """Trackers have methods of their own, and none of them may hide one of the observer's."""
    for name in trackers.registry:
        tracker = trackers.registry.get(name)
        for event in EVENTS:
            expected = list(inspect.signature(getattr(Observer, event)).parameters)
            assert list(inspect.signature(getattr(tracker, event)).parameters) == expected, (name, event)
