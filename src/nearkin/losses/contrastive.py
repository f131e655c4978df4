"""The contrastive loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from nearkin.losses.base import register, require_non_negative
from nearkin.losses.metric import Metric, through_slope_
from nearkin.losses.pair import MinedPairLoss, Pairs
from nearkin.losses.search_space import MARGIN, space
from nearkin.losses.similarity import Measured
from nearkin.mining import Miner


@register("contrastive")
class Contrastive(MinedPairLoss):
    """Pull every positive pair together, push negatives apart until a margin.

    Equation:
        L = mean over positive pairs of (1 − S) + mean over negative pairs with S > λ of (S − λ)

        With metric="squared_euclidean", where D² = 2 − 2S:
        L = mean over positive pairs of D² + mean over negative pairs with D² < λ of (λ − D²)
        With metric="euclidean", D takes the place of D²; with "euclidean_raw" D² is that of raw embeddings,
        with "hyperbolic" the distance in the Poincaré ball, with "signal_to_noise" var(z − z') / var(z).

        One value per sample: its own pairs' part of both means, times B.

    Source:
        Hadsell, Chopra, LeCun. Dimensionality Reduction by Learning an Invariant Mapping. CVPR 2006.

    When to use:
        A simple baseline that is hard to beat when pairs are plentiful and the margin is right. It wants
        batches with several samples per class. With a cross-batch memory it becomes much stronger.

    Relations to other losses:
        What ``triplet`` asks of differences this asks of each pair, against a fixed margin; ``margin`` learns
        that margin, and ``sup_ap``'s calibration is this with a margin for positives too.

    Args:
        margin: λ; negatives less similar than λ (farther than λ, by D² or D) are left alone.
        metric: "cosine", the survey's "squared_euclidean", "euclidean", "euclidean_raw", "hyperbolic" or
            "signal_to_noise"; or a metric of ``nearkin.losses``, such as ``Hyperbolic(curvature=0.5)``; or a
            table of its name and keywords.
        mining: a miner's name or a miner.
        generator: for random miners.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [1.0, 0.0]])
        >>> Contrastive(margin=0.5)(embeddings, torch.tensor([0, 0, 1]))
        tensor(0.7000)
    """

    search_space = space(margin=MARGIN)

    def __init__(
        self,
        *,
        margin: float = 0.5,
        metric: str | Mapping[str, Any] | Metric = "cosine",
        mining: str | Miner = "all",
        generator: torch.Generator | None = None,
    ) -> None:
        require_non_negative(margin=margin)
        super().__init__(mining, generator)
        self.margin = margin
        self.use_metric(metric)

    def value(self, S: Tensor, pairs: Pairs) -> Tensor:
        """Both means."""
        positive, negative = self.mine_masks(S, pairs)
        near = self.geometry.nearness(S)
        pull = pairs.mean_over_pairs(self.geometry.identical - near, positive)
        push = pairs.mean_over_pairs(near - self._boundary, negative & (near > self._boundary))
        return pull + push

    def measure(self, S: Tensor, pairs: Pairs, with_weights: bool) -> Measured:
        """The weights are constants on the positive and on the violating negative pairs."""
        positive, negative = self.mine_pairs(S, pairs)
        near, slope = self.geometry.nearness_and_slope(S)
        violating = torch.gt(near, self._boundary, out=torch.empty_like(S)).mul_(negative)
        counts = torch.stack([positive.sum(), violating.sum()])
        per_positive, per_violation = counts.clamp_min(1).reciprocal_().unbind()
        weights = violating.mul_(per_violation).addcmul_(positive, per_positive, value=-1)
        # Linear in the nearness where it is not 0: weights times nearness, and where the means start from.
        has_positives, has_violations = counts.clamp_max_(1).unbind()
        value = torch.dot(weights.view(-1), near.view(-1))
        value.add_(has_positives, alpha=self.geometry.identical).sub_(has_violations, alpha=self._boundary)
        return Measured(value, through_slope_(weights, slope))

    @property
    def _boundary(self) -> float:
        """How near negatives may be."""
        return self.margin if self.geometry.identical else -self.margin
