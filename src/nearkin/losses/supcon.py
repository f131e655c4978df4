"""The supervised contrastive loss."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

import torch
from torch import Tensor

from nearkin.losses.base import or_one, register, require_positive
from nearkin.losses.exponentials import Outside, log_sum_exp, log_sum_exp_
from nearkin.losses.metric import Metric, through_slope_
from nearkin.losses.pair import PairLoss, Pairs
from nearkin.losses.search_space import TEMPERATURE, space
from nearkin.losses.similarity import Measured


@register("supcon")
class SupCon(PairLoss):
    """Every positive as the right answer among all other samples of the batch.

    Equation:
        L = mean over anchors with a positive of −(1/|P_i|) Σ_{p∈P_i} log(exp(S_ip/T) / Σ_{k≠i} exp(S_ik/T))

        With another metric, minus the distance takes the place of S. A batch without negatives gives 0.

        One value per sample: its own term times B / the number of anchors with a positive.

    Source:
        Khosla, Teterwak, Wang, Sarna, Tian, Isola, Maschinot, Liu, Krishnan. Supervised Contrastive Learning.
        NeurIPS 2020. arXiv:2004.11362. (The form with the sum outside of the logarithm, without the factor of
        temperatures in the authors' code.)

    When to use:
        With large batches of several samples per class, or of two augmented views of each; a good first
        choice with labels and views together. With metric="hyperbolic" and T 0.2 it is the loss of the
        hyperbolic vision transformers.

    Relations to other losses:
        ``nca`` takes the logarithm of the sum over positives, this the mean of logarithms. ``info_nce``
        leaves the other positives out of the denominator; with one positive each, the two are equal.

    Args:
        temperature: T.
        metric: as for ``contrastive``.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
        >>> SupCon()(embeddings, torch.tensor([0, 0, 1]))
        tensor(0.6931)
    """

    search_space = space(temperature=TEMPERATURE)

    def __init__(
        self, *, temperature: float = 0.1, metric: str | Mapping[str, Any] | Metric = "cosine"
    ) -> None:
        require_positive(temperature=temperature)
        super().__init__()
        self.temperature = temperature
        self.use_metric(metric)

    def value(self, S: Tensor, pairs: Pairs) -> Tensor:
        """A log-sum-exp over all others less the mean over the positives."""
        near = self.geometry.nearness(S) / self.temperature
        counts = pairs.positive.sum(dim=1)
        pulled = torch.where(pairs.positive, near, 0).sum(dim=1) / counts.clamp_min(1)
        among_all = log_sum_exp(near, pairs.positive | pairs.negative)
        return pairs.mean_over_anchors(among_all - pulled, among=(counts > 0) & pairs.negative.any())

    def measure(self, S: Tensor, pairs: Pairs, with_weights: bool) -> Measured:
        """A pair's weight is its share of the sum, less one share of the positives."""
        positive, negative = pairs.indicators(S)
        near, slope = self.geometry.nearness_and_slope(S)
        near = near / self.temperature
        counts = positive.sum(dim=1)
        has_positive = (counts > 0) & negative.any()
        pulled = torch.mul(near, positive).sum(dim=1).div_(counts.clamp_min(1))
        bound = 1 / self.temperature if self.geometry.identical else inf
        among_all, share = log_sum_exp_(near, 1, bound, Outside(positive + negative))
        per_anchor = 1 / or_one(has_positive.sum().to(S.dtype))
        value = torch.where(has_positive, among_all - pulled, 0).sum() * per_anchor
        if not with_weights:
            return Measured(value)
        active = has_positive * (per_anchor / self.temperature)
        weights = near.mul_(share.mul_(active.unsqueeze(1)))
        weights.addcmul_(positive, (active / counts.clamp_min_(1)).unsqueeze(1), value=-1)
        return Measured(value, through_slope_(weights, slope))
