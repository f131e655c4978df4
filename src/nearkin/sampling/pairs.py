"""Batches of pairs that are known to match, each with a sample that is known to differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Sampler

from nearkin.sampling.base import PlannedSampler, registry, sizes_of_pieces


@registry.register("pairs")
class PairsSampler(PlannedSampler):
    """Every known match once per epoch, and beside it one that is known to differ from its group, if any is.

    For data of which pairs are known instead of classes: of a batch drawn blindly, next to nothing would be
    known. Pairs that differ, of groups without a match, come by themselves. Where a match is in the way of a
    batch's end, its two sides go to two batches.

    Args:
        labels: The group of every sample, those that matches join, ``(N,)``.
        pairs: What is known, ``(P, 3)``: two samples, and 1 for the same or 0 for different. A training on
            data of pairs hands it over; without it, the samples of each class are matched two by two.
        batch_size: Samples per batch over all ranks.
        seed, rank, world_size, drop_last, sampler: As in :class:`~nearkin.sampling.base.PlannedSampler`.

    >>> known = torch.tensor([[0, 1, 1], [2, 3, 1], [1, 2, 0]])
    >>> sampler = PairsSampler([0, 0, 1, 1], pairs=known, batch_size=3)
    >>> sorted(sorted(batch.tolist()) for batch in sampler.plan(0))
    [[0, 1, 2], [1, 2, 3]]
    """

    def __init__(
        self,
        labels: Tensor | Sequence[int],
        *,
        batch_size: int,
        pairs: Tensor | None = None,
        seed: int = 0,
        rank: int | None = 0,
        world_size: int | None = 1,
        drop_last: bool = False,
        sampler: Sampler[Any] | None = None,
    ) -> None:
        super().__init__(
            labels,
            batch_size=batch_size,
            seed=seed,
            rank=rank,
            world_size=world_size,
            drop_last=drop_last,
            sampler=sampler,
        )
        if pairs is None:
            pairs = two_by_two(self.labels)
        if pairs.ndim != 2 or pairs.shape[1] != 3 or not len(pairs):
            raise ValueError(f"pairs must be (P, 3), two samples and an answer, not {tuple(pairs.shape)}")
        self.pairs = pairs
        rows, same = pairs[:, :2].long().cpu(), pairs[:, 2].bool().cpu()
        self.matches = rows[same]
        differing = torch.cat([rows[~same], rows[~same].flip(1)])  # from either side
        order = self.labels[differing[:, 0]].argsort(stable=True)
        groups = int(self.labels.max()) + 1
        self._differs = differing[order, 1]  # by the group that they differ from
        self._counts = self.labels[differing[:, 0]].bincount(minlength=groups)
        self._starts = self._counts.cumsum(0) - self._counts
        matched = torch.zeros(groups, dtype=torch.bool)
        matched[self.labels[self.matches[:, 0]]] = True
        self.alone = rows[~same & ~matched[self.labels[rows]].any(dim=1)]
        groups_of_matches = self.labels[self.matches[:, 0]]
        with_other = int((self._counts[groups_of_matches] > 0).sum())
        self._samples = 2 * len(self.matches) + with_other + 2 * len(self.alone)
        self.batches = len(self._planned_sizes())  # not every sample comes in every epoch, as it should be

    def _planned(self, generator: torch.Generator) -> Tensor:
        groups = self.labels[self.matches[:, 0]]
        drawn = torch.rand(len(groups), generator=generator, dtype=torch.float64) * self._counts[groups]
        nobody = torch.full((len(groups),), -1)
        other = nobody
        if len(self._differs):
            places = (self._starts[groups] + drawn.long()).clamp(max=len(self._differs) - 1)
            other = torch.where(self._counts[groups] > 0, self._differs[places], nobody)
        alone = torch.cat([self.alone, torch.full((len(self.alone), 1), -1)], dim=1)
        units = torch.cat([torch.cat([self.matches, other[:, None]], dim=1), alone])
        shuffled = units[torch.randperm(len(units), generator=generator)].flatten()
        return shuffled[shuffled >= 0]

    def _planned_sizes(self) -> list[int]:
        return sizes_of_pieces(self._samples, self.batch_size)


def two_by_two(labels: Tensor) -> Tensor:
    """Samples of each class matched in their order, ``(P, 3)``; the last of an odd number is left out.

    >>> two_by_two(torch.tensor([7, 5, 7, 5, 7]))
    tensor([[1, 3, 1],
            [0, 2, 1]])
    """
    order = labels.argsort(stable=True)
    _, sizes = labels.unique(return_counts=True)
    first = [rows[: len(rows) // 2 * 2].view(-1, 2) for rows in order.split(sizes.tolist())]
    matched = torch.cat(first)
    return torch.cat([matched, torch.ones(len(matched), 1, dtype=torch.long)], dim=1)
