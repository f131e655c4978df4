"""The field's habit, by its name: test after every epoch and report the best."""

from __future__ import annotations

from dataclasses import replace

from nearkin.data import DataSet
from nearkin.observer import Observer
from nearkin.training import NetworkResult, Protocol, Run, Scorer, Task, train
from nearkin.training.protocol import register


@register("standard_best_on_test")
class StandardBestOnTest(Protocol):
    """All classes that are not for testing train; the TEST classes are scored every epoch and choose one.

    Its scores are too good: the maximum over epochs follows the noise of the test classes. Published tables
    are full of them, so a reproduction needs it; anything else should not.
    """

    test_chooses_epoch = True

    def train(
        self, task: Task, run: Run, data: DataSet, observer: Observer, score_test: Scorer | None = None
    ) -> list[NetworkResult]:
        """One training on all classes; it is told the test scores, and never given the samples."""
        if score_test is None:
            raise ValueError(
                "standard_best_on_test selects on the test classes, and cannot be used where these are not "
                "given, such as in a search"
            )
        trained = train(
            task, run, task.embedder.copy(), data.all_classes, validation=score_test, observer=observer
        )
        rule = "best epoch on TEST classes: the test classes chose the epoch, so their score is too good"
        return [replace(trained, rule=rule)]
