"""Random mining, and how every random miner draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nearkin.mining.base import Triplets, places_in_rows, register


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
    cumulative = weights.cumsum(dim=1)
    total = cumulative[:, -1:]
    anchor, kin = (positive & (total > 0)).nonzero().unbind(dim=1)
    if not len(anchor):
        return Triplets(anchor, kin, kin)
    uniform = torch.rand(len(anchor), generator=generator, dtype=torch.float64).to(weights)
    place = places_in_rows(anchor, len(positive))
    aims = weights.new_zeros(len(positive), int(place.max()) + 1)
    aims[anchor, place] = uniform
    # Rounding must not carry a draw to the very end, where it would find no entry.
    aims = torch.minimum(aims * total, torch.nextafter(total, torch.zeros_like(total)))
    drawn = torch.searchsorted(cumulative, aims, right=True)
    return Triplets(anchor, kin, drawn[anchor, place])
