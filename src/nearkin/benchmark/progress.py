"""How far the runs of a plan are, and how long the rest will take."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from nearkin.benchmark.plan import PlannedRun
from nearkin.training import Result, Run
from nearkin.workers import ERROR

State = Literal["waiting", "running", "elsewhere", "done", "failed"]


@dataclass
class RunProgress:
    """How far one run is.

    Attributes:
        planned: The run.
        run: Its directory.
        state: ``elsewhere`` means that another process trains it.
        epoch: Epochs done.
        reason: Why it failed, in one line.
        result: What it found out, if it is done.
        seconds: How long this benchmark worked on it; ``None`` if it has not, or has not finished.
        told: What came of it, in a few words, where that is no result.
    """

    planned: PlannedRun
    run: Run
    state: State = "waiting"
    epoch: int = 0
    reason: str = ""
    result: Result | None = None
    seconds: float | None = None
    told: str = ""
    _began: float | None = field(default=None, repr=False)
    _began_epoch: int = field(default=0, repr=False)

    @property
    def epochs(self) -> int:
        """Epochs in all, of every fold if there are several."""
        return self.planned.epochs

    @property
    def error_file(self) -> Path:
        """Where a failed run's error is kept."""
        return self.run.path / ERROR

    def begin(self) -> None:
        """The run is being worked on from now on."""
        self.look()
        self.state, self.reason = "running", ""
        self._began, self._began_epoch = time.monotonic(), self.epoch

    def leave(self) -> None:
        """Another process works on the run."""
        self.state, self._began = "elsewhere", None

    def fail(self, reason: str) -> None:
        """The run has failed."""
        self.look()
        self.state, self.reason, self.seconds = "failed", reason, self.seconds_so_far

    def finish_if_done(self) -> bool:
        """Whether the run has a result, which ends it."""
        self.look()
        if self.run.finished:
            self.result = self.run.result
            self.state, self.seconds = "done", self.seconds_so_far
        return self.result is not None

    def look(self) -> None:
        """Read how far the run is from its metrics."""
        folds = [Run(path.parent, self.run.description) for path in self.run.path.glob("*/metrics.jsonl")]
        self.epoch = sum(max(0, len(run.metrics()) - 1) for run in [self.run, *folds])

    @property
    def seconds_so_far(self) -> float | None:
        """How long this benchmark has been working on the run."""
        return None if self._began is None else time.monotonic() - self._began

    def seconds_left(self) -> float | None:
        """Of a run that is being worked on, from its pace so far."""
        done, seconds = self.epoch - self._began_epoch, self.seconds_so_far
        return None if seconds is None or done <= 0 else seconds / done * (self.epochs - self.epoch)


@dataclass
class Board:
    """How far all runs of a plan are.

    Attributes:
        runs: The runs in the plan's order.
        folder: The folder of their directories, or the address it is kept at.
        jobs: How many are worked on at a time, as far as is known.
        what: What they are called.
    """

    runs: Sequence[RunProgress]
    folder: str
    jobs: int = 1
    what: str = "runs"

    def of(self, path: Path) -> RunProgress:
        """The run in a directory."""
        return next(progress for progress in self.runs if progress.run.path == path)

    def in_state(self, *states: State) -> list[RunProgress]:
        """Those in one of the given states."""
        return [progress for progress in self.runs if progress.state in states]

    def seconds_left(self) -> float | None:
        """An estimate for the rest; ``None`` before anything can be known.

        What runs is extrapolated from its own pace. What waits is expected to take what the runs of this
        benchmark took on average, or, before one is finished, what the running ones will.
        """
        running = self.in_state("running")
        left = [progress.seconds_left() for progress in running]
        expected = [
            progress.seconds for progress in self.in_state("done") if progress.seconds is not None
        ] or [
            rest + (progress.seconds_so_far or 0.0)
            for progress, rest in zip(running, left, strict=True)
            if rest is not None
        ]
        waiting = len(self.in_state("waiting"))
        if not expected:
            return None if running or waiting else 0.0
        average = sum(expected) / len(expected)
        rests = [average if rest is None else rest for rest in left]
        return max([*rests, (sum(rests) + average * waiting) / max(1, self.jobs)])


class BoardObserver:
    """Hears how a plan's runs get on; this one keeps silent. The command line's draws a table."""

    def begin(self, board: Board) -> None:
        """Runs are about to be started."""

    def look(self, board: Board) -> None:
        """A moment has passed."""

    def ended(self, board: Board, progress: RunProgress) -> None:
        """A run is done or has failed."""

    def end(self, board: Board) -> None:
        """Nothing is left to do, or the benchmark was broken off."""
