"""The triplet loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import inf
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from nearkin.losses.base import register, require_non_negative
from nearkin.losses.metric import Metric, through_slope_
from nearkin.losses.pair import MinedPairLoss, Pairs
from nearkin.losses.search_space import MARGIN, space
from nearkin.losses.similarity import Measured
from nearkin.mining import Masks, Miner, Triplets
from nearkin.mining.base import FAR, only, places_in_rows, places_of

_FEW_POSITIVES = 16
"""Up to so many positives per anchor, comparing with each is quicker than sorting them."""


@register("triplet")
class Triplet(MinedPairLoss):
    """Every positive shall be nearer to the anchor than every mined negative, by a margin.

    Equation:
        L = mean over mined triplets (a, p, n) with a value above 0 of [S_an − S_ap + λ]₊

        With metric="squared_euclidean", where D² = 2 − 2S: [D_ap² − D_an² + λ]₊
        With metric="euclidean": [D_ap − D_an + λ]₊; with "euclidean_raw" D² is that of raw embeddings, with
        "hyperbolic" D is the distance in the Poincaré ball.
        With swap, the nearer of anchor and positive counts: max(S_an, S_pn) takes the place of S_an.
        With smooth, softplus takes the place of [·]₊.

        One value per sample: the part of the triplets it is the anchor of, times B.

    Source:
        Weinberger, Saul. Distance Metric Learning for Large Margin Nearest Neighbor Classification. JMLR
        2009. Schroff, Kalenichenko, Philbin. FaceNet: A Unified Embedding for Face Recognition and
        Clustering. CVPR 2015. arXiv:1503.03832.

    When to use:
        When only the order of distances matters, not their size. Semi-hard mining is the safe choice;
        mining="all" is exact over every triplet at the price of a sort, not of B³.

    Relations to other losses:
        ``npair`` and ``info_nce`` compare with all negatives at once where this takes one; ``smooth_ap``
        counts the triplets that are in the wrong order. ``direction_triplet`` adds a term to it.

    Args:
        margin: λ.
        metric: as for ``contrastive``.
        swap: whether a negative is also pushed from the positive, where it is nearer to that than to the
            anchor (Balntas et al., 2016).
        smooth: whether triplets beyond the margin keep a small pull, by softplus.
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
        metric: str | Mapping[str, Any] | Metric = "cosine",
        swap: bool = False,
        smooth: bool = False,
        mining: str | Miner = "semi_hard",
        generator: torch.Generator | None = None,
    ) -> None:
        require_non_negative(margin=margin)
        super().__init__(mining, generator)
        self.margin = margin
        self.use_metric(metric)
        self.swap = swap
        self.smooth = smooth
        self.among_references = self.among_references or swap

    @property
    def traceable(self) -> bool:
        """Triplets are listed: as many as there are."""
        return False

    def value(self, S: Tensor, pairs: Pairs) -> Tensor:
        """The mean over active triplets."""
        mined, near = self.mine(S, pairs), self.geometry.nearness(S)
        if isinstance(mined, Triplets):
            anchor, positive, negative = mined
            between = near[positive, negative] if self.swap else near[:0]
            terms = self._hinge(self._term(near[anchor, negative], near[anchor, positive], between))
            nothing = near.new_zeros(len(S))
            sums, counts = (
                nothing.index_add(0, anchor, of_triplets) for of_triplets in (terms, terms.sign())
            )
        else:
            sums, counts = sum_over_triplets(self._term, near, mined, self._hinge)
        return pairs.mean_of_sums(sums, counts.detach())

    def _term(self, near_an: Tensor, near_ap: Tensor, near_pn: Tensor) -> Tensor:
        """How much a triplet violates the margin."""
        return (torch.maximum(near_an, near_pn) if self.swap else near_an) - near_ap + self.margin

    def _hinge(self, terms: Tensor) -> Tensor:
        """What of it counts."""
        return torch.nn.functional.softplus(terms) if self.smooth else terms.relu()

    def measure(self, S: Tensor, pairs: Pairs, with_weights: bool) -> Measured:
        """A pair's weight is the number of active triplets it is in; other forms are left to autograd."""
        if self.swap or self.smooth:
            return super().measure(S, pairs, with_weights)
        near, slope = self.geometry.nearness_and_slope(S)
        mined = self.mine(S, pairs)
        if isinstance(mined, Triplets):
            total, active, memberships = _count_listed(near, mined, self.margin)
        else:
            total, active, memberships = _count_all(near, mined, self.margin)
        per_triplet = active.clamp_min(1).to(S.dtype).reciprocal()
        weights = memberships.mul_(per_triplet)
        return Measured(total * per_triplet, through_slope_(weights, slope))


