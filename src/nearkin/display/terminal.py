"""Progress in a terminal: a live line that says how far it is, above it what came of every epoch."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.text import Text
from torch import Tensor

from nearkin.display.lines import epoch_line
from nearkin.display.pace import Clock, StagePace, TrainingPace, in_words
from nearkin.observer import Observer

_REFRESH_SECONDS = 0.3
_WIDE = 100  # columns
_SHORT_STAGE = 0.5  # seconds for which no bar is worth drawing


class TerminalDisplay(Observer):
    """A live line: of a training epoch, batch, loss, samples per second and time left; of a stage its share.

    Args:
        console: A terminal.
        clock: Seconds.
    """

    def __init__(self, console: Console, clock: Clock = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._pace = TrainingPace(clock)
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._training = False
        self._enter("")

    def _enter(self, stage: str) -> None:
        self._stage, self._stage_pace = stage, StagePace(self._clock)
        self._entered = self._looked = self._clock()

    def _start(self, title: str, completed: int, total: int) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24 if self._console.width >= _WIDE else 8),
            MofNCompleteColumn(),
            TextColumn("{task.fields[measures]}"),
            console=self._console,
            transient=True,
        )
        self._task = self._bar.add_task(title, total=total, completed=completed, measures="")
        self._bar.start()

    def _stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _print(self, line: str | Text) -> None:
        (self._console if self._bar is None else self._bar.console).print(line, highlight=False)

    def stage(self, what: str) -> None:
        """Say what takes a while now."""
        if not self._training:
            self._stop()
        fold = self._pace.enter_fold(what)
        self._print(Text(what if fold else f"{what} …", style="bold" if fold else "dim"))
        self._enter(what)

    def progress(self, done: int, total: int) -> None:
        """Move the line of a stage that takes more than a moment."""
        left = self._stage_pace.left(done, total)
        now = self._clock()
        if now - self._looked < _REFRESH_SECONDS or now - self._entered < _SHORT_STAGE:
            return
        self._looked = now
        told = _left(left)
        if self._training:
            if self._bar is not None:
                self._bar.update(self._task, measures=f"embedding {done:,} of {total:,}")
            return
        if self._bar is None:
            self._start(f"[dim]{escape(self._stage)}[/]", done, total)
        assert self._bar is not None
        self._bar.update(self._task, completed=done, total=total, measures=told)

    def begin(self, *, epochs: int, batches: int, epoch: int, batch: int) -> None:
        """Start the live line."""
        self._stop()
        self._pace.begin(epochs=epochs, batches=batches, epoch=epoch, batch=batch)
        if epoch or batch:
            self._print(Text(f"going on after epoch {epoch}, batch {batch}", style="dim"))
        self._start("[bold]training[/]", self._pace.done, self._pace.total)
        self._training = True
        self._looked = self._clock()

    def step(self, *, epoch: int, batch: int, images: int, loss: Tensor) -> None:
        """Move the live line, a few times a second at most: reading the loss waits for the device."""
        self._pace.step(epoch, batch, images)
        if self._bar is None or self._clock() - self._looked < _REFRESH_SECONDS:
            return
        self._looked = self._clock()
        rate = self._pace.rate()
        measures = f"epoch {epoch + 1}/{self._pace.epochs}  loss {loss.item():.4g}"
        measures += "" if rate is None else f"  {rate:,.0f} samples/s"
        self._bar.update(self._task, completed=self._pace.done, measures=measures + _left(self._pace.left()))

    def epoch_end(self, row: dict[str, Any]) -> None:
        """Print the epoch's scores above the live line."""
        self._print(Text(epoch_line(row, self._pace.epochs)))
        self._stage_pace = StagePace(self._clock)
        self._entered = self._looked = self._clock()
        self._pace.rate()
        if self._training and self._bar is not None:
            self._bar.update(self._task, completed=self._pace.done)

    def warning(self, text: str) -> None:
        """Print what goes wrong above the live line."""
        self._print(Text.assemble(("warning: ", "yellow"), text))

    def tell(self, text: str) -> None:
        """Print a line above the live one."""
        self._print(Text(text))

    def note(self, text: str) -> None:
        """Print what is to be known about the data."""
        self._print(Text.assemble(("note: ", "cyan"), text))

    def end(self) -> None:
        """Take the live line away."""
        self._stop()
        self._training = False


def _left(seconds: float | None) -> str:
    return "" if seconds is None else f"  {in_words(seconds)} left"
