"""The loss of neighbourhood components analysis."""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor

from nearkin.losses.base import register, require_positive
from nearkin.losses.exponentials import Outside, log_sum_exp, log_sum_exp_
from nearkin.losses.pair import PairLoss, Pairs
from nearkin.losses.search_space import TEMPERATURE, space
from nearkin.losses.similarity import Measured


@register("nca")
class NCA(PairLoss):
    """The chance that an anchor that picks a neighbour by distance picks one of its own class.

    Equation:
        L = mean over anchors with a positive of −log(Σ_{P_i} e^{−D²/T} / Σ_{k≠i} e^{−D²/T}), D² = 2 − 2S

        One value per sample: its own logarithm times B / the number of anchors with a positive.

    Source:
        Goldberger, Roweis, Hinton, Salakhutdinov. Neighbourhood Components Analysis. NeurIPS 2004.

    When to use:
        As the parameter-free ancestor of the proxy losses; a lower temperature looks at nearer neighbours
        only. Wants large batches.

    Relations to other losses:
        ``supcon`` takes the logarithm of every positive by itself; ``proxy_nca_pp`` is this with proxies in
        the place of the other samples.

    Args:
        temperature: T.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
        >>> NCA()(embeddings, torch.tensor([0, 0, 1]))
        tensor(0.6931)
    """

    search_space = space(temperature=TEMPERATURE)

    def __init__(self, *, temperature: float = 1.0) -> None:
        require_positive(temperature=temperature)
        super().__init__()
        self.temperature = temperature

    def value(self, S: Tensor, pairs: Pairs) -> Tensor:
        """The difference of two log-sum-exps; the constant of D² cancels."""
        near = 2 * S / self.temperature
        among_all = log_sum_exp(near, pairs.positive | pairs.negative)
        return pairs.mean_over_anchors(
            among_all - log_sum_exp(near, pairs.positive), among=pairs.positive.any(dim=1)
        )

    def measure(self, S: Tensor, pairs: Pairs, with_weights: bool) -> Measured:
        """A pair's weight is its share of one sum less its share of the other."""
        positive, negative = pairs.indicators(S)
        scale = 2 / self.temperature
        others = S * scale
        near = others.clone()
        among_positives, of_positives = log_sum_exp_(near, 1, scale, Outside(positive))
        among_all, of_all = log_sum_exp_(others, 1, scale, Outside(positive + negative))
        has_positive = among_positives > -inf
        share = 1 / has_positive.sum().clamp_min(1).to(S.dtype)
        value = torch.where(has_positive, among_all - among_positives, 0).sum() * share
        if not with_weights:
            return Measured(value)
        per_anchor = (has_positive * (scale * share)).unsqueeze(1)
        weights = others.mul_(of_all.mul_(per_anchor)).addcmul_(near, of_positives.mul_(per_anchor), value=-1)
        return Measured(value, weights)
