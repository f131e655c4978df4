"""The multi-similarity loss."""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin import mining as miners
from nearkin.losses.base import register, require_non_negative, require_positive
from nearkin.losses.exponentials import Outside, log_one_plus_sum_exp, log_one_plus_sum_exp_
from nearkin.losses.pair import MinedPairLoss, Pairs
from nearkin.losses.search_space import MARGIN, SCALE, space
from nearkin.losses.similarity import Measured


@register("multi_similarity")
class MultiSimilarity(MinedPairLoss):
    """Weigh each pair by its own similarity and by how it compares with the anchor's other pairs.

    Equation:
        L = mean over all anchors i of
            (1/α) log(1 + Σ_{P_i} e^{−α(S − λ)}) + (1/β) log(1 + Σ_{N_i} e^{β(S − λ)})

    Source:
        Wang, Han, Huang, Dong, Scott. Multi-Similarity Loss with General Pair Weighting for Deep Metric
        Learning. CVPR 2019. arXiv:1904.06627.

    When to use:
        The first pair-based loss to try: no proxies to learn, robust defaults. Give it batches with several
        samples of each class (the paper: 16 classes × 5).

    Relations to other losses:
        ``proxy_anchor`` is its form with proxies as anchors; ``circle`` has one logarithm where this has two.
        ``direction_multi_similarity`` adds a term to it.

    Args:
        alpha: α, sharpness on the positive pairs.
        beta: β, sharpness on the negative pairs.
        margin: λ, the similarity that separates what is pulled from what is pushed.
        epsilon: slack of its own miner.
        mining: a miner's name or a miner, in place of its own.
        generator: for random miners.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [1.0, 0.0]])
        >>> MultiSimilarity()(embeddings, torch.tensor([0, 0, 1]))
        tensor(0.3994)
    """

    search_space = space(alpha=SCALE, beta=SCALE, margin=MARGIN, epsilon=MARGIN)

    def __init__(
        self,
        *,
        alpha: float = 2.0,
        beta: float = 50.0,
        margin: float = 0.5,
        epsilon: float = 0.1,
        mining: str | miners.Miner = "multi_similarity",
        generator: torch.Generator | None = None,
    ) -> None:
        require_positive(alpha=alpha, beta=beta)
        require_non_negative(margin=margin, epsilon=epsilon)
        self.epsilon = epsilon
        super().__init__(mining, generator)
        self.alpha = alpha
        self.beta = beta
        self.margin = margin

    def build_miner(self, name: str) -> miners.Miner:
        """Its own miner takes ``epsilon``; any other is built by its defaults."""
        return miners.MultiSimilarity(self.epsilon) if name == "multi_similarity" else miners.build(name)

    def value(self, S: Tensor, pairs: Pairs) -> Tensor:
        """Two sums of exponentials per anchor."""
        positive, negative = self.mine_masks(S, pairs)
        pull = log_one_plus_sum_exp(-self.alpha * (S - self.margin), positive) / self.alpha
        push = log_one_plus_sum_exp(self.beta * (S - self.margin), negative) / self.beta
        return pairs.mean_over_anchors(pull + push)

    def measure(self, S: Tensor, pairs: Pairs, with_weights: bool) -> Measured:
        """A pair's weight is its share of its sum."""
        positive, negative = self.mine_pairs(S, pairs)
        alpha, beta, margin = self.alpha, self.beta, self.margin
        pulls, pushes = S * -alpha, S * beta
        far, pull = log_one_plus_sum_exp_(pulls, 1, alpha, Outside(positive), offset=alpha * margin)
        near, push = log_one_plus_sum_exp_(pushes, 1, beta, Outside(negative), offset=-beta * margin)
        value = far.div_(alpha).add_(near, alpha=1 / beta).sum().div_(pairs.anchors)
        if not with_weights:
            return Measured(value)
        weights = pushes.mul_(push.div_(pairs.anchors)).addcmul_(pulls, pull, value=-1 / pairs.anchors)
        return Measured(value, weights)
