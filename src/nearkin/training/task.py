"""Everything a training needs, as objects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from nearkin.data import DataSet, SampleSet
from nearkin.losses.base import Loss
from nearkin.networks.embedder import Embedder
from nearkin.observer import Observer
from nearkin.sampling.base import PlannedSampler
from nearkin.training.run import Description
from nearkin.training.schedules import Schedule
from nearkin.training.settings import TrainingSettings
from nearkin.unlabelled import Method

if TYPE_CHECKING:
    from nearkin.training.protocol import Protocol as SelectionProtocol
    from nearkin.training.run import Run


class LossMaker(Protocol):
    """Makes the loss of one training."""

    def __call__(
        self, samples: SampleSet, embedding_dim: int, generator: torch.Generator, observer: Observer
    ) -> Loss:
        """A new loss for these training samples; ``generator`` draws its proxies and random mining."""
        ...


class SamplerMaker(Protocol):
    """Makes the batch sampler of one training."""

    def __call__(
        self, labels: Tensor, *, seed: int, rank: int, world_size: int, pairs: Tensor | None = None
    ) -> PlannedSampler:
        """A new sampler over samples with these labels; ``pairs`` ``(P, 3)`` where such are known."""
        ...


OptimizerMaker = Callable[[list[dict[str, Any]]], Optimizer]
"""From parameter groups, each with its learning rate, to an optimiser."""


@dataclass(frozen=True)
class LearningRates:
    """Peak learning rates of the parts of a training.

    Attributes:
        network: Of the last block below the head.
        head: Of the head and the pooling.
        loss: Of proxies and whatever else the loss learns.
        decay: Factor from one block of the network to the one before it.
    """

    network: float
    head: float
    loss: float
    decay: float = 1.0


@dataclass(frozen=True)
class Task:
    """What is trained, on what, how, and how it is selected and tested: objects, no names.

    Made by ``recipe.build()``, or by :func:`nearkin.train` from anybody's objects. A task is not changed by
    being carried out: every training copies its network and makes its own loss.

    Attributes:
        data: The data set, or what opens it.
        embedder: The network and how it sees samples.
        loss: Makes the loss of a training.
        sampler: Makes the batch sampler of a training.
        optimizer: Makes the optimiser.
        rates: Peak learning rates.
        schedule: How they change.
        protocol: Which classes train, which select, and what becomes of the networks.
        settings: How long, in which precision, scored by what.
        seed: The seed of everything random.
        pretrained: Whether the network knows something before it is trained.
        unlabelled: How samples without a label are learnt from; ``None`` to leave them out.
        trackers: Make observers that send the metrics elsewhere.
        description: The same in words: what a run directory and a result say about it.
        disclosure: Everything a score depends on, in the words of a methods section.
        audit: Whether every epoch is scored on the test classes after the selection.
    """

    data: DataSet
    embedder: Embedder
    loss: LossMaker
    sampler: SamplerMaker
    optimizer: OptimizerMaker
    rates: LearningRates
    schedule: Schedule
    protocol: SelectionProtocol
    settings: TrainingSettings = field(default_factory=TrainingSettings)
    seed: int = 0
    pretrained: bool = False
    unlabelled: Method | None = None
    trackers: tuple[Callable[[Run], Observer], ...] = ()
    description: Description = field(default_factory=Description)
    disclosure: dict[str, Any] = field(default_factory=dict)
    audit: bool = False

    def batches(self, samples: SampleSet, *, rank: int = 0, world_size: int = 1) -> PlannedSampler:
        """A new batch sampler over samples; one that looks at pairs is given those that are known."""
        known = samples.pairs
        if known is None:
            return self.sampler(samples.labels, seed=self.seed, rank=rank, world_size=world_size)
        pairs = torch.cat([known.pairs, known.same.long()[:, None]], dim=1)
        return self.sampler(samples.labels, seed=self.seed, rank=rank, world_size=world_size, pairs=pairs)

    def learnt(self, samples: SampleSet) -> SampleSet:
        """Those of a split's samples that are learnt from: all, or those with a label.

        Raises:
            ValueError: None has a label, and nothing learns without.
        """
        if self.unlabelled is not None:
            return samples
        if samples.num_classes == 0:
            raise ValueError(
                "no training sample has a label: say how to learn without, unlabelled.name=instance, "
                "pseudo_labels or stml"
            )
        return samples.labelled_part()
