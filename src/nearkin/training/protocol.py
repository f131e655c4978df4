"""What a protocol is: which classes train, which select, and what becomes of the networks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from nearkin.data import DataSet, SampleSet
from nearkin.evaluation import RetrievalScores
from nearkin.networks.embedder import Embedder
from nearkin.observer import Observer
from nearkin.registry import Registry
from nearkin.training.result import NetworkResult
from nearkin.training.run import Run
from nearkin.training.task import Task

Scorer = Callable[[Embedder], RetrievalScores]
"""Scores a network on classes that training is not given."""


class Protocol(ABC):
    """How a run is selected and tested.

    A protocol trains, and is never given the test split: ``data.test`` is ``None``. Afterwards
    :func:`nearkin.protocols.execute` opens the test split, once, for all the networks that it returns, and
    writes the result of each.

    Attributes:
        test_chooses_epoch: Whether training is told the test scores of every epoch, as that of
            ``standard_best_on_test`` is. Reports warn of the scores of such a protocol.
    """

    test_chooses_epoch: ClassVar[bool] = False

    @property
    def networks(self) -> int:
        """How many networks it trains, one after the other."""
        return 1

    def arrange(self, data: DataSet, seed: int) -> DataSet:
        """The data set in the splits that the protocol is about; as it is, for most."""
        return data

    @abstractmethod
    def train(
        self, task: Task, run: Run, data: DataSet, observer: Observer, score_test: Scorer | None = None
    ) -> list[NetworkResult]:
        """Carry out a task, going on where it stopped; one entry per network to be tested."""

    def split(self, data: DataSet, seed: int) -> tuple[SampleSet, SampleSet | None]:
        """The samples that the runs of this protocol learn from, and those that select, if there are any.

        Raises:
            ValueError: The data has too few classes for it; the message names the key to change.
        """
        return data.all_classes, None

    def taught_by(self, data: DataSet, seed: int) -> SampleSet:
        """The samples that the network that is tested has learnt from."""
        return self.split(data, seed)[0]

    def fewest(self, data: DataSet, seed: int) -> SampleSet:
        """The samples of the training with the fewest classes: every batch must fit into it as well."""
        return self.split(data, seed)[0]


registry: Registry[Protocol] = Registry("protocol")
register = registry.register
names = registry.names


def chooses_on_test(name: str) -> bool:
    """Whether the protocol of this name chooses epochs on the test classes; one that is not known does not.

    >>> import nearkin.protocols
    >>> chooses_on_test("standard_best_on_test"), chooses_on_test("standard")
    (True, False)
    """
    return name in registry and bool(getattr(registry.get(name), "test_chooses_epoch", False))
