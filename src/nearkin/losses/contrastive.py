"""The contrastive loss."""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.losses.base import register, require_non_negative, require_one_of
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

    Source:
        Hadsell, Chopra, LeCun. Dimensionality Reduction by Learning an Invariant Mapping. CVPR 2006.

    When to use:
        A simple baseline that is hard to beat when pairs are plentiful and the margin is right. It wants
        batches with several images per class. With a cross-batch memory it becomes much stronger.

    Args:
        margin: λ; negatives less similar than λ (farther than λ, squared) are left in peace.
        metric: "cosine", or the survey's "squared_euclidean".
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
        metric: str = "cosine",
        mining: str | Miner = "all",
        generator: torch.Generator | None = None,
    ) -> None:
        require_non_negative(margin=margin)
        require_one_of(("cosine", "squared_euclidean"), metric=metric)
        super().__init__(mining, generator)
        self.margin = margin
        self.metric = metric

    def measure(self, S: Tensor, pairs: Pairs, with_weights: bool) -> Measured:
        """Both means; the weights are constants on the positive and on the violating negative pairs."""
        positive, negative = self.mine_pairs(S, pairs)
        # 2 − 2S < λ is S > 1 − λ/2, and every term is twice as large.
        boundary, slope = (self.margin, 1) if self.metric == "cosine" else (1 - self.margin / 2, 2)
        violating = torch.gt(S, boundary, out=torch.empty_like(S)).mul_(negative)
        counts = torch.stack([positive.sum(), violating.sum()])
        per_positive, per_violation = counts.clamp_min(1).reciprocal_().mul_(slope).unbind()
        weights = violating.mul_(per_violation).addcmul_(positive, per_positive, value=-1)
        # Linear in S where it is not 0: the weights times S, and what the two means are measured from.
        has_positives, has_violations = counts.clamp_max_(1).unbind()
        value = torch.dot(weights.view(-1), S.view(-1)).add_(has_positives, alpha=slope)
        value.sub_(has_violations, alpha=slope * boundary)
        everything = positive is pairs.indicators(S).positive and negative is pairs.indicators(S).negative
        return Measured(value, weights, symmetric=everything)