Term = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From the nearness ``(A, R)`` of negatives, ``(A, 1)`` of a positive and ``(A, R)`` between these two."""


def sum_over_triplets(
    term: Term, near: Tensor, mined: Masks, hinge: Callable[[Tensor], Tensor] = torch.relu
) -> tuple[Tensor, Tensor]:
    """For each anchor the sum of ``hinge(term)`` over its triplets, differentiable, and how many exceed 0.

    One positive of each anchor at a time, and nothing of it is kept for the backward pass: memory does not
    grow with the number of triplets.
    """

    def of_one_positive(near: Tensor, anchor: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
        terms = term(
            near[anchor], near[anchor, positive].unsqueeze(1), near[positive] if square else near[:0]
        )
        active = hinge(torch.where(mined.negative[anchor], terms, -inf))
        return active.sum(dim=1), active.sign().sum(dim=1)

    square = near.shape[0] == near.shape[1]
    sums, counts = near.new_zeros(len(near)), near.new_zeros(len(near))
    for anchor, positive in each_positive(mined.positive):
        parts = checkpoint(of_one_positive, near, anchor, positive, use_reentrant=False)
        sums, counts = (
            total.index_add(0, anchor, part) for total, part in zip((sums, counts), parts, strict=True)
        )
    return sums, counts


def each_positive(mask: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows and columns of a mask ``(B, R)``: the first true entry of each row, then the second, and so on.

    >>> [columns.tolist() for _, columns in each_positive(torch.tensor([[True, True], [False, True]]))]
    [[0, 1], [1]]
    """
    anchor, positive = places_of(mask)
    place = places_in_rows(anchor, len(mask))
    for k in range(int(place.max()) + 1 if len(place) else 0):
        kth = (place == k).nonzero().squeeze(1)
        yield anchor[kth], positive[kth]


def _count_listed(S: Tensor, triplets: Triplets, margin: float) -> tuple[Tensor, Tensor, Tensor]:
    """The sum over listed triplets of ``[S_an − S_ap + margin]₊``, how many are above 0, and ∂sum/∂S."""
    start = triplets.anchor * S.shape[1]
    positive, negative = start + triplets.positive, start.add_(triplets.negative)
    entries = S.view(-1)
    terms = entries.index_select(0, negative).sub_(entries.index_select(0, positive)).add_(margin).relu_()
    active = terms.sign()
    # Whole numbers, so that the order of the additions (undefined on CUDA) does not matter.
    memberships = torch.zeros_like(S)
    memberships.view(-1).index_add_(0, negative, active).index_add_(0, positive, active, alpha=-1)
    return terms.sum(), active.sum(), memberships


def _count_all(S: Tensor, masks: Masks, margin: float) -> tuple[Tensor, Tensor, Tensor]:
    """The same over every triplet the masks allow, without looking at single triplets.

    A triplet is active where ``S_an`` exceeds the positive's threshold ``S_ap − margin``. So the sum is that
    of each ``S_an`` times the number of thresholds below it, less each threshold times the number of ``S_an``
    above it.
    """
    anchor, positive = places_of(masks.positive)
    if not len(anchor):
        return S.new_zeros(()), S.new_zeros(()), torch.zeros_like(S)
    place = places_in_rows(anchor, len(S))
    thresholds = S.new_full((len(S), int(place.max()) + 1), inf)
    thresholds[anchor, place] = S[anchor, positive] - margin
    rank = _compare_with_each if thresholds.shape[1] <= _FEW_POSITIVES else _look_up_in_sorted
    below, above = rank(S, masks.negative, thresholds)
    from_negatives = (below * S).sum(dim=1)
    from_thresholds = torch.where(above > 0, above * thresholds, 0).sum(dim=1)
    total = (from_negatives.double() - from_thresholds.double()).sum().to(S.dtype)  # nearly cancel
    below[anchor, positive] = -above[anchor, place]
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
    ranks = torch.searchsorted(ordered, S).mul_(negative)
    histogram = ranks.new_zeros(len(S), ordered.shape[1] + 1).scatter_add_(1, ranks, torch.ones_like(ranks))
    above = histogram.flip(1).cumsum(1).flip(1)[:, 1:].to(S.dtype)
    return ranks.to(S.dtype), torch.zeros_like(above).scatter_(1, order, above)
