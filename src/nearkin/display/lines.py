"""Progress off a terminal: a line per stage and epoch, for pipes, log files and batch systems."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from torch import Tensor

from nearkin.display.pace import Clock, StagePace, TrainingPace, in_words
from nearkin.observer import Observer

_SECONDS_BETWEEN = 30.0  # lines of one stage or epoch
_SECONDS_AT_LEAST = 3.0  # between two of them, however fast it goes
_SHARE_BETWEEN = 0.1


def epoch_line(row: dict[str, Any], epochs: int) -> str:
    """An epoch's loss and scores.

    >>> epoch_line({"epoch": 3, "lr": 0.1, "loss": 2.5, "recall_at_1": 0.5, "map_at_r": 0.25}, 12)
    'epoch  3/12  loss 2.5000  Recall@1 50.00  MAP@R 25.00'
    """
    of = f"/{epochs}" if epochs else ""
    parts = [f"epoch {row['epoch']:2d}{of}", f"loss {row['loss']:.4f}" if "loss" in row else "untrained"]
    parts += [
        f"Recall@{key.removeprefix('recall_at_')} {100 * value:.2f}"
        for key, value in row.items()
        if key.startswith("recall_at_")
    ]
    if "map_at_r" in row:
        parts.append(f"MAP@R {100 * row['map_at_r']:.2f}")
    return "  ".join(parts)


class LineDisplay(Observer):
    """Writes a line when a stage begins and when an epoch ends, and in between every half a minute.

    Args:
        console: Where lines go; each one at once.
        warnings: Where warnings go: standard error, so that they do not disturb a result.
        clock: Seconds.
    """

    def __init__(
        self, console: Console, warnings: Console | None = None, clock: Clock = time.monotonic
    ) -> None:
        self._console = console
        self._warnings = warnings or Console(stderr=True, soft_wrap=True, highlight=False)
        self._clock = clock
        self._pace = TrainingPace(clock)
        self._training = False
        self._enter("")

    def _enter(self, stage: str) -> None:
        self._stage, self._stage_pace = stage, StagePace(self._clock)
        self._said, self._said_share = self._clock(), 0.0

    def _say(self, line: str) -> None:
        print(line, file=self._console.file, flush=True)
        self._said = self._clock()

    def _is_due(self, share: float) -> bool:
        silent = self._clock() - self._said
        if silent >= _SECONDS_BETWEEN:
            return True
        return share - self._said_share >= _SHARE_BETWEEN and silent >= _SECONDS_AT_LEAST

    def stage(self, what: str) -> None:
        """Say what takes a while now."""
        self._pace.enter_fold(what)
        self._say(what)
        self._enter(what)

    def progress(self, done: int, total: int) -> None:
        """Say how far the stage is, now and then."""
        left = self._stage_pace.left(done, total)
        share = done / max(total, 1)
        if done >= total or not self._is_due(share):
            return
        self._said_share = share
        what = "embedding" if self._training else self._stage
        self._say(f"  {what}: {done:,} of {total:,} ({share:.0%}){_left(left)}")

    def begin(self, *, epochs: int, batches: int, epoch: int, batch: int) -> None:
        """Say that training begins, and where."""
        self._pace.begin(epochs=epochs, batches=batches, epoch=epoch, batch=batch)
        at = f", going on after epoch {epoch}, batch {batch}" if epoch or batch else ""
        number = "1 epoch" if epochs == 1 else f"{epochs} epochs"
        self._say(f"training: {number} of {batches:,} {'batch' if batches == 1 else 'batches'}{at}")
        self._enter("")
        self._training = True

    def step(self, *, epoch: int, batch: int, images: int, loss: Tensor) -> None:
        """Say how far a long epoch is."""
        self._pace.step(epoch, batch, images)
        share = batch / max(self._pace.batches, 1)
        if share < 1 and self._clock() - self._said >= _SECONDS_BETWEEN:
            self._say(
                f"  epoch {epoch + 1}: batch {batch:,} of {self._pace.batches:,}, loss {loss.item():.4g}"
                f"{_left(self._pace.left())}"
            )

    def epoch_end(self, row: dict[str, Any]) -> None:
        """Say what came of the epoch."""
        rate = self._pace.rate()
        speed = "" if rate is None else f"  {rate:,.0f} samples/s"
        self._say(f"{epoch_line(row, self._pace.epochs)}{speed}{_left(self._pace.left())}")
        self._stage_pace = StagePace(self._clock)

    def warning(self, text: str) -> None:
        """Say what goes wrong, at once."""
        print(f"warning: {text}", file=self._warnings.file, flush=True)

    def tell(self, text: str) -> None:
        """Print a line."""
        self._say(text)

    def note(self, text: str) -> None:
        """Say what is to be known about the data."""
        self._say(f"note: {text}")

    def end(self) -> None:
        """Training is over."""
        self._training = False


def _left(seconds: float | None) -> str:
    return "" if seconds is None else f", {in_words(seconds)} left"
