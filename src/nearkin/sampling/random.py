"""Batches drawn blindly from all images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Sampler

from nearkin.sampling.base import PlannedSampler, registry, sizes_of_pieces


@registry.register("random")
class RandomSampler(PlannedSampler):
    """All images in a new random order every epoch, cut into batches.

    Every image comes once per epoch (with ``drop_last`` all but the last of the order, fewer than
    ``batch_size``). Classes play no part: with many classes of few images most images meet no positive in
    their batch, so use it with losses that compare with proxies, and ``balanced`` with losses that compare
    pairs.

    Args:
        labels: The class of every image, integers, ``(N,)``.
        batch_size: Images per batch over all ranks.
        batches: Batches of an epoch, where that is not to be all images but other ones in every epoch: of
            very many images, epochs of a length at which one wants to save and to score.
        seed, rank, world_size, drop_last, sampler: As in :class:`~nearkin.sampling.base.PlannedSampler`.

    >>> sampler = RandomSampler([7, 7, 8, 8, 9], batch_size=2)
    >>> sampler.batch_sizes
    [2, 2, 1]
    >>> sorted(index for batch in sampler for index in batch)
    [0, 1, 2, 3, 4]
    """

    def __init__(
        self,
        labels: Tensor | Sequence[int],
        *,
        batch_size: int,
        batches: int | None = None,
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
        if batches is not None and not 1 <= batches <= len(self.labels) // batch_size:
            raise ValueError(
                f"batches={batches} must be from 1 to {len(self.labels) // batch_size}, as many as there are"
            )
        self.batches = batches

    def _planned(self, generator: torch.Generator) -> Tensor:
        return torch.randperm(len(self.labels), generator=generator)[: self._images]

    def _planned_sizes(self) -> list[int]:
        return sizes_of_pieces(self._images, self.batch_size)

    @property
    def _images(self) -> int:
        return len(self.labels) if self.batches is None else self.batches * self.batch_size
