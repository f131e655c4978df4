"""How the runs of a plan get on, for people: a live table in a terminal, elsewhere lines."""

from __future__ import annotations

import time
from collections import Counter

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from nearkin.benchmark.progress import Board, BoardObserver, RunProgress
from nearkin.display.console import console
from nearkin.training import Result

_BAR = 20
_SILENCE = 30.0  # seconds, off a terminal


class BoardDisplay(BoardObserver):
    """A live table in a terminal; elsewhere a line for every run that ends, and one after a long silence."""

    def __init__(self) -> None:
        self._live: Live | None = None
        self._spoke = time.monotonic()

    def begin(self, board: Board) -> None:
        """Start the live table."""
        if console.is_terminal:
            self._live = Live(_table(board), console=console, refresh_per_second=4, transient=True)
            self._live.start()

    def look(self, board: Board) -> None:
        """Draw the table anew, or say how far the runs are if nothing has been said for long."""
        if self._live is not None:
            self._live.update(_table(board))
        elif time.monotonic() - self._spoke >= _SILENCE:
            self._spoke = time.monotonic()
            console.print(_at_work(board), soft_wrap=True)

    def ended(self, board: Board, progress: RunProgress) -> None:
        """Print a line above the table."""
        self._spoke = time.monotonic()
        ended = len(board.in_state("done", "failed"))
        console.print(_line(progress, f"{ended}/{len(board.runs)}"))

    def end(self, board: Board) -> None:
        """Take the table away."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def _line(progress: RunProgress, count: str) -> Text:
    result = progress.result
    if result is not None:
        pairs = result.verification
        told = "Recall@{} {:.2f}".format(*first_recall(result))
        told = told if pairs is None else f"ROC AUC {100 * pairs.verification.roc_auc:.2f}"
        outcome = Text(told, "cyan")
    elif progress.told:
        outcome = Text(progress.told, "cyan")
    else:
        outcome = Text(f"failed: {progress.reason}", "red")
    took = "" if progress.seconds is None else f"  {duration(progress.seconds)}"
    return Text.assemble((count, "dim"), f"  {progress.planned.name}  ", outcome, (took, "dim"))


def first_recall(result: Result) -> tuple[int, float]:
    """The first k, and Recall@k in per cent."""
    k, recall = next(iter(result.test.recall_at.items()))
    return k, 100 * recall


def _table(board: Board) -> RenderableType:
    """The runs that are at work, with a line that counts all."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for justify in ("left", "left", "right", "right"):
        table.add_column(justify=justify, no_wrap=True)
    for progress in board.in_state("running", "elsewhere"):
        filled = round(_BAR * progress.epoch / progress.epochs)
        left = progress.seconds_left()
        table.add_row(
            progress.planned.name,
            Text("━" * filled, "cyan") + Text("━" * (_BAR - filled), "dim"),
            f"epoch {progress.epoch}/{progress.epochs}",
            "by another process" if progress.state == "elsewhere" else "" if left is None else duration(left),
        )
    return Group(table, Text(_counts(board), "bold"))


def _at_work(board: Board) -> Text:
    """One line: what is being worked on, and how much is left."""
    running = [
        f"{progress.planned.name} epoch {progress.epoch}/{progress.epochs}"
        for progress in board.in_state("running")
    ]
    return Text(" · ".join([*running, _counts(board)]), "dim")


def _counts(board: Board) -> str:
    counts = Counter(progress.state for progress in board.runs)
    parts = [
        f"{counts[state]} {state}"
        for state in ("running", "elsewhere", "done", "failed", "waiting")
        if counts[state]
    ]
    left = board.seconds_left()
    return " · ".join(
        [*parts, "estimating the time left" if left is None else f"about {duration(left)} left"]
    )


def duration(seconds: float) -> str:
    """Seconds in words.

    >>> duration(42), duration(200), duration(9000)
    ('42 s', '3 min 20 s', '2 h 30 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
