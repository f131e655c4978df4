"""The Smooth-AP loss."""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.losses.base import register, require_positive
from nearkin.losses.ranks import OfRanks, RankingLoss
from nearkin.losses.search_space import Range, space

RANK_TEMPERATURE = Range(0.001, 0.1, log=True)
"""Where a search looks for the temperature of a step between two cosines."""


@register("smooth_ap")
class SmoothAP(RankingLoss):
    """Average precision of each sample's retrieval, with soft ranks in place of ranks.

    Equation:
        L = mean over queries with a positive of 1 − (1/|P_i|) Σ_{p∈P_i} R⁺(i,p) / R(i,p)

        R⁺(i,p) = 1 + Σ_{q∈P_i, q≠p} σ_τ(S_iq − S_ip)
        R(i,p) = R⁺(i,p) + Σ_{n∈N_i} σ_τ(S_in − S_ip), σ_τ(t) = 1 / (1 + e^{−t/τ})

        One value per sample: its own term times B / the number of queries with a positive.

    Source:
        Brown, Xie, Kalogeiton, Zisserman. Smooth-AP: Smoothing the Path Towards Large-Scale Image Retrieval.
        ECCV 2020. arXiv:2007.12163. (There a query is its own first positive; here it is none. The exponent's
        limits of ±50 in the authors' code change no digit.)

    When to use:
        With large batches of a few samples per class, where it optimises nearly what retrieval is scored by;
        among the best on data sets of very many small classes (Stanford Online Products).

    Relations to other losses:
        The same ranks as ``recall_at_k`` (cut at k), ``pnp`` (negatives only) and ``sup_ap`` (which bounds
        average precision from below). As τ goes to 0 it becomes 1 − average precision, which ``fast_ap``
        approximates by histograms.

    Args:
        temperature: τ, how near two cosines must be for their order to be undecided.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
        >>> SmoothAP()(embeddings, torch.tensor([0, 0, 1]))
        tensor(0.5000)
    """

    search_space = space(temperature=RANK_TEMPERATURE)

    def __init__(self, *, temperature: float = 0.01) -> None:
        require_positive(temperature=temperature)
        super().__init__()
        self.temperature = temperature

    def of_ranks(
        self, among_positives: Tensor, among_negatives: Tensor, present: Tensor, counts: Tensor
    ) -> OfRanks:
        """One less the mean precision at the positives."""
        return precision_lost(among_positives, among_negatives, present, counts)


def precision_lost(
    among_positives: Tensor, among_negatives: Tensor, present: Tensor, counts: Tensor
) -> OfRanks:
    """``1 − (1/|P_i|) Σ_p R⁺/R``, as the mean of R⁻/R, which nothing is lost in where it is small.

    >>> precision_lost(torch.ones(1, 1), torch.ones(1, 1), torch.ones(1, 1), torch.ones(1)).values
    tensor([0.5000])
    """
    share = present / counts.unsqueeze(1)
    ranks = among_positives + among_negatives
    values = torch.div(among_negatives, ranks).mul_(share).sum(dim=1)
    per_rank = share / ranks.square()
    return OfRanks(values, -per_rank * among_negatives, per_rank * among_positives)
