"""How far a training or a stage is, and how long the rest takes."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

Clock = Callable[[], float]

_FOLD = re.compile(r"fold (\d+) of (\d+)")


def in_words(seconds: float) -> str:
    """A time as people say it.

    >>> [in_words(seconds) for seconds in (0.2, 75, 3700, 200_000)]
    ['0 s', '1 min 15 s', '1 h 01 min', '2 d 7 h']
    """
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    hours = minutes // 60
    if whole < 60:
        return f"{whole} s"
    if minutes < 10:
        return f"{minutes} min {rest:02d} s"
    if hours < 1:
        return f"{minutes} min"
    return f"{hours} h {minutes % 60:02d} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


class TrainingPace:
    """How far a training is, over all of its folds.

    Attributes:
        fold: Which one, counted from 1.
        folds: How many; 1 without cross-validation.
        epochs: The number of epochs of each fold.
        batches: The number of batches of each epoch.
        done: Batches of all folds that are behind.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self.fold = self.folds = 1
        self.epochs = self.batches = self.done = 0
        self._restart()

    def _restart(self) -> None:
        self._worked = 0
        self._started = self._looked = self._clock()
        self._samples = 0

    @property
    def total(self) -> int:
        """Batches of all folds."""
        return self.folds * self.epochs * self.batches

    def enter_fold(self, stage: str) -> bool:
        """Take note of a stage such as ``fold 2 of 10``; whether it is one."""
        found = _FOLD.fullmatch(stage)
        if found is None:
            return False
        self.fold, self.folds = int(found[1]), int(found[2])
        if self.fold == 1:
            self._restart()
        return True

    def begin(self, *, epochs: int, batches: int, epoch: int, batch: int) -> None:
        """A training goes on; what was done before it, in another process, tells nothing about the pace."""
        if self.folds == 1 or self._worked == 0:
            self._restart()
        self.epochs, self.batches = epochs, batches
        self.done = self._place(epoch, batch)
        self._samples, self._looked = 0, self._clock()

    def step(self, epoch: int, batch: int, samples: int) -> None:
        """A batch is done."""
        place = self._place(epoch, batch)
        self._worked += max(place - self.done, 0)
        self.done = place
        self._samples += samples

    def _place(self, epoch: int, batch: int) -> int:
        return ((self.fold - 1) * self.epochs + epoch) * self.batches + batch

    def left(self) -> float | None:
        """Seconds until all folds are trained; ``None`` as long as nothing is known, and when they are."""
        if not self._worked or self.done >= self.total:
            return None
        return (self._clock() - self._started) / self._worked * (self.total - self.done)

    def rate(self) -> float | None:
        """Samples per second since the last question."""
        now = self._clock()
        seconds, samples = now - self._looked, self._samples
        self._looked, self._samples = now, 0
        return samples / seconds if seconds > 0 and samples else None


class StagePace:
    """How far a stage is."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._began: tuple[int, float] | None = None
        self._done = 0

    def left(self, done: int, total: int) -> float | None:
        """Seconds until ``total`` is reached, by the time since the first question."""
        now = self._clock()
        if self._began is None or done < self._done:  # another part of the stage counts from 0 again
            self._began = done, now
        self._done = done
        first, began = self._began
        return (now - began) / (done - first) * (total - done) if done > first else None
