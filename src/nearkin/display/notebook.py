"""Progress in a notebook: one cell output that is replaced as the work goes on."""

from __future__ import annotations

import html
import sys
import time
from typing import Any

from torch import Tensor

from nearkin.display.lines import epoch_line
from nearkin.display.pace import Clock, StagePace, TrainingPace, in_words
from nearkin.observer import Observer

_REFRESH_SECONDS = 0.5
_SHOWN_LINES = 40


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook, which can replace what a cell shows."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


class NotebookDisplay(Observer):
    """A bar with time left and, below it, the epochs and warnings so far.

    Args:
        clock: Seconds.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._pace, self._stage_pace = TrainingPace(clock), StagePace(clock)
        self._stage, self._share, self._measures = "", 0.0, ""
        self._training = False
        self._lines: list[str] = []
        self._handle: Any = None
        self._shown = -_REFRESH_SECONDS

    def stage(self, what: str) -> None:
        """Show what takes a while now."""
        if self._pace.enter_fold(what):
            self._lines.append(f"<b>{html.escape(what)}</b>")
        self._stage, self._share, self._measures = what, 0.0, ""
        self._stage_pace = StagePace(self._clock)
        self._show()

    def progress(self, done: int, total: int) -> None:
        """Move the bar of a stage."""
        left = self._stage_pace.left(done, total)
        if self._training:
            self._measures = f"embedding {done:,} of {total:,}"
        else:
            self._share = done / max(total, 1)
            self._measures = f"{done:,} of {total:,}{_left(left)}"
        self._show(seldom=True)

    def begin(self, *, epochs: int, batches: int, epoch: int, batch: int) -> None:
        """Show the training's bar."""
        self._pace.begin(epochs=epochs, batches=batches, epoch=epoch, batch=batch)
        self._training, self._stage, self._measures = True, "training", ""
        self._share = self._pace.done / max(self._pace.total, 1)
        self._show()

    def step(self, *, epoch: int, batch: int, images: int, loss: Tensor) -> None:
        """Move the training's bar, now and then: reading the loss waits for the device."""
        self._pace.step(epoch, batch, images)
        if self._clock() - self._shown < _REFRESH_SECONDS:
            return
        self._share = self._pace.done / max(self._pace.total, 1)
        rate = self._pace.rate()
        speed = "" if rate is None else f", {rate:,.0f} samples/s"
        self._measures = (
            f"epoch {epoch + 1}/{self._pace.epochs}, loss {loss.item():.4g}{speed}{_left(self._pace.left())}"
        )
        self._show()

    def epoch_end(self, row: dict[str, Any]) -> None:
        """Add the epoch's scores."""
        self._lines.append(html.escape(epoch_line(row, self._pace.epochs)))
        self._stage_pace = StagePace(self._clock)
        self._show()

    def warning(self, text: str) -> None:
        """Add what goes wrong."""
        self._lines.append(f'<span style="color:#b45309">warning: {html.escape(text)}</span>')
        self._show()

    def tell(self, text: str) -> None:
        """Show a line."""
        self._lines.append(html.escape(text))
        self._show()

    def note(self, text: str) -> None:
        """Add what is to be known about the data."""
        self._lines.append(f'<span style="color:#0e7490">note: {html.escape(text)}</span>')
        self._show()

    def end(self) -> None:
        """Take the bar away; the lines stay."""
        self._training, self._stage, self._measures = False, "", ""
        self._show()

    def _show(self, *, seldom: bool = False) -> None:
        now = self._clock()
        if seldom and now - self._shown < _REFRESH_SECONDS:
            return
        from IPython.display import HTML, display  # noqa: PLC0415  (there in a notebook only)

        self._shown = now
        picture = HTML(self._html())
        if self._handle is None:
            self._handle = display(picture, display_id=True)
        else:
            self._handle.update(picture)

    def _html(self) -> str:
        bar = ""
        if self._stage:
            bar = (
                f'<div>{html.escape(self._stage)} <progress value="{self._share:.4f}" max="1"></progress> '
                f"{html.escape(self._measures)}</div>"
            )
        older = len(self._lines) - _SHOWN_LINES
        lines = [f"… {older} lines before", *self._lines[-_SHOWN_LINES:]] if older > 0 else self._lines
        return f'{bar}<pre style="line-height:1.3">{chr(10).join(lines)}</pre>'


def _left(seconds: float | None) -> str:
    return "" if seconds is None else f", {in_words(seconds)} left"
