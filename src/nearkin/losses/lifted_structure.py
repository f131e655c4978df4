"""The lifted structure loss."""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor

from nearkin import mining as miners
from nearkin.losses.base import register, require_non_negative, require_positive
from nearkin.losses.exponentials import Outside, log_sum_exp, log_sum_exp_
from nearkin.losses.pair import MinedPairLoss, Pairs
from nearkin.losses.search_space import MARGIN, SCALE, space
from nearkin.losses.similarity import Measured


@register("lifted_structure")
class LiftedStructure(MinedPairLoss):
    """The anchor's positives as a soft worst case against its negatives as a soft worst case.

    Equation:
        L = mean over anchors with both sets of [(1/β) LSE_{P_i} β(λ − S) + (1/α) LSE_{N_i} αS]₊

        One value per sample: its own hinge times B / the number of anchors with both sets.

    Source:
        Song, Xiang, Jegelka, Savarese. Deep Metric Learning via Lifted Structured Feature Embedding.
        CVPR 2016. arXiv:1511.06452; in the form per anchor of Hermans, Beyer, Leibe, 2017, arXiv:1703.07737.

    When to use:
        Like the triplet loss with every sample of the batch taking part. Its hinge stops pulling once an
        anchor is well placed.

    Relations to other losses:
        ``triplet`` with a soft worst case in the place of mined triplets; a softplus in the place of the
        hinge makes it ``circle`` with constant weights. ``multi_similarity`` has its two sums apart.

    Args:
        margin: λ.
        positive_scale: β, sharpness on the positive pairs.
        negative_scale: α, sharpness on the negative pairs; β = α = 1 is the original.
        mining: a miner's name or a miner. "hard" means here, as in the thesis, the rule of the
            multi-similarity miner with ε 0.1, not one triplet per anchor.
        generator: for random miners.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
        >>> LiftedStructure()(embeddings, torch.tensor([0, 0, 1]))
        tensor(0.7800)
    """

    search_space = space(margin=MARGIN, positive_scale=SCALE, negative_scale=SCALE)

    def __init__(
        self,
        *,
        margin: float = 0.5,
        positive_scale: float = 2.0,
        negative_scale: float = 40.0,
        mining: str | miners.Miner = "hard",
        generator: torch.Generator | None = None,
    ) -> None:
        require_non_negative(margin=margin)
        require_positive(positive_scale=positive_scale, negative_scale=negative_scale)
        super().__init__(mining, generator)
        self.margin = margin
        self.positive_scale = positive_scale
        self.negative_scale = negative_scale

    def build_miner(self, name: str) -> miners.Miner:
        """What the thesis calls hard mining of this loss is the multi-similarity rule."""
        return miners.MultiSimilarity(epsilon=0.1) if name == "hard" else miners.build(name)

    def value(self, S: Tensor, pairs: Pairs) -> Tensor:
        """A hinge on two soft worst cases per anchor."""
        positive, negative = self.mine_masks(S, pairs)
        farthest = log_sum_exp(self.positive_scale * (self.margin - S), positive) / self.positive_scale
        nearest = log_sum_exp(self.negative_scale * S, negative) / self.negative_scale
        has_both = positive.any(dim=1) & negative.any(dim=1)
        return pairs.mean_over_anchors((farthest + nearest).relu(), among=has_both)

    def measure(self, S: Tensor, pairs: Pairs, with_weights: bool) -> Measured:
        """A pair's weight is its share of its sum."""
        positive, negative = self.mine_pairs(S, pairs)
        pulls = (self.margin - S).mul_(self.positive_scale)
        pushes = S * self.negative_scale
        far, pull = log_sum_exp_(pulls, 1, self.positive_scale * (1 + self.margin), Outside(positive))
        near, push = log_sum_exp_(pushes, 1, self.negative_scale, Outside(negative))
        both = far.div_(self.positive_scale).add_(near.div_(self.negative_scale))  # −∞ where one is missing
        share = (both > -inf).sum().clamp_min_(1).to(S.dtype).reciprocal_()
        per_anchor = both.relu_()
        value = per_anchor.sum() * share
        if not with_weights:
            return Measured(value)
        active = per_anchor.sign_().mul_(share).unsqueeze(1)
        return Measured(value, pushes.mul_(push.mul_(active)).addcmul_(pulls, pull.mul_(active), value=-1))
