"""Which images form a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from nearkin.sampling.balanced import BalancedSampler
from nearkin.sampling.base import PlannedSampler, registry
from nearkin.sampling.beside import LabelledBesideUnlabelled
from nearkin.sampling.clusters import ClustersSampler
from nearkin.sampling.fitting import fitting
from nearkin.sampling.hard_classes import HardClassesSampler
from nearkin.sampling.hard_neighbours import HardNeighboursSampler
from nearkin.sampling.neighbours import NeighboursSampler
from nearkin.sampling.npair import NPairSampler
from nearkin.sampling.offline import hard_negatives
from nearkin.sampling.pairs import PairsSampler
from nearkin.sampling.random import RandomSampler

__all__ = [
    "BalancedSampler",
    "ClustersSampler",
    "HardClassesSampler",
    "HardNeighboursSampler",
    "LabelledBesideUnlabelled",
    "NPairSampler",
    "NeighboursSampler",
    "PairsSampler",
    "PlannedSampler",
    "RandomSampler",
    "build",
    "fitting",
    "hard_negatives",
    "names",
    "register",
]

names = registry.names
register = registry.register


def build(
    name: str,
    labels: Tensor | Sequence[int],
    *,
    batch_size: int,
    seed: int = 0,
    rank: int | None = 0,
    world_size: int | None = 1,
    **keywords: Any,
) -> PlannedSampler:
    """Make the sampler ``name`` for images with these labels.

    Args:
        name: One of ``names()``.
        labels: The class of every image, integers, ``(N,)``.
        batch_size: Images per batch over all ranks.
        seed: With the epoch, the only source of randomness.
        rank: Which slice of each batch this process takes; None to ask ``torch.distributed``.
        world_size: Into how many slices a batch is cut; None to ask ``torch.distributed``.
        **keywords: Whatever else the sampler takes.

    >>> sampler = build("balanced", [0, 0, 0, 0, 1, 1, 1, 1], batch_size=4, images_per_class=2)
    >>> len(sampler)
    2
    """
    return registry.build(
        name, labels, batch_size=batch_size, seed=seed, rank=rank, world_size=world_size, **keywords
    )
