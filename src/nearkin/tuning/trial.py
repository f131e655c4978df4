"""One trial of a search: a training that is scored on validation classes and given up when hopeless."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from nearkin.protocols.fixed_validation import fixed_splits
from nearkin.protocols.training_data import TrainingData, as_trained_on
from nearkin.training import Observer, Run, train

Report = Callable[[int, float], bool]
"""Told an epoch and its validation score; answers whether the trial is hopeless."""


@dataclass(frozen=True)
class Outcome:
    """What a trial came to.

    Attributes:
        score: The first Recall@k on the validation classes, of the best epoch; of the last if given up.
        epoch: Which epoch that is.
        given_up: Whether the trial was hopeless.
    """

    score: float
    epoch: int
    given_up: bool = False


def run_trial(run: Run, data: TrainingData, report: Report, observer: Observer) -> Outcome:
    """Train a run on some of the training classes and score it on the others, going on where it stopped.

    What is left in its directory are recipe and metrics: a search has many trials, and weights are large.
    """
    run.remove_leftovers()
    watch = _Watch(f"recall_at_{run.recipe.evaluation.recall_at[0]}", report, observer)
    images, validation = fixed_splits(run.recipe, as_trained_on(run.recipe, data, observer))
    try:
        for row in run.metrics():  # of a trial that was killed: whoever judges it should know its past
            watch.judge(row)
        trained = train(run, images, validation, watch)
        assert trained.validation is not None
        outcome = Outcome(trained.validation[watch.key], trained.epoch)
    except _HopelessError:
        outcome = Outcome(watch.score, watch.epoch, given_up=True)
    return outcome


def forget_weights(run: Run) -> None:
    """Leave recipe and metrics only."""
    shutil.rmtree(run.path / "checkpoint", ignore_errors=True)


class _HopelessError(Exception):
    """Ends a training that is not worth going on with."""


class _Watch(Observer):
    """Reports every epoch once, and stops the training when told so; everything else is passed on."""

    def __init__(self, key: str, report: Report, observer: Observer) -> None:
        self.key, self._report, self._observer = key, report, observer
        self.epoch, self.score = 0, 0.0

    def judge(self, row: dict[str, Any]) -> None:
        """Report an epoch's line; a training that goes on from a checkpoint may come by an epoch again."""
        if row["epoch"] <= self.epoch:
            return
        self.epoch, self.score = row["epoch"], row[self.key]
        if self._report(self.epoch, self.score):
            raise _HopelessError

    def begin(self, *, epochs: int, batches: int, epoch: int, batch: int) -> None:
        self._observer.begin(epochs=epochs, batches=batches, epoch=epoch, batch=batch)

    def step(self, *, epoch: int, batch: int, images: int, loss: Tensor) -> None:
        self._observer.step(epoch=epoch, batch=batch, images=images, loss=loss)

    def epoch_end(self, row: dict[str, Any]) -> None:
        self._observer.epoch_end(row)
        self.judge(row)

    def stage(self, what: str) -> None:
        self._observer.stage(what)

    def end(self) -> None:
        self._observer.end()
