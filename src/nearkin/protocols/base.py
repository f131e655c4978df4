"""What a protocol is: which classes train, which select, and what becomes of the networks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from nearkin.data import SampleSet
from nearkin.protocols.opened import Opened
from nearkin.protocols.training_data import TrainingData
from nearkin.registry import Registry
from nearkin.training import Observer, Recipe, Run, Trained


@dataclass(frozen=True)
class Learnt:
    """One training of a protocol.

    Attributes:
        run: Its directory.
        trained: The network of the chosen epoch.
        images: What it learnt from.
        validation: What its epoch was selected on, where validation classes were held out.
        rule: How the epoch was selected, in words.
    """

    run: Run
    trained: Trained
    images: SampleSet
    validation: SampleSet | None
    rule: str


class Protocol(ABC):
    """How a run is selected and tested.

    A protocol trains, and is never given the test split. Whoever executes it opens the test split afterwards,
    once, for all the networks that it leaves, and writes the result of each.

    Attributes:
        test_chooses_epoch: Whether training is told the test scores of every epoch. Only
            ``standard_best_on_test`` is, and its results say so.
    """

    test_chooses_epoch: ClassVar[bool] = False

    @abstractmethod
    def train(self, run: Run, data: TrainingData, observer: Observer) -> list[Learnt]:
        """Train the run's recipe, going on where it stopped; one entry per network to be tested."""

    def conclude(self, run: Run, learnt: Sequence[Learnt], opened: Sequence[Opened]) -> Opened:
        """Finish a run whose networks are tested; returns what its pictures show.

        A run with one network is finished when its network is.
        """
        return opened[0]


registry: Registry[Protocol] = Registry("protocol")
register = registry.register
names = registry.names


def selects_on_test(recipe: Recipe) -> bool:
    """Whether the test classes choose the epoch: whoever shows the scores of such a recipe should say so."""
    return registry.build(recipe.protocol.name).test_chooses_epoch
