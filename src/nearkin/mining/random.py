"""Random mining, and how every random miner draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nearkin.mining.base import Triplets, places_of, register

_BLOCK = 32


@register("random")
@dataclass(frozen=True)
class Random:
    """For each positive pair (a, p), one negative of a, each as likely as the others.

    A pair whose anchor has no negative is left out.

    >>> S = torch.zeros(1, 3)
    >>> same = torch.tensor([[False, True, False]])
    >>> Random()(S, same, torch.tensor([[False, False, True]]), generator=torch.Generator())
    Triplets(anchor=tensor([0]), positive=tensor([1]), negative=tensor([2]))
    """

    def __call__(
        self,
        similarities: Tensor,
        positive: Tensor,
        negative: Tensor,
        *,
        generator: torch.Generator,
        **_: Any,
    ) -> Triplets:
        """Draw one triplet per positive pair."""
        return draw_triplets(negative.to(torch.float32), positive, generator)


def draw_triplets(weights: Tensor, positive: Tensor, generator: torch.Generator) -> Triplets:
    """One negative for each positive pair, drawn with probability proportional to its anchor's ``weights``.

    The uniform numbers come from the CPU whatever the device, so that a seed means the same everywhere. An
    entry of weight 0 is never drawn; an anchor without weight draws nothing.

    Args:
        weights: ``(B, R)``, not negative.
        positive: ``(B, R)`` boolean.
        generator: on the CPU.
    """
    # Two levels, first a block of columns and then one of its columns: a running sum over all entries would
    # take longer than everything else.
    if padding := -weights.shape[1] % _BLOCK:
        weights = torch.nn.functional.pad(weights, (0, padding))
    blocks = weights.view(len(weights), -1, _BLOCK)
    cumulative = blocks.sum(dim=2).cumsum(dim=1)
    anchor, column = places_of(positive)
    able = cumulative[:, -1] > 0
    if not able.all():
        kept = able[anchor].nonzero().squeeze(1)
        anchor, column = anchor.index_select(0, kept), column.index_select(0, kept)
    uniform = torch.rand(2, len(anchor), generator=generator, dtype=torch.float32).to(weights)
    block = _invert(cumulative.index_select(0, anchor), uniform[0])
    chosen = blocks.flatten(0, 1).index_select(0, anchor * blocks.shape[1] + block)
    return Triplets(anchor, column, block * _BLOCK + _invert(chosen.cumsum(dim=1), uniform[1]))


def _invert(cumulative: Tensor, uniform: Tensor) -> Tensor:
    """The first entry of each row of running sums ``(T, n)`` above a random part ``(T,)`` of their total.

    There is one: the uniform number is at most 1 − 2⁻²⁴, which no rounding takes to the total.
    """
    aim = cumulative[:, -1:] * uniform.unsqueeze(1)
    return torch.searchsorted(cumulative, aim, right=True).squeeze(1)
