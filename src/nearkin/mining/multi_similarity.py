"""The multi-similarity rule: pairs that are harder than the anchor's hardest of the other kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from nearkin.mining.base import FAR, Masks, only, register


@register("multi_similarity")
@dataclass(frozen=True)
class MultiSimilarity:
    """Negatives nearer than the farthest positive, positives farther than the nearest negative, up to ε.

    ``S_in > min_{P_i} S − ε`` and ``S_ip < max_{N_i} S + ε``. An anchor without positives keeps no negative,
    one without negatives no positive. Lifted structure's "hard" mining is this rule too.

    Wang, Han, Huang, Dong, Scott, "Multi-Similarity Loss with General Pair Weighting", CVPR 2019.

    Args:
        epsilon: how much easier than that a pair may be and still count.

    >>> S = torch.tensor([[1.0, 0.9, 0.85, 0.2]])
    >>> same = torch.tensor([[False, True, False, False]])
    >>> other = torch.tensor([[False, False, True, True]])
    >>> MultiSimilarity(epsilon=0.1)(S, same, other)
    Masks(positive=tensor([[False,  True, False, False]]), negative=tensor([[False, False,  True, False]]))
    """

    epsilon: float = 0.1
    traceable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.epsilon >= 0:
            raise ValueError(f"epsilon={self.epsilon} must be at least 0")

    def __call__(self, similarities: Tensor, positive: Tensor, negative: Tensor, **_: Any) -> Masks:
        """Drop the easy pairs of both masks."""
        S = similarities if similarities.dtype in (torch.float32, torch.float64) else similarities.float()
        # Everything else is far outside: neither an extreme nor within any bound.
        positives, negatives = only(positive, S, FAR), only(negative, S, -FAR)
        farthest_positive = positives.amin(dim=1, keepdim=True)
        nearest_negative = negatives.amax(dim=1, keepdim=True)
        # Comparing into numbers and converting these is three times quicker than comparing into booleans.
        return Masks(
            torch.lt(positives, nearest_negative.add_(self.epsilon), out=positives).to(torch.bool),
            torch.gt(negatives, farthest_positive.sub_(self.epsilon), out=negatives).to(torch.bool),
        )
