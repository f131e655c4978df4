"""Batches drawn blindly from all images."""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.sampling.base import PlannedSampler, registry, sizes_of_pieces


@registry.register("random")
class RandomSampler(PlannedSampler):
    """All images in a new random order every epoch, cut into batches.

    Every image comes once per epoch (with ``drop_last`` all but the last of the order, fewer than
    ``batch_size``). Classes play no part: with many classes of few images most images meet no positive in
    their batch, so use it with losses that compare with proxies, and ``balanced`` with losses that compare
    pairs.

    The arguments are those of :class:`~nearkin.sampling.base.PlannedSampler`.

    >>> sampler = RandomSampler([7, 7, 8, 8, 9], batch_size=2)
    >>> sampler.batch_sizes
    [2, 2, 1]
    >>> sorted(index for batch in sampler for index in batch)
    [0, 1, 2, 3, 4]
    """

    def _planned(self, generator: torch.Generator) -> Tensor:
        return torch.randperm(len(self.labels), generator=generator)

    def _planned_sizes(self) -> list[int]:
        return sizes_of_pieces(len(self.labels), self.batch_size)
