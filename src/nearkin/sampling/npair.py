"""Two images of each of N classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.utils.data import Sampler

from nearkin.sampling.balanced import BalancedSampler
from nearkin.sampling.base import registry


@registry.register("npair")
class NPairSampler(BalancedSampler):
    """Two images of each of N classes, side by side: an anchor and its positive, and N - 1 negatives.

    The batch of Sohn, "Improved Deep Metric Learning with Multi-class N-pair Loss Objective" (NeurIPS 2016),
    with as many classes as ``batch_size`` allows, N = ``batch_size`` / 2. It is made for the loss ``npair``
    with ``pairs="one_per_class"``, and serves any loss where many classes matter more than many positives.

    An image comes at most once per epoch. Of a class with an odd number of images one sits out, another one
    in every epoch; a class of one image never comes. Fewer than N pairs can be left at the end: an
    incomplete last batch, unless ``drop_last``. A class with more pairs than there are batches sits out with
    the surplus.

    The arguments are those of :class:`~nearkin.sampling.base.PlannedSampler`; ``batch_size`` must be even.

    >>> sampler = NPairSampler([0, 0, 0, 1, 1, 2, 2, 2, 2, 3], batch_size=4)
    >>> sampler.batch_sizes
    [4, 4]
    >>> [sampler.labels[batch].view(2, 2).tolist() for batch in sampler.plan(epoch=0)]
    [[[1, 1], [2, 2]], [[0, 0], [2, 2]]]
    """

    def __init__(
        self,
        labels: Tensor | Sequence[int],
        *,
        batch_size: int,
        seed: int = 0,
        rank: int | None = 0,
        world_size: int | None = 1,
        drop_last: bool = False,
        sampler: Sampler[Any] | None = None,
    ) -> None:
        super().__init__(
            labels,
            batch_size=batch_size,
            images_per_class=2,
            drop_short=True,
            seed=seed,
            rank=rank,
            world_size=world_size,
            drop_last=drop_last,
            sampler=sampler,
        )
