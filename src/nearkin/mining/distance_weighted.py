"""Distance-weighted mining: negatives at all distances, not only at the usual one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nearkin.mining.base import Triplets, as_float, register
from nearkin.mining.random import draw_triplets

_CHUNK = 1 << 15
"""Entries looked at together: they fit into a processor's cache."""

_NOTHING = 1e30
"""Minus this is the logarithm of no weight at all."""


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
        at_once = max(1, _CHUNK // max(1, similarities.shape[1]))
        parts = zip(similarities.split(at_once), negative.split(at_once), strict=True)
        return torch.cat([self._weights_of_rows(S, strangers, embedding_dim) for S, strangers in parts])

    def _weights_of_rows(self, similarities: Tensor, negative: Tensor, embedding_dim: int) -> Tensor:
        strangers = as_float(negative, similarities)
        squared = torch.mul(similarities, -2).add_(2).clamp_(min=self.nearest**2)
        within = torch.le(squared, self.farthest**2, out=torch.empty_like(squared)).mul_(strangers)
        squared.clamp_(max=self.farthest**2)
        # −log q, with D^{d−2} as (D²)^{(d−2)/2}
        log_weights = squared.log().mul_((2 - embedding_dim) / 2)
        log_weights += squared.div_(-4).log1p_().mul_((3 - embedding_dim) / 2)
        heaviest = (within - 1).mul_(_NOTHING).add_(log_weights).amax(dim=1, keepdim=True)
        out_of_reach = (heaviest < -_NOTHING / 2).to(within.dtype)
        # e⁻⁸⁰ is lost beside 1 already, and smaller ones are slow to compute.
        weights = log_weights.sub_(heaviest).clamp_(-80, 0).exp_().mul_(within)
        return weights.addcmul_(strangers, out_of_reach)
