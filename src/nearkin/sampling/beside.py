"""Batches of two parts: samples with a label by one sampler, samples without by another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from nearkin.sampling.base import PlannedSampler

_UNKNOWN = -1


class LabelledBesideUnlabelled(PlannedSampler):
    """Each batch has labelled samples, and behind them samples without a label.

    An epoch is one of the labelled samples' sampler, exactly as it would be alone; a batch of the other
    sampler joins each of its batches, and that one goes through its own epochs at its own pace, from where it
    was. Where no sample has a label, an epoch is one of the samples without.

    Args:
        labels: The class of every sample, ``(N,)``, -1 where it is not known.
        labelled: The sampler of the samples with a label, in their order; ``None`` where there are none.
        unlabelled: That of the samples without, in their order; ``None`` where there are none. All its
            batches have the same size.
        seed, rank, world_size: As in :class:`~nearkin.sampling.base.PlannedSampler`; the two samplers
            themselves plan for one process.

    >>> from nearkin.sampling import RandomSampler
    >>> labels = torch.tensor([0, -1, 0, -1, -1])
    >>> two, three = RandomSampler([0, 0], batch_size=2), RandomSampler([0] * 3, batch_size=1)
    >>> sampler = LabelledBesideUnlabelled(labels, two, three)
    >>> batches = [batch for epoch in range(3) for batch in sampler.plan(epoch)]
    >>> [sorted(batch[:2].tolist()) for batch in batches], sorted(int(batch[2]) for batch in batches)
    ([[0, 2], [0, 2], [0, 2]], [1, 3, 4])
    """

    def __init__(
        self,
        labels: Tensor | Sequence[int],
        labelled: PlannedSampler | None,
        unlabelled: PlannedSampler | None,
        *,
        seed: int = 0,
        rank: int | None = 0,
        world_size: int | None = 1,
    ) -> None:
        self.parts = [part for part in (labelled, unlabelled) if part is not None]
        if not self.parts:
            raise ValueError("there are neither samples with a label nor samples without")
        super().__init__(
            labels,
            batch_size=sum(part.batch_size for part in self.parts),
            seed=seed,
            rank=rank,
            world_size=world_size,
        )
        known = self.labels != _UNKNOWN
        self.labelled, self.unlabelled = labelled, unlabelled
        self.rows = known.nonzero().flatten(), (~known).nonzero().flatten()
        for part, rows, what in zip((labelled, unlabelled), self.rows, ("with", "without"), strict=True):
            samples = 0 if part is None else len(part.labels)
            if samples != len(rows):
                raise ValueError(f"a sampler of {samples} samples, but {len(rows)} are {what} a label")
        if unlabelled is not None and len({*unlabelled.batch_sizes}) != 1:
            raise ValueError("the batches of samples without a label must all have the same size")
        # Not all samples without a label come in every epoch, which is as it should be.
        self.batches = len((labelled or self.parts[0]).batch_sizes)

    def _planned_sizes(self) -> list[int]:
        beside = 0 if self.unlabelled is None else self.unlabelled.batch_sizes[0]
        sizes = [0] * self.batches if self.labelled is None else self.labelled.batch_sizes
        return [size + beside for size in sizes]

    def _planned(self, generator: torch.Generator) -> Tensor:
        raise NotImplementedError("a plan of two samplers follows from the number of its epoch")

    def _images_of(self, epoch: int) -> Tensor:
        with_label, without = self.rows
        first = [] if self.labelled is None else [with_label[batch] for batch in self.labelled.plan(epoch)]
        second = [without[batch] for batch in self._beside(epoch)]
        if not first or not second:
            return torch.cat(first or second)
        return torch.cat([part for both in zip(first, second, strict=True) for part in both])

    def _beside(self, epoch: int) -> list[Tensor]:
        """The batches without labels of an epoch: those that follow on the epoch before."""
        if self.unlabelled is None:
            return []
        length = len(self.unlabelled)
        first = epoch * self.batches
        last = first + self.batches - 1
        own = [
            batch for one in range(first // length, last // length + 1) for batch in self.unlabelled.plan(one)
        ]
        return own[first % length :][: self.batches]

    def needs_embeddings(self, epoch: int) -> bool:
        """Whether one of the two asks for embeddings; then both are given them."""
        return any(part.needs_embeddings(epoch) for part in self.parts)

    def refresh(self, embeddings: Tensor) -> None:
        """Hand each sampler the embeddings of its samples."""
        units = self._checked_embeddings(embeddings)
        for part, rows in zip((self.labelled, self.unlabelled), self.rows, strict=True):
            if part is not None:
                part.refresh(units[rows])

    @property
    def clusters(self) -> Tensor | None:
        """The cluster of every sample without a label, ``(N,)``; -1 for the others."""
        found = None if self.unlabelled is None else self.unlabelled.clusters
        if found is None:
            return None
        clusters = torch.full_like(self.labels, -1)
        clusters[self.rows[1]] = found
        return clusters

    def tensors(self) -> dict[str, Tensor]:
        """What both noted."""
        return {
            f"{name}.{key}": tensor
            for name, part in self._named().items()
            for key, tensor in part.tensors().items()
        }

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Take back what ``tensors`` gave."""
        for name, part in self._named().items():
            own = {
                key.removeprefix(f"{name}."): value
                for key, value in tensors.items()
                if key.startswith(f"{name}.")
            }
            part.load_tensors(own)

    def _named(self) -> dict[str, Any]:
        both = {"labelled": self.labelled, "unlabelled": self.unlabelled}
        return {name: part for name, part in both.items() if part is not None}
