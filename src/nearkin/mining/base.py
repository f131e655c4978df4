"""What every miner is: a pure function from a similarity matrix and two masks to the pairs that count."""

from __future__ import annotations

import pkgutil
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

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

    One that gives masks by arithmetic alone, so that ``torch.compile`` can look into it, says so by an
    attribute ``traceable = True``.

    Args:
        similarities: ``(B, R)``, larger is nearer.
        positive: ``(B, R)`` boolean, the pairs that share a class (never a sample with itself).
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


def build(name: str, **keywords: Any) -> Miner:
    """Make the miner ``name``: a registered one, or ``module:object``."""
    if ":" in name and name not in _registry:
        try:
            miner: Miner = pkgutil.resolve_name(name)(**keywords)
        except (ImportError, AttributeError) as error:
            raise ValueError(f"there is no miner {name}: {error}") from None
        return miner
    return _registry.build(name, **keywords)


def as_masks(mined: Mined, shape: torch.Size) -> Masks:
    """The pairs of ``mined`` as masks of ``shape``; a pair that several triplets share counts once."""
    if isinstance(mined, Masks):
        return mined
    positive = torch.zeros(shape, dtype=torch.bool, device=mined.anchor.device)
    negative = torch.zeros_like(positive)
    positive[mined.anchor, mined.positive] = True
    negative[mined.anchor, mined.negative] = True
    return Masks(positive, negative)


def as_float(mask: Tensor, like: Tensor) -> Tensor:
    """A mask, boolean or of ones and zeros, as ones and zeros of the dtype of ``like``.

    >>> as_float(torch.tensor([True, False]), torch.zeros(2))
    tensor([1., 0.])
    """
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return mask.view(torch.uint8).to(like.dtype)  # torch converts bytes five times faster than booleans


FAR = 1e30
"""Beyond every similarity."""


def only(mask: Tensor, values: Tensor, otherwise: float) -> Tensor:
    """``values`` where the mask holds and ``otherwise``, a number as huge as ``FAR``, elsewhere; no gradient.

    The mask is boolean, or made of ones and zeros of the dtype of the values.

    >>> only(torch.tensor([True, False]), torch.tensor([1.0, 2.0]), -FAR)
    tensor([ 1.0000e+00, -1.0000e+30])
    """
    if values.dtype not in (torch.float32, torch.float64):
        return torch.where(mask.to(torch.bool), values, otherwise)
    # Two steps in vectors are quicker than choosing one by one.
    outside = as_float(~mask, values) if mask.dtype == torch.bool else 1 - mask
    values = values.detach() if values.requires_grad else values
    return torch.add(values, outside, alpha=otherwise, out=outside)


def first_equal_(rows: Tensor, value: Tensor) -> Tensor:
    """The first column of each row ``(B, R)`` that equals its ``value`` ``(B, 1)``; overwrites the rows.

    With ``value`` a maximum this is ``argmax``, several times quicker on a processor.

    >>> first_equal_(torch.tensor([[1.0, 3.0, 3.0]]), torch.tensor([[3.0]]))
    tensor([1])
    """
    columns = rows.shape[1]
    countdown = torch.arange(columns, 0, -1, dtype=rows.dtype, device=rows.device)
    return columns - torch.eq(rows, value, out=rows).mul_(countdown).amax(dim=1).long()


def places_in_rows(rows: Tensor, num_rows: int) -> Tensor:
    """The place of each entry among the entries of its row, for ``rows`` in ascending order.

    >>> places_in_rows(torch.tensor([0, 0, 2, 2, 2]), 3)
    tensor([0, 1, 0, 1, 2])
    """
    in_row = torch.zeros(num_rows, dtype=torch.long, device=rows.device)
    in_row.index_add_(0, rows, torch.ones_like(rows))
    first = in_row.cumsum(0) - in_row
    return torch.arange(len(rows), device=rows.device) - first[rows]


def places_of(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Row and column of every true entry ``(T,)`` of a mask ``(B, R)``, in reading order.

    >>> places_of(torch.tensor([[False, True], [True, True]]))
    (tensor([0, 1, 1]), tensor([1, 0, 1]))
    """
    entries = mask.reshape(-1)
    if entries.is_cpu and len(entries) % 8 == 0 and entries.storage_offset() % 8 == 0:
        # True entries are rare: looking at eight together is four times quicker.
        eights = entries.view(torch.int64)
        found = eights.nonzero().squeeze(1)
        places = eights.index_select(0, found).view(torch.bool).nonzero().squeeze(1)
        flat = found.index_select(0, places >> 3).mul_(8).add_(places & 7)
    else:
        flat = entries.nonzero().squeeze(1)
    rows = torch.div(flat, mask.shape[1], rounding_mode="floor")
    return rows, flat.sub_(rows, alpha=mask.shape[1])
