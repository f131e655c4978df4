"""The circle loss."""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor

from nearkin.losses.base import register, require_non_negative, require_positive
from nearkin.losses.exponentials import Outside, log_sum_exp, log_sum_exp_, without_underflow_
from nearkin.losses.pair import PairLoss, Pairs
from nearkin.losses.search_space import MARGIN, Range, space
from nearkin.losses.similarity import Measured


@register("circle")
class Circle(PairLoss):
    """Weigh each similarity by how far it is from where it shall be, and compare all at once.

    Equation:
        L = mean over anchors with both sets of
          softplus(LSE_{N_i} γ a_n (S − m) + LSE_{P_i} −γ a_p (S − 1 + m))

        a_n = [S + m]₊ and a_p = [1 + m − S]₊ are constants: no gradient flows through them.

        One value per sample: its own softplus times B / the number of anchors with both sets.

    Source:
        Sun, Cheng, Zhang, Zhang, Zheng, Wang, Wei. Circle Loss: A Unified Perspective of Pair Similarity
        Optimization. CVPR 2020. arXiv:2002.10857.

    When to use:
        In place of multi-similarity without its miner: easy pairs fade by themselves. The paper has m 0.4, γ
        80 for fine-grained retrieval, m 0.25, γ 256 for faces, 128 for persons.

    Relations to other losses:
        With constants for a_n and a_p it is ``npair`` on scaled cosines with a margin, and a smooth form of
        ``lifted_structure``. ``multi_similarity`` has two logarithms where this has one.

    Args:
        margin: m; positives shall exceed 1 − m, negatives stay below m.
        scale: γ.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
        >>> Circle()(embeddings, torch.tensor([0, 0, 1]))
        tensor(49.6640)
    """

    stops_gradients = True

    search_space = space(margin=MARGIN, scale=Range(8.0, 256.0, step=2.0, log=True))

    def __init__(self, *, margin: float = 0.4, scale: float = 80.0) -> None:
        require_non_negative(margin=margin)
        require_positive(scale=scale)
        super().__init__()
        self.margin = margin
        self.scale = scale

    def value(self, S: Tensor, pairs: Pairs) -> Tensor:
        """A softplus of two log-sum-exps."""
        m, fixed = self.margin, S.detach()
        pushes = self.scale * (fixed + m).relu() * (S - m)
        pulls = -self.scale * (1 + m - fixed).relu() * (S - 1 + m)
        per_anchor = log_sum_exp(pushes, pairs.negative) + log_sum_exp(pulls, pairs.positive)
        has_both = pairs.positive.any(dim=1) & pairs.negative.any(dim=1)
        return pairs.mean_over_anchors(torch.nn.functional.softplus(per_anchor), among=has_both)

    def measure(self, S: Tensor, pairs: Pairs, with_weights: bool) -> Measured:
        """A pair's weight is its share of its sum times how far it is from its place."""
        positive, negative = pairs.indicators(S)
        m, gamma = self.margin, self.scale
        from_below, from_above = (S + m).relu_(), (1 + m - S).relu_()
        pushes = (S - m).mul_(from_below).mul_(gamma)
        pulls = (S - (1 - m)).mul_(from_above).mul_(-gamma)
        near, push = log_sum_exp_(pushes, 1, gamma * (1 + m) ** 2, Outside(negative))
        far, pull = log_sum_exp_(pulls, 1, gamma * (2 + m) ** 2, Outside(positive))
        both = near.add_(far)  # −∞ where one is missing
        share = gamma / (both > -inf).sum().clamp_min_(1).to(S.dtype)
        value = torch.nn.functional.softplus(both).sum() * (share / gamma)
        if not with_weights:
            return Measured(value)
        active = without_underflow_(both.sigmoid_()).mul_(share).unsqueeze(1)
        pushes.mul_(push.mul_(active)).mul_(from_below)
        pulls.mul_(pull.mul_(active)).mul_(from_above)
        return Measured(value, pushes.sub_(pulls))
