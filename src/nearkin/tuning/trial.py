"""One trial of a search: a training that is scored on validation classes and given up when hopeless."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from nearkin.data import DataSet
from nearkin.observer import Observer, PassingOn
from nearkin.training import Run, Task, train

Report = Callable[[int, float], bool]
"""Told an epoch and its validation score; answers whether the trial is hopeless."""


@dataclass(frozen=True)
class TrialOutcome:
    """What a trial came to.

    Attributes:
        score: What selects the epoch, on the validation classes, of the best epoch; of the last if given up.
        epoch: Which epoch that is.
        map_at_r: MAP@R of that epoch, which decides between equals.
        given_up: Whether the trial was hopeless.
        steps: Batches that it was trained for, since its beginning.
        epochs: Epochs that it was trained for.
        metric: The name of the score.
    """

    score: float
    epoch: int
    map_at_r: float = 0.0
    given_up: bool = False
    steps: int = 0
    epochs: int = 0
    metric: str = "recall_at_1"


def run_trial(
    task: Task, run: Run, data: DataSet, report: Report, observer: Observer, *, until: int | None = None
) -> TrialOutcome:
    """Train a task on some of the training classes and score it on the others, going on where it stopped.

    What is left in its directory are recipe and metrics: a search has many trials, and weights are large.

    Args:
        task: The task of the trial.
        run: Its directory.
        data: What may be learnt from, without test classes, as the network's trunk sees it.
        report: Hears every epoch's score.
        observer: Hears everything, warnings too.
        until: The epoch to end with, by default the last; called again with a later one, it goes on.
    """
    if until is not None:
        task = replace(task, settings=replace(task.settings, stop_after=until))
    run.remove_leftovers()
    watch = _Watch(task.settings.selection_keys[0], report, observer)
    samples, validation = task.protocol.split(data, task.seed)
    try:
        for row in run.metrics():  # of a trial that was killed: whoever judges it should know its past
            watch.judge(row)
        trained = train(task, run, task.embedder.copy(), samples, validation=validation, observer=watch)
    except _HopelessError:
        return TrialOutcome(
            watch.score,
            watch.epoch,
            given_up=True,
            steps=watch.steps,
            epochs=watch.epoch,
            metric=watch.key,
        )
    assert trained.validation is not None
    assert trained.epoch is not None
    score = next(float(row[watch.key]) for row in run.metrics() if row["epoch"] == trained.epoch)
    return TrialOutcome(
        score,
        trained.epoch,
        trained.validation.map_at_r,
        steps=watch.steps,
        epochs=watch.epoch,
        metric=watch.key,
    )


def forget_weights(run: Run) -> None:
    """Leave recipe and metrics only."""
    shutil.rmtree(run.path / "checkpoint", ignore_errors=True)


class _HopelessError(Exception):
    """Ends a training that is not worth going on with."""


class _Watch(PassingOn):
    """Reports every epoch once, and stops the training when told so; everything else is passed on."""

    def __init__(self, key: str, report: Report, observer: Observer) -> None:
        super().__init__(observer)
        self.key, self._report = key, report
        self.epoch, self.score, self._batches = 0, 0.0, 0

    @property
    def steps(self) -> int:
        """Batches so far, of this training and those that it goes on from."""
        return self.epoch * self._batches

    def begin(self, *, epochs: int, batches: int, epoch: int, batch: int) -> None:
        """Pass on, and remember how many batches an epoch has."""
        self._batches = batches
        super().begin(epochs=epochs, batches=batches, epoch=epoch, batch=batch)

    def judge(self, row: dict[str, Any]) -> None:
        """Report an epoch's line; a training that goes on from a checkpoint may come by an epoch again."""
        if row["epoch"] <= self.epoch:
            return
        self.epoch, self.score = row["epoch"], row[self.key]
        if self._report(self.epoch, self.score):
            raise _HopelessError

    def epoch_end(self, row: dict[str, Any]) -> None:
        """Pass on, and judge."""
        super().epoch_end(row)
        self.judge(row)
