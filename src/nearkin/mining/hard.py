"""Hard mining: the worst of each anchor's own."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from torch import Tensor

from nearkin.mining.base import Triplets, register


@register("hard")
@dataclass(frozen=True)
class Hard:
    """One triplet per anchor: its least similar positive and its most similar negative.

    An anchor that lacks either is left out; of equals the first counts.

    Hermans, Beyer, Leibe, "In Defense of the Triplet Loss for Person Re-Identification", 2017.

    >>> S = torch.tensor([[1.0, 0.9, 0.4, 0.2, 0.7]])
    >>> same = torch.tensor([[False, True, True, False, False]])
    >>> Hard()(S, same, torch.tensor([[False, False, False, True, True]]))
    Triplets(anchor=tensor([0]), positive=tensor([2]), negative=tensor([4]))
    """

    def __call__(self, similarities: Tensor, positive: Tensor, negative: Tensor, **_: Any) -> Triplets:
        """Select at most B triplets."""
        lowest, farthest = torch.where(positive, similarities, inf).min(dim=1)
        highest, nearest = torch.where(negative, similarities, -inf).max(dim=1)
        anchor = ((lowest < inf) & (highest > -inf)).nonzero().squeeze(1)
        return Triplets(anchor, farthest[anchor], nearest[anchor])
