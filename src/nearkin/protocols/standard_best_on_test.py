"""The field's habit, by its name: test after every epoch and report the best."""

from __future__ import annotations

from nearkin.protocols.base import Learnt, Protocol, register
from nearkin.protocols.training_data import TrainingData
from nearkin.training import Observer, Run, train


@register("standard_best_on_test")
class StandardBestOnTest(Protocol):
    """All classes that are not for testing train; the TEST classes are scored every epoch and choose one.

    Its scores are too good: the maximum over epochs follows the noise of the test classes. Published tables
    are full of them, so a reproduction needs it; anything else should not.
    """

    test_chooses_epoch = True

    def train(self, run: Run, data: TrainingData, observer: Observer) -> list[Learnt]:
        """One training on all classes; it is told the test scores, and never given the images."""
        if data.test_scorer is None:
            raise ValueError("standard_best_on_test selects on the test classes, and nobody unsealed them")
        images = data.all_classes
        trained = train(run, images, data.test_scorer, observer)
        rule = "best epoch on TEST classes: the test classes chose the epoch, so their score is too good"
        return [Learnt(run, trained, images, None, rule)]
