"""The ranked list loss."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

import torch
from torch import Tensor

from nearkin.losses.base import register, require_non_negative, require_positive
from nearkin.losses.exponentials import Outside, log_sum_exp, log_sum_exp_
from nearkin.losses.metric import Metric, through_slope_
from nearkin.losses.pair import PairLoss, Pairs
from nearkin.losses.search_space import MARGIN, Range, space
from nearkin.losses.similarity import Measured


@register("ranked_list")
class RankedList(PairLoss):
    """Keep positives within a ball around the anchor and negatives outside of a larger one.

    Equation:
        L = mean over anchors of ½ mean over positives with D > α − m of (D − α + m)
          + ½ Σ_{n∈N_i} w_n [α − D]₊

        w_n is proportional to e^{T(α − D)}, sums to 1 over the negatives with D < α, and is a constant: no
        gradient flows through it.

        One value per sample: its own term.

    Source:
        Wang, Hua, Kodirov, Hu, Garnier, Robertson. Ranked List Loss for Deep Metric Learning. CVPR 2019.
        arXiv:1903.03238.

    When to use:
        Where classes have inner structure that shall survive: positives within α − m are left alone, instead
        of being pulled onto one point.

    Relations to other losses:
        ``margin`` with a fixed boundary (β = α − m/2, half the margin), averaged per anchor and with the
        nearest negatives weighed most. T = 0 weighs all violating ones alike, as ``contrastive`` does.

    Args:
        margin: m between the two balls.
        alpha: α, the radius that negatives shall be outside of.
        temperature: T; the higher, the more the nearest negatives count.
        metric: the distance D; as for ``contrastive``.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
        >>> round(RankedList()(embeddings, torch.tensor([0, 0, 1])).item(), 4)
        0.6047
    """

    stops_gradients = True

    search_space = space(
        margin=MARGIN, alpha=Range(0.8, 1.6, step=0.1), temperature=Range(1.0, 30.0, log=True)
    )

    def __init__(
        self,
        *,
        margin: float = 0.4,
        alpha: float = 1.2,
        temperature: float = 10.0,
        metric: str | Mapping[str, Any] | Metric = "euclidean",
    ) -> None:
        require_non_negative(margin=margin)
        require_positive(alpha=alpha, temperature=temperature)
        super().__init__()
        self.margin = margin
        self.alpha = alpha
        self.temperature = temperature
        self.use_metric(metric)

    def value(self, S: Tensor, pairs: Pairs) -> Tensor:
        """Half a mean and half a weighted one."""
        D = self.geometry.identical - self.geometry.nearness(S)
        outside, inside = D - (self.alpha - self.margin), self.alpha - D
        far = pairs.positive & (outside > 0)
        near = pairs.negative & (inside > 0)
        pull = torch.where(far, outside, 0).sum(dim=1) / far.sum(dim=1).clamp_min(1)
        exponents = self.temperature * inside.detach()
        shares = torch.where(near, exponents - log_sum_exp(exponents, near).unsqueeze(1), -inf).exp()
        push = (shares * inside).sum(dim=1)
        return pairs.mean_over_anchors((pull + push) / 2)

    def measure(self, S: Tensor, pairs: Pairs, with_weights: bool) -> Measured:
        """A far positive's weight is one share of them, a near negative's its share of the exponentials."""
        positive, negative = pairs.indicators(S)
        nearness, slope = self.geometry.nearness_and_slope(S)
        D = self.geometry.identical - nearness
        outside, inside = D - (self.alpha - self.margin), self.alpha - D
        far = (outside > 0).to(S.dtype).mul_(positive)
        near = (inside > 0).to(S.dtype).mul_(negative)
        far.div_(far.sum(dim=1, keepdim=True).clamp_min_(1))
        shares = inside * self.temperature
        _, share = log_sum_exp_(shares, 1, outside=Outside(near))
        shares.mul_(share)
        per_anchor = 1 / (2 * pairs.anchors)
        value = (outside.mul_(far).sum() + inside.mul_(shares).sum()) * per_anchor
        if not with_weights:
            return Measured(value)
        return Measured(value, through_slope_(shares.sub_(far).mul_(per_anchor), slope))
