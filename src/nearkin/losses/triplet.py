"""The triplet loss."""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor

from nearkin.losses.base import register, require_non_negative, require_one_of
from nearkin.losses.pair import MinedPairLoss, Pairs
from nearkin.losses.search_space import MARGIN, space
from nearkin.losses.similarity import Measured
from nearkin.mining import Masks, Miner, Triplets
from nearkin.mining.base import FAR, as_float, only, places_in_rows, places_of

_FEW_POSITIVES = 16
"""Up to so many positives per anchor, comparing with each is quicker than sorting them."""


@register("triplet")
class Triplet(MinedPairLoss):
    """Every positive shall be nearer to the anchor than every mined negative, by a margin.

    Equation:
        L = mean over mined triplets (a, p, n) with a value above 0 of [S_an − S_ap + λ]₊

        With metric="squared_euclidean", where D² = 2 − 2S: [D_ap² − D_an² + λ]₊

    Source:
        Weinberger, Saul. Distance Metric Learning for Large Margin Nearest Neighbor Classification. JMLR
        2009. Schroff, Kalenichenko, Philbin. FaceNet: A Unified Embedding for Face Recognition and
        Clustering. CVPR 2015. arXiv:1503.03832.

    When to use:
        When only the order of distances matters, not their size. Semi-hard mining is the safe choice;
        mining="all" is exact over every triplet at the price of a sort, not of B³.

    Args:
        margin: λ.
        metric: "cosine" or "squared_euclidean".
        mining: a miner's name or a miner; masks stand for all triplets they allow.
        generator: for random miners.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
        >>> Triplet(margin=0.1, mining="all")(embeddings, torch.tensor([0, 0, 1]))
        tensor(0.3800)
    """

    search_space = space(margin=MARGIN)

    def __init__(
        self,
        *,
        margin: float = 0.1,
        metric: str = "cosine",
        mining: str | Miner = "semi_hard",
        generator: torch.Generator | None = None,
    ) -> None:
        require_non_negative(margin=margin)
        require_one_of(("cosine", "squared_euclidean"), metric=metric)
        super().__init__(mining, generator)
        self.margin = margin
        self.metric = metric

    def measure(self, S: Tensor, pairs: Pairs, with_weights: bool) -> Measured:
        """The mean over active triplets; a pair's weight is the number of active triplets it is in."""
        # D_ap² − D_an² + λ = 2 (S_an − S_ap + λ/2)
        margin, slope = (self.margin, 1) if self.metric == "cosine" else (self.margin / 2, 2)
        mined = self.mine_pairs(S, pairs) if hasattr(self.miner, "refine") else self.mine(S, pairs)
        if isinstance(mined, Triplets):
            total, active, memberships = _count_listed(S, mined, margin)
        else:
            numbers = Masks(*(as_float(mask, S) for mask in mined))
            total, active, memberships = _count_all(S, numbers, margin)
        per_triplet = slope / active.clamp_min(1).to(S.dtype)
        return Measured(total * per_triplet, memberships.mul_(per_triplet) if with_weights else None)


def _count_listed(S: Tensor, triplets: Triplets, margin: float) -> tuple[Tensor, Tensor, Tensor]:
    """The sum over listed triplets of ``[S_an − S_ap + margin]₊``, how many are above 0, and ∂sum/∂S."""
    start = triplets.anchor * S.shape[1]
    to_kin, to_stranger = start + triplets.positive, start.add_(triplets.negative)
    entries = S.view(-1)
    terms = entries.index_select(0, to_stranger).sub_(entries.index_select(0, to_kin)).add_(margin).relu_()
    active = terms.sign()
    # Whole numbers, so that the order of the additions (undefined on CUDA) does not matter.
    memberships = torch.zeros_like(S)
    memberships.view(-1).index_add_(0, to_stranger, active).index_add_(0, to_kin, active, alpha=-1)
    return terms.sum(), active.sum(), memberships


def _count_all(S: Tensor, masks: Masks, margin: float) -> tuple[Tensor, Tensor, Tensor]:
    """The same over every triplet the masks (ones and zeros) allow, without looking at single triplets.

    A triplet is active where ``S_an`` exceeds the positive's threshold ``S_ap − margin``. So the sum is that
    of each ``S_an`` times the number of thresholds below it, less each threshold times the number of ``S_an``
    above it.
    """
    anchor, kin = places_of(masks.positive.to(torch.bool))
    if not len(anchor):
        return S.new_zeros(()), S.new_zeros(()), torch.zeros_like(S)
    place = places_in_rows(anchor, len(S))
    thresholds = S.new_full((len(S), int(place.max()) + 1), inf)
    thresholds[anchor, place] = S[anchor, kin] - margin
    rank = _compare_with_each if thresholds.shape[1] <= _FEW_POSITIVES else _look_up_in_sorted
    below, above = rank(S, masks.negative, thresholds)
    gained = (below * S).sum(dim=1)
    owed = torch.where(above > 0, above * thresholds, 0).sum(dim=1)
    total = (gained.double() - owed.double()).sum().to(S.dtype)  # the two are large and nearly cancel
    below[anchor, kin] = -above[anchor, place]
    return total, above.sum(), below


def _compare_with_each(S: Tensor, negative: Tensor, thresholds: Tensor) -> tuple[Tensor, Tensor]:
    """How many thresholds ``(B, K)`` are below each negative ``(B, R)``, and negatives above each of them."""
    negatives = only(negative, S, -FAR)
    below, active, above = torch.zeros_like(S), torch.empty_like(S), torch.empty_like(thresholds)
    for k in range(thresholds.shape[1]):
        torch.gt(negatives, thresholds[:, k : k + 1], out=active)
        torch.sum(active, dim=1, out=above[:, k])
        below.add_(active)
    return below, above


def _look_up_in_sorted(S: Tensor, negative: Tensor, thresholds: Tensor) -> tuple[Tensor, Tensor]:
    """The same by sorting: O(B² log B), however many positives there are.

    A negative's rank among the thresholds is the first number; the ranks' histogram, summed from above, gives
    the second.
    """
    ordered, order = thresholds.sort(dim=1)
    ranks = torch.searchsorted(ordered, S).mul_(negative.to(torch.bool))
    histogram = ranks.new_zeros(len(S), ordered.shape[1] + 1).scatter_add_(1, ranks, torch.ones_like(ranks))
    above = histogram.flip(1).cumsum(1).flip(1)[:, 1:].to(S.dtype)
    return ranks.to(S.dtype), torch.zeros_like(above).scatter_(1, order, above)
