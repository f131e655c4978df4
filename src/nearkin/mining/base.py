"""What every miner is: a pure function from a similarity matrix and two masks to the pairs that count."""

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from nearkin.registry import Registry


class Masks(NamedTuple):
    """The pairs that count, each once: two boolean ``(B, R)`` matrices, row = anchor."""

    positive: Tensor
    negative: Tensor


class Triplets(NamedTuple):
    """The triplets that count: three index vectors ``(T,)`` into the rows and columns of the similarities."""

    anchor: Tensor
    positive: Tensor
    negative: Tensor


Mined: TypeAlias = Masks | Triplets


@runtime_checkable
class Miner(Protocol):
    """Anything that can be called like this is a miner; it must not modify what it is given.

    Args:
        similarities: ``(B, R)``, larger is nearer.
        positive: ``(B, R)`` boolean, the pairs that share a class (never an image with itself).
        negative: ``(B, R)`` boolean, the pairs that do not.
        embedding_dim: number of columns of the embeddings behind the similarities.
        generator: the only source of randomness, on the CPU.
    """

    def __call__(
        self,
        similarities: Tensor,
        positive: Tensor,
        negative: Tensor,
        *,
        embedding_dim: int,
        generator: torch.Generator,
    ) -> Mined:
        """Select pairs or triplets."""
        ...


_registry: Registry[Miner] = Registry("miner")
register = _registry.register
names = _registry.names
build = _registry.build


def as_masks(mined: Mined, shape: torch.Size) -> Masks:
    """The pairs of ``mined`` as masks of ``shape``; a pair that several triplets share counts once."""
    if isinstance(mined, Masks):
        return mined
    positive = torch.zeros(shape, dtype=torch.bool, device=mined.anchor.device)
    negative = torch.zeros_like(positive)
    positive[mined.anchor, mined.positive] = True
    negative[mined.anchor, mined.negative] = True
    return Masks(positive, negative)
