"""The triplet loss with direction regularisation."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from nearkin.losses.base import register, require_non_negative
from nearkin.losses.direction import direction
from nearkin.losses.pair import Pairs
from nearkin.losses.search_space import MARGIN, space
from nearkin.losses.similarity import Measured, inverse_distance
from nearkin.losses.triplet import Triplet, sum_over_triplets
from nearkin.mining import Masks
from nearkin.mining.base import FAR, places_in_rows, places_of

_CHUNK = 1 << 18
"""Triplets looked at together: they fit into a processor's cache."""


@register("direction_triplet")
class DirectionTriplet(Triplet):
    """The triplet loss over all triplets, less demanding where the negative lies in the positive's direction.

    Equation:
        L = mean over all triplets with a value above 0 of [D_ap² − D_an² + α − γ cos(z_n − z_a, z_p − z_a)]₊

        The prose of the survey says the cosine is minimised; its equations subtract it, and that is built.

    Source:
        Mohan, Sankaran, Fedorishin, Setlur, Govindaraju. Moving in the Right Direction: A Regularization for
        Deep Metric Learning. CVPR 2020. Survey equation (33).

    When to use:
        To try on top of a triplet loss that has stopped improving. Its cost grows with the number of triplets
        (its memory does not).

    Relations to other losses:
        ``triplet`` with metric="squared_euclidean" and mining="all" where γ is 0.

    Args:
        margin: α.
        gamma: γ; 0 is the triplet loss with metric="squared_euclidean" and mining="all".

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
        >>> DirectionTriplet()(embeddings, torch.tensor([0, 0, 1]))
        tensor(0.3692)
    """

    among_references = True

    search_space = space(margin=MARGIN, gamma=MARGIN)

    def __init__(self, *, margin: float = 0.1, gamma: float = 0.3) -> None:
        require_non_negative(gamma=gamma)
        super().__init__(margin=margin, metric="squared_euclidean", mining="all")
        self.gamma = gamma

    def value(self, S: Tensor, pairs: Pairs) -> Tensor:
        """The mean over active triplets, where direction makes some of them easier."""
        if self.gamma == 0:
            return super().value(S, pairs)

        def term(S_an: Tensor, S_ap: Tensor, S_pn: Tensor) -> Tensor:
            return 2 * (S_an - S_ap) + self.margin - self.gamma * direction(S_an, S_ap, S_pn)

        return pairs.mean_of_sums(*sum_over_triplets(term, S, Masks(pairs.positive, pairs.negative)))

    def measure(self, S: Tensor, pairs: Pairs, with_weights: bool) -> Measured:
        """The same with all weights added up on the way."""
        if self.gamma == 0:
            return super().measure(S, pairs, with_weights)
        sums = self._sum_over_anchors(S, pairs)
        share = 1 / sums.active.clamp_min(1)
        return Measured(sums.total.to(S.dtype) * share, sums.weights.mul_(share))

    def _sum_over_anchors(self, S: Tensor, pairs: Pairs) -> _Sums:
        """Some anchors at a time, and of them one positive at a time."""
        sums = _Sums(S.new_zeros((), dtype=torch.float64), S.new_zeros(()), torch.zeros_like(S))
        anchor, column = places_of(pairs.positive)
        if not len(anchor):
            return sums
        # Anchors with the most positives come first: those that have a k-th one are then a slice, not a copy.
        place = places_in_rows(anchor, len(S))
        most = int(place.max()) + 1
        in_row, order = anchor.bincount(minlength=len(S)).sort(descending=True, stable=True)
        positives = column.new_zeros(len(S), most).index_put_((anchor, place), column)[order]
        with_kth = (in_row > torch.arange(most, device=S.device).unsqueeze(1)).sum(dim=1).tolist()
        negative = pairs.indicators(S).negative
        at_once = max(1, _CHUNK // S.shape[1])
        for start in range(0, with_kth[0], at_once):
            end = min(start + at_once, with_kth[0])
            triplets = _Triplets(S, order[start:end], negative, sums)
            for k, last in enumerate(with_kth):
                triplets.add(positives[start : min(end, last), k], self.margin, self.gamma)
            triplets.close(self.gamma)
        return sums


class _Sums(NamedTuple):
    """What all active triplets add up to.

    With N = S_pn − S_an − S_ap + 1 and i = 1/D the cosine is N i_an i_ap, and a triplet is active where
    ``2 S_an − γ N i_an i_ap`` exceeds ``2 S_ap − margin``. Each active one weighs on three similarities:
    ``2 − γ i_ap (N i_an³ − i_an)`` on S_an, ``−2 − γ i_an (N i_ap³ − i_ap)`` on S_ap and ``−γ i_an i_ap`` on
    S_pn. What depends on a and n alone is multiplied once, after the sum over the positives.

    Attributes:
        total: of their values, float64.
        active: their number.
        weights: the derivatives of the total, ``(B, R)``.
    """

    total: Tensor
    active: Tensor
    weights: Tensor


class _Triplets:
    """What the triplets of some anchors add to the sums.

    Args:
        S: ``(B, R)``, square.
        anchors: ``(A,)``, different rows with a positive each at least.
        negative: ``(B, R)``, ones and zeros.
        sums: added to in place.
    """

    def __init__(self, S: Tensor, anchors: Tensor, negative: Tensor, sums: _Sums) -> None:
        self.S, self.anchors, self.sums = S, anchors, sums
        self.rows = S.index_select(0, anchors)
        self.inverse = inverse_distance(self.rows)
        self.scaled = self.rows * self.inverse
        # Never active where it is no negative.
        self.doubled = negative.index_select(0, anchors).sub_(1).mul_(FAR).add_(self.rows, alpha=2)
        self.active, self.turned, self.sided = (torch.zeros_like(self.rows) for _ in range(3))

    def add(self, positive: Tensor, margin: float, gamma: float) -> None:
        """Add the triplets of the first anchors with one positive each."""
        part, column = slice(len(positive)), positive.unsqueeze(1)
        inverse_an = self.inverse[part]
        S_ap, inverse_ap = self.rows[part].gather(1, column), inverse_an.gather(1, column)
        bound = torch.mul(S_ap, 2).sub_(margin)
        turn = (
            self.S.index_select(0, positive).sub_(S_ap - 1).mul_(inverse_an).sub_(self.scaled[part])
        )  # N i_an
        limit = self.doubled[part].sub(bound).mul_((inverse_ap * gamma).reciprocal_())
        active = torch.gt(limit, turn, out=limit)
        reached = active.sum(dim=1, keepdim=True)
        self.active[part].add_(active)
        cosines = turn.mul_(active.mul_(inverse_ap))
        turns = cosines.sum(dim=1, keepdim=True)
        self.turned[part].add_(cosines)
        by_pn = active.mul_(inverse_an)
        self.sided[part].add_(by_pn)
        by_ap = by_pn.sum(dim=1, keepdim=True).sub_(turns * inverse_ap**2).mul_(gamma).sub_(reached, alpha=2)
        self.sums.weights.index_add_(0, positive, by_pn, alpha=-gamma)
        self.sums.weights[self.anchors[part], positive] += by_ap.squeeze(1)
        self.sums.total.sub_(bound.mul_(reached).add_(turns, alpha=gamma).sum())

    def close(self, gamma: float) -> None:
        """Add what is left."""
        towards = self.sided.sub_(self.turned.mul_(self.inverse).mul_(self.inverse)).mul_(gamma)
        self.sums.weights.index_add_(0, self.anchors, towards.add_(self.active, alpha=2))
        self.sums.total.add_(self.rows.mul_(self.active).sum(dim=1).sum(dtype=torch.float64).mul_(2))
        self.sums.active.add_(self.active.sum())
