"""Distance-weighted mining: negatives at all distances, not only at the usual one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nearkin.mining.base import Triplets, as_float, register
from nearkin.mining.random import draw_triplets

_CHUNK = 1 << 18
"""Entries looked at together: few enough for a processor's cache, enough for two of its cores."""


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
        """What each negative of each anchor weighs, the heaviest about 1: ``(B, R)``."""
        if similarities.dtype not in (torch.float32, torch.float64):
            similarities = similarities.float()
        weights = torch.empty_like(similarities)
        at_once = max(1, _CHUNK // max(1, similarities.shape[1]))
        for start in range(0, len(weights), at_once):
            rows = slice(start, start + at_once)
            self._weigh(similarities[rows], negative[rows], embedding_dim, weights[rows])
        return weights

    def _weigh(self, S: Tensor, negative: Tensor, embedding_dim: int, weights: Tensor) -> None:
        """Write the weights of some rows.

        With D² = 2 − 2S, −log q is −((d−2)/2) log(1 − S) − ((d−3)/2) log(1 + S) and a constant. It is least
        at S = −1/(2d − 5), so whatever is out of reach may stand at S = 0, where it outweighs nothing.
        """
        farthest, nearest = 1 - self.farthest**2 / 2, 1 - self.nearest**2 / 2
        negatives = as_float(negative, S)
        within = torch.ge(S, farthest, out=torch.empty_like(S)).mul_(negatives)
        cosines = torch.mul(S, within).clamp_(min(farthest, 0), nearest)
        log_weights = torch.rsub(cosines, 1).log_().mul_((2 - embedding_dim) / 2)
        log_weights.add_(cosines.log1p_(), alpha=(3 - embedding_dim) / 2)
        heaviest = log_weights.amax(dim=1, keepdim=True)
        # e⁻⁸⁰ is lost beside 1 already, and smaller ones are slow to compute.
        torch.mul(log_weights.sub_(heaviest).clamp_(min=-80).exp_(), within, out=weights)
        none_within = within.amax(dim=1, keepdim=True) == 0
        if none_within.any():
            weights.addcmul_(negatives, as_float(none_within, S))
