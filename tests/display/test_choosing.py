from __future__ import annotations

import io
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from rich.console import Console

from nearkin.display import LineDisplay, observer_for
from nearkin.observer import Observer


@dataclass
class Trial:
    number: int
    score: float | None = 0.5
    state: str = "done"
    values: dict = field(default_factory=lambda: {"optimizer.lr": 0.1})
    epoch: int = 3
    error: str | None = None


SEARCH = SimpleNamespace(
    records=lambda: [Trial(0)],
    plan=SimpleNamespace(recipe=SimpleNamespace(training=SimpleNamespace(epochs=4))),
)


def test_an_observer_is_taken_as_it_is():
    mine = Observer()
    assert observer_for(mine) is mine


def test_off_a_terminal_there_are_lines():
    assert isinstance(observer_for(True, on=Console(file=io.StringIO())), LineDisplay)


@pytest.mark.parametrize("search", [None, SEARCH])
def test_no_progress_is_silent(search, capfd):
    display = observer_for(False, search=search)
    display.stage("opening data")
    display.warning("something")
    if search is not None:
        display.search_begin(3)
        display.trial_end(Trial(1))
        display.search_end()
    display.end()
    assert capfd.readouterr() == ("", "")


def test_of_several_processes_the_first_one_talks(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert type(observer_for(True)) is Observer
    monkeypatch.setenv("RANK", "0")
    assert type(observer_for(True)) is not Observer


def test_colours_in_a_log_file_are_no_terminal(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert isinstance(observer_for(True, on=Console(file=io.StringIO())), LineDisplay)


def test_a_search_is_a_line_per_trial_and_then_its_training():
    out = io.StringIO()
    display = observer_for(True, search=SEARCH, on=Console(file=out, width=200))
    display.search_begin(3)
    display.stage("opening data")  # of a trial
    display.epoch_end({"epoch": 1, "lr": 0.1, "loss": 1.0})
    display.trial_end(Trial(1, score=0.25))
    display.trial_end(Trial(2, score=None, state="failed", error="no [memory]"))
    display.search_end()
    display.stage("building convnet")
    lines = out.getvalue().splitlines()
    assert lines[0] == "searching: 3 trials, 1 of them done"
    assert lines[1].startswith("trial   1  25.00  lr 0.1")
    assert lines[2].startswith("trial   2         lr 0.1  failed: no [memory]")
    assert lines[3:] == ["building convnet"]


def test_anybodys_observer_listens_to_a_search():
    heard = []

    class Mine(Observer):
        def trial_end(self, trial: Trial) -> None:
            heard.append(trial.number)

    display = observer_for(Mine(), search=SEARCH)
    display.search_begin(1)
    display.trial_end(Trial(7))
    display.search_end()
    assert heard == [7]
