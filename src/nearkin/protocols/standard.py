"""The standard protocol: all classes that are not for testing train, and the last epoch counts."""

from __future__ import annotations

from nearkin.protocols.base import Learnt, Protocol, register
from nearkin.protocols.training_data import TrainingData
from nearkin.training import Observer, Run, train


@register("standard")
class Standard(Protocol):
    """Half of the classes train and half of them test; no validation, the last epoch counts.

    Song, Xiang, Jegelka, Savarese. Deep Metric Learning via Lifted Structured Feature Embedding. CVPR 2016;
    without the habit that grew around it of taking the best epoch on the test classes. A recipe that was
    found by a search on validation classes stops where they advised (``training.stop_after``).
    """

    def train(self, run: Run, data: TrainingData, observer: Observer) -> list[Learnt]:
        """One training on all classes."""
        images = data.all_classes
        trained = train(run, images, None, observer)
        stop_after = run.recipe.training.stop_after
        rule = "last epoch" if stop_after is None else "the epoch that the recipe names, training.stop_after"
        return [Learnt(run, trained, images, None, rule)]
