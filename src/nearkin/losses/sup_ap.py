"""The SupAP loss of ROADMAP."""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.losses.base import register, require_non_negative, require_positive
from nearkin.losses.pair import Pairs
from nearkin.losses.ranks import OfRanks, RankingLoss, Step, sigmoid_step_
from nearkin.losses.search_space import Range, space
from nearkin.losses.similarity import Measured
from nearkin.losses.smooth_ap import RANK_TEMPERATURE, precision_lost

POSITIVE_BOUNDARY, NEGATIVE_BOUNDARY = 0.9, 0.6
"""Of the calibration: cosines that positives shall be above and negatives below."""


@register("sup_ap")
class SupAP(RankingLoss):
    """An upper bound of one less average precision, whose gradient does not vanish at wrong ranks.

    Equation:
        L = mean over queries with a positive of 1 − (1/|P_i|) Σ_{p∈P_i} R⁺(i,p) / R(i,p) + c · L_calibration

        R⁺(i,p) = 1 + the number of other positives with S_iq > S_ip, ties counting ½, without gradient
        R(i,p) = R⁺(i,p) + Σ_{n∈N_i} H(S_in − S_ip)
        H(t) = σ_τ(t) for t ≤ 0, ½ + σ_τ(t) for 0 < t ≤ δ, ρ(t − δ) + ½ + σ_τ(δ) beyond
        L_calibration = mean over positive pairs with S < 0.9 of (0.9 − S) + mean over negative pairs with S >
          0.6 of (S − 0.6)

        One value per sample: its own term times B / the number of queries with a positive, and its own pairs'
        part of both means, times B.

    Source:
        Ramzi, Thome, Rambour, Audebert, Bitot. Robust and Decomposable Average Precision for Image Retrieval.
        NeurIPS 2021. arXiv:2110.01445. (There the whole is called ROADMAP: (1 − λ) of the first part and λ
        of the calibration.)

    When to use:
        Where ``smooth_ap`` stalls: negatives far before a positive keep pulling, and the calibration makes
        scores of different batches comparable, so that batches may be smaller.

    Relations to other losses:
        ``smooth_ap`` with another step for negatives and none for positives; the calibration is
        ``contrastive`` with a margin for positives too.

    Args:
        temperature: τ of the step below 0.
        slope: ρ of the step far above 0.
        shift: δ, from where on the step grows in proportion.
        calibration: c.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
        >>> round(SupAP(calibration=0.0)(embeddings, torch.tensor([0, 0, 1])).item(), 4)
        0.9565
    """

    search_space = space(
        temperature=RANK_TEMPERATURE, shift=Range(0.01, 0.2, log=True), calibration=Range(0.0, 2.0, step=0.5)
    )

    def __init__(
        self,
        *,
        temperature: float = 0.01,
        slope: float = 100.0,
        shift: float = 0.05,
        calibration: float = 1.0,
    ) -> None:
        require_positive(temperature=temperature)
        require_non_negative(slope=slope, shift=shift, calibration=calibration)
        super().__init__()
        self.temperature = temperature
        self.slope = slope
        self.shift = shift
        self.calibration = calibration

    def of_ranks(
        self, among_positives: Tensor, among_negatives: Tensor, present: Tensor, counts: Tensor
    ) -> OfRanks:
        """One less the mean precision at the positives; ranks among positives are constants."""
        found = precision_lost(among_positives, among_negatives, present, counts)
        return OfRanks(found.values, 0.0, found.by_negatives)

    def step_over_positives_(self, differences: Tensor, with_slopes: bool) -> Step:
        """The true step, ½ at a tie."""
        tie = _tie(differences)
        return Step((differences > tie).to(differences.dtype).add_(differences.abs() <= tie, alpha=0.5), None)

    def step_over_negatives_(self, differences: Tensor, with_slopes: bool) -> Step:
        """H, which jumps at 0 and grows without limit."""
        above = differences > _tie(differences)
        beyond = (differences - self.shift).relu_()
        capped = differences.clamp_max_(self.shift)
        values, slopes = sigmoid_step_(capped, self.temperature, with_slopes)
        if slopes is not None:
            slopes = torch.where(beyond > 0, self.slope, slopes)
        return Step(values.add_(above, alpha=0.5).add_(beyond, alpha=self.slope), slopes)

    def value(self, S: Tensor, pairs: Pairs) -> Tensor:
        """Both parts, one value for each row."""
        value = super().value(S, pairs)
        if not self.calibration:
            return value
        pull, push = POSITIVE_BOUNDARY - S, S - NEGATIVE_BOUNDARY
        pulls = pairs.mean_over_pairs(pull, pairs.positive & (pull > 0))
        pushes = pairs.mean_over_pairs(push, pairs.negative & (push > 0))
        return value + self.calibration * (pulls + pushes)

    def measure(self, S: Tensor, pairs: Pairs, with_weights: bool) -> Measured:
        """Both parts; the calibration's weights are constants on the violating pairs."""
        value, weights, _ = super().measure(S, pairs, with_weights)
        if not self.calibration:
            return Measured(value, weights)
        for sign, boundary, among in (
            (-1, POSITIVE_BOUNDARY, pairs.positive),
            (1, NEGATIVE_BOUNDARY, pairs.negative),
        ):
            violating = among & (boundary > S if sign < 0 else boundary < S)
            share = self.calibration / violating.sum().clamp_min(1).to(S.dtype)
            value = value + sign * share * torch.where(violating, S - boundary, 0).sum()
            if weights is not None:
                weights.add_(violating * (sign * share))
        return Measured(value, weights)


def _tie(differences: Tensor) -> float:
    """Up to where the similarities of two copies of an image may differ by rounding."""
    return 8 * torch.finfo(differences.dtype).eps
