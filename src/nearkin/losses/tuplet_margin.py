"""The tuplet margin loss."""

from __future__ import annotations

from math import cos, radians, sin

import torch
from torch import Tensor

from nearkin.losses.base import register, require_non_negative, require_positive
from nearkin.losses.one_against_all import sum_against_all, sum_against_all_
from nearkin.losses.pair import PairLoss, Pairs
from nearkin.losses.search_space import SCALE, Range, space
from nearkin.losses.similarity import Measured


@register("tuplet_margin")
class TupletMargin(PairLoss):
    """Each positive against all negatives of its anchor, easier by an angle that keeps it from collapsing.

    Equation:
        L = mean over positive pairs (i, p) of log(1 + Σ_{n∈N_i} e^{s(S_in − cos(θ_ip − β))}), cos θ_ip = S_ip

        One value per sample: its own pairs' part of the mean, times B.

    Source:
        Yu, Tao. Deep Metric Learning with Tuplet Margin Loss. ICCV 2019. (Its intra-pair variance term is not
        a part of it.)

    When to use:
        Where ``npair`` or ``info_nce`` overfit to the hardest positives: an angle below β counts as reached,
        and a pair nearer than that is even let go.

    Relations to other losses:
        With β = 0 it is ``info_nce`` with T = 1/s. The angle is ArcFace's, with the opposite sign.

    Args:
        margin_degrees: β, in degrees.
        scale: s.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
        >>> TupletMargin()(embeddings, torch.tensor([0, 0, 1]))
        tensor(13.0002)
    """

    search_space = space(margin_degrees=Range(0.0, 20.0, step=2.0), scale=SCALE)

    def __init__(self, *, margin_degrees: float = 5.73, scale: float = 64.0) -> None:
        require_non_negative(margin_degrees=margin_degrees)
        require_positive(scale=scale)
        super().__init__()
        self.margin_degrees = margin_degrees
        self.scale = scale

    def value(self, S: Tensor, pairs: Pairs) -> Tensor:
        """The mean over positive pairs."""
        beta = radians(self.margin_degrees)
        turned = cos(beta) * S + sin(beta) * _sine(S)
        sums = sum_against_all(self.scale * S, self.scale * turned, pairs.positive, pairs.negative)
        return pairs.mean_of_sums(sums, pairs.positive.sum(dim=1).to(S.dtype))

    def measure(self, S: Tensor, pairs: Pairs, with_weights: bool) -> Measured:
        """A positive's weight is the chance that it loses, times how its turned cosine changes with S."""
        beta, s = radians(self.margin_degrees), self.scale
        positive, negative = pairs.indicators(S)
        sine = _sine(S)
        turned = (cos(beta) * s * S).add_(sine, alpha=sin(beta) * s)
        found = sum_against_all_(s * S, turned, positive, negative, s)
        share = 1 / positive.sum().clamp_min(1)
        value = found.sums.sum() * share
        if not with_weights:
            return Measured(value)
        slope = (
            torch.div(S, sine).nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0).mul_(-sin(beta)).add_(cos(beta))
        )
        weights = found.by_negatives.addcmul_(found.by_positives, slope)
        return Measured(value, weights.mul_(share * s))


def _sine(S: Tensor) -> Tensor:
    """``√(1 − S²)``, differentiable; 0 with derivative 0 where the angle is 0 or π up to rounding."""
    squared = (1 - S) * (1 + S)
    between = squared > 8 * torch.finfo(S.dtype).eps
    return torch.where(between, torch.where(between, squared, 1).sqrt(), 0)
