"""Distance-weighted mining: negatives at all distances, not only at the usual one."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from torch import Tensor

from nearkin.mining.base import Triplets, register
from nearkin.mining.random import draw_triplets


@register("distance_weighted")
@dataclass(frozen=True)
class DistanceWeighted:
    """For each positive pair (a, p), one negative drawn with weight 1/q(D), q the density of distances.

    ``q(D) ∝ D^{d−2} (1 − D²/4)^{(d−3)/2}`` for points spread evenly over the sphere in d dimensions, where
    nearly all distances are √2. The weights are formed per anchor in the log domain, so that no anchor
    underflows away, however many dimensions. An anchor with no negative within reach draws uniformly from
    all its negatives.

    Wu, Manmatha, Smola, Krähenbühl, "Sampling Matters in Deep Embedding Learning", ICCV 2017.

    Args:
        nearest: smaller distances weigh as much as this one.
        farthest: larger distances weigh nothing.

    >>> S = torch.tensor([[1.0, 0.6, 0.5, -0.9]])
    >>> same = torch.tensor([[False, True, False, False]])
    >>> other = torch.tensor([[False, False, True, True]])
    >>> DistanceWeighted()(S, same, other, embedding_dim=512, generator=torch.Generator())
    Triplets(anchor=tensor([0]), positive=tensor([1]), negative=tensor([2]))
    """

    nearest: float = 0.5
    farthest: float = 1.4

    def __post_init__(self) -> None:
        if not 0 < self.nearest < self.farthest < 2:
            given = f"nearest={self.nearest} and farthest={self.farthest}"
            raise ValueError(f"{given} must be distances with 0 < nearest < farthest < 2")

    def __call__(
        self,
        similarities: Tensor,
        positive: Tensor,
        negative: Tensor,
        *,
        embedding_dim: int,
        generator: torch.Generator,
        **_: Any,
    ) -> Triplets:
        """Draw one triplet per positive pair."""
        return draw_triplets(self.weights(similarities, negative, embedding_dim), positive, generator)

    def weights(self, similarities: Tensor, negative: Tensor, embedding_dim: int) -> Tensor:
        """What each negative of each anchor weighs, the heaviest 1: ``(B, R)``."""
        if similarities.dtype not in (torch.float32, torch.float64):
            similarities = similarities.float()
        squared = (2 - 2 * similarities).clamp_(min=self.nearest**2)
        within = negative & (squared <= self.farthest**2)
        squared.clamp_(max=self.farthest**2)
        # −log q, with D^{d−2} as (D²)^{(d−2)/2}
        log_weights = squared.log().mul_((2 - embedding_dim) / 2)
        log_weights += torch.log1p(squared.div_(-4)).mul_((3 - embedding_dim) / 2)
        log_weights.masked_fill_(~within, -inf)
        heaviest = log_weights.amax(dim=1, keepdim=True)
        weights = log_weights.sub_(heaviest.clamp_min(torch.finfo(heaviest.dtype).min)).exp_()
        return torch.where(heaviest > -inf, weights, negative.to(weights.dtype))
