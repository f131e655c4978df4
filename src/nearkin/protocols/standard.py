"""The standard protocol: all classes that are not for testing train, and the last epoch counts."""

from __future__ import annotations

from dataclasses import replace

from nearkin.data import DataSet
from nearkin.observer import Observer
from nearkin.training import NetworkResult, Protocol, Run, Scorer, Task, train
from nearkin.training.protocol import register


@register("standard")
class Standard(Protocol):
    """Half of the classes train and half of them test; no validation, the last epoch counts.

    Song, Xiang, Jegelka, Savarese. Deep Metric Learning via Lifted Structured Feature Embedding. CVPR 2016;
    without the habit that grew around it of taking the best epoch on the test classes. A recipe that was
    found by a search on validation classes stops where they advised (``training.stop_after``).
    """

    def train(
        self, task: Task, run: Run, data: DataSet, observer: Observer, score_test: Scorer | None = None
    ) -> list[NetworkResult]:
        """One training on all classes."""
        trained = train(task, run, task.embedder.copy(), data.all_classes, observer=observer)
        stop_after = task.settings.stop_after
        rule = "last epoch" if stop_after is None else "the epoch that the recipe names, training.stop_after"
        return [replace(trained, rule=rule)]
