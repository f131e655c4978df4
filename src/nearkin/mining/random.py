"""Random mining, and how every random miner draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nearkin.mining.base import Triplets, register

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
    padding = -weights.shape[1] % _BLOCK
    blocks = torch.nn.functional.pad(weights, (0, padding)).unflatten(1, (-1, _BLOCK))
    cumulative = blocks.sum(dim=2).cumsum(dim=1)
    anchor, kin = positive.nonzero().unbind(dim=1)
    able = (cumulative[:, -1] > 0)[anchor].nonzero().squeeze(1)
    anchor, kin = anchor.index_select(0, able), kin.index_select(0, able)
    uniform = torch.rand(len(anchor), generator=generator, dtype=torch.float64).to(weights)
    chances = cumulative[anchor]
    block = _invert(chances, uniform * chances[:, -1])
    before = chances.gather(1, (block - 1).clamp_min(0).unsqueeze(1)).squeeze(1)
    within = blocks[anchor, block].cumsum(dim=1)
    column = _invert(within, uniform * chances[:, -1] - torch.where(block > 0, before, 0))
    return Triplets(anchor, kin, block * _BLOCK + column)


def _invert(cumulative: Tensor, aim: Tensor) -> Tensor:
    """The first entry of each row of running sums ``(T, n)`` above its ``aim`` ``(T,)``."""
    total = cumulative[:, -1]
    # Rounding must carry no draw before the first entry that has a weight, nor beyond the last.
    aim = torch.minimum(aim.clamp_min(0), torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, aim.unsqueeze(1), right=True).squeeze(1)
