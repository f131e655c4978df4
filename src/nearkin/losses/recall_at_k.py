"""The recall@k surrogate loss."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nearkin.losses.base import register, require_count, require_positive
from nearkin.losses.ranks import OfRanks, RankingLoss
from nearkin.losses.search_space import Range, space
from nearkin.losses.smooth_ap import RANK_TEMPERATURE


@register("recall_at_k")
class RecallAtK(RankingLoss):
    """How many of a sample's positives are among its k nearest, for several k, with soft ranks.

    Equation:
        L = mean over queries with a positive of 1 − mean over k of
          min(Σ_{p∈P_i} σ_T(k − R(i,p)), k) / min(k, |P_i|)

        R(i,p) = 1 + Σ_{k≠i,p} σ_τ(S_ik − S_ip), σ_τ(t) = 1 / (1 + e^{−t/τ})

        One value per sample: its own term times B / the number of queries with a positive.

    Source:
        Patel, Tolias, Matas. Recall@k Surrogate Loss with Large Batches and Similarity Mixup. CVPR 2022.
        arXiv:2108.11179.

    When to use:
        With batches of thousands (together with gradient caching), where the first k neighbours mean
        something; in small batches every positive is among the first 16.

    Relations to other losses:
        The ranks of ``smooth_ap``, counted up to k instead of divided; like it, a function of all samples of
        the batch for each positive.

    Args:
        ks: the numbers of neighbours.
        temperature: τ, of a step between two cosines.
        cut_temperature: T, of the step at rank k.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
        >>> RecallAtK(ks=(1,))(embeddings, torch.tensor([0, 0, 1]))
        tensor(0.7311)
    """

    search_space = space(temperature=RANK_TEMPERATURE, cut_temperature=Range(0.1, 4.0, log=True))

    def __init__(
        self,
        *,
        ks: Sequence[int] = (1, 2, 4, 8, 16),
        temperature: float = 0.01,
        cut_temperature: float = 1.0,
    ) -> None:
        if not ks:
            raise ValueError("ks=() must hold at least one number of neighbours")
        for k in ks:
            require_count(ks=k)
        require_positive(temperature=temperature, cut_temperature=cut_temperature)
        super().__init__()
        self.ks = tuple(ks)
        self.temperature = temperature
        self.cut_temperature = cut_temperature

    def of_ranks(
        self, among_positives: Tensor, among_negatives: Tensor, present: Tensor, counts: Tensor
    ) -> OfRanks:
        """One less the mean recall; beyond k found positives there is nothing to gain."""
        ranks = among_positives + among_negatives
        values, slopes = torch.ones_like(counts), torch.zeros_like(ranks)
        for k in self.ks:
            within = ((k - ranks) / self.cut_temperature).sigmoid_().mul_(present)
            found = within.sum(dim=1)
            share = 1 / (counts.clamp_max(k) * len(self.ks))
            values -= found.clamp_max(k) * share
            falling = (share * (found < k) / self.cut_temperature).unsqueeze(1)
            slopes += within * (1 - within) * falling
        return OfRanks(values, slopes, slopes)
