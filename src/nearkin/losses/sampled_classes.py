"""Sampled classes: a batch is compared with its own classes and a random share of the others.

The rows of the chosen classes are gathered, and the gradient of the proxies is sparse: only these rows are in
it. Partial FC: An et al. 2022, "Killing Two Birds with One Stone: Efficient and Robust Training of Face
Recognition CNNs by Partial FC", arXiv 2203.15565.
"""

from __future__ import annotations

from math import ceil
from typing import Any

import torch
from torch import Tensor

from nearkin.losses.similarity import refuse_second_derivative

_MIX = 0x9E3779B97F4A7C15  # 2⁶⁴ over the golden ratio: steps of neighbouring seeds never meet
_SEEDS = 1 << 62


def draw_classes(
    labels: Tensor, num_classes: int, share: float, generator: torch.Generator, first: int = 0
) -> Tensor:
    """The classes that a batch is compared with, sorted, int64: its own, and a share of the others.

    Each set of ``⌈share · (C − P)⌉`` of the C − P classes that are not in the batch is equally likely.

    Args:
        labels: ``(B,)``; those outside ``first … first + num_classes − 1`` are left alone.
        num_classes: C.
        share: Of the other classes, above 0 and at most 1.
        generator: Draws them, on the CPU.
        first: The first of the C classes.

    >>> generator = torch.Generator().manual_seed(0)
    >>> len(draw_classes(torch.tensor([7, 2, 7]), 10, 0.25, generator))
    4
    """
    own = labels.detach().cpu().long() - first
    own = own[(own >= 0) & (own < num_classes)].unique()
    others = num_classes - len(own)
    drawn = distinct_numbers(ceil(share * others), others, generator).sort().values
    # The n-th class that is not in the batch: n, and as many more as classes of the batch come before it.
    drawn += torch.searchsorted(own - torch.arange(len(own)), drawn, right=True)
    return torch.cat([own, drawn]).sort().values.add_(first).to(labels.device)


def distinct_numbers(count: int, limit: int, generator: torch.Generator) -> Tensor:
    """``count`` different numbers below ``limit``, all sets equally likely; costs no more than their number.

    >>> len(set(distinct_numbers(5, 1_000_000, torch.Generator().manual_seed(0)).tolist()))
    5
    """
    if 4 * count >= limit:
        return torch.randperm(limit, generator=generator)[:count]
    drawn = torch.empty(0, dtype=torch.long)
    while True:  # once, mostly: among so few draws few are equal
        missing = count - len(drawn)
        more = torch.randint(limit, (missing + missing // 2 + 16,), generator=generator)
        drawn = _first_of_each(torch.cat([drawn, more]))
        if len(drawn) >= count:
            return drawn[:count]


def _first_of_each(numbers: Tensor) -> Tensor:
    """The numbers in the order in which they first come."""
    values, inverse = numbers.unique(return_inverse=True)
    places = torch.arange(len(numbers))
    first = torch.full((len(values),), len(numbers)).scatter_reduce_(0, inverse, places, "amin")
    in_order: Tensor = values[first.argsort()]
    return in_order


def step_generator(seed: int, step: int) -> torch.Generator:
    """The generator of one step: it depends on both numbers and on nothing else."""
    return torch.Generator().manual_seed((seed + step * _MIX) % _SEEDS)


def new_seed(generator: torch.Generator) -> int:
    """A seed for :func:`step_generator`."""
    return int(torch.randint(_SEEDS, (), generator=generator))


def rows_of(proxies: Tensor, chosen: Tensor) -> Tensor:
    """The rows of some classes ``(n, …)``; the gradient of ``proxies`` is sparse, with these rows.

    Args:
        proxies: ``(C, …)``.
        chosen: Sorted and different, ``(n,)``.
    """
    rows: Tensor = _Rows.apply(proxies, chosen)  # type: ignore[no-untyped-call]
    return rows


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, proxies: Tensor, chosen: Tensor) -> Tensor:
        ctx.save_for_backward(chosen)
        ctx.shape = proxies.shape
        return proxies.index_select(0, chosen)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        refuse_second_derivative()
        (chosen,) = ctx.saved_tensors
        sparse = torch.sparse_coo_tensor(
            chosen.unsqueeze(0), gradient, ctx.shape, is_coalesced=True, check_invariants=False
        )
        return sparse, None
