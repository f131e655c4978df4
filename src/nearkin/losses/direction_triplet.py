"""The triplet loss with direction regularisation."""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.losses.base import register, require_non_negative
from nearkin.losses.pair import Pairs
from nearkin.losses.search_space import MARGIN, space
from nearkin.losses.similarity import Measured, inverse_distance
from nearkin.losses.triplet import Triplet
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
        Mohan, Sankaran, Fookes, Denman, Sridharan. Moving in the Right Direction: A Regularization for Deep
        Metric Learning. CVPR 2020. Survey equation (31).

    When to use:
        To try on top of a triplet loss that has stopped improving. Its cost grows with the number of triplets
        (its memory does not).

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

    def measure(self, S: Tensor, pairs: Pairs, with_weights: bool) -> Measured:
        """All triplets: some anchors at a time, and of them one positive at a time."""
        anchor, column = places_of(pairs.positive)
        if self.gamma == 0 or not len(anchor):
            return super().measure(S, pairs, with_weights)
        # Anchors with most positives come first: those that have a k-th one are then a slice, not a copy.
        place = places_in_rows(anchor, len(S))
        most = int(place.max()) + 1
        in_row, order = anchor.bincount(minlength=len(S)).sort(descending=True, stable=True)
        kin = column.new_zeros(len(S), most).index_put_((anchor, place), column)[order]
        with_kth = (in_row > torch.arange(most, device=S.device).unsqueeze(1)).sum(dim=1).tolist()
        equal = with_kth[-1] == len(S)  # the order is then that of the batch
        weights, negative = torch.zeros_like(S), pairs.indicators(S).negative
        total, count = S.new_zeros((), dtype=torch.float64), S.new_zeros(())
        at_once = max(1, _CHUNK // S.shape[1])
        for start in range(0, with_kth[0], at_once):
            end = min(start + at_once, with_kth[0])
            triplets = _Triplets(S, slice(start, end) if equal else order[start:end], negative, weights)
            for k, last in enumerate(with_kth):
                triplets.add(kin[start : min(end, last), k], self.margin, self.gamma)
            part, active = triplets.close(self.gamma)
            total += part
            count += active
        share = 1 / count.clamp_min_(1)
        return Measured(total.to(S.dtype) * share, weights.mul_(share))


class _Triplets:
    """What the triplets of some anchors add up to, in terms of S and i = 1/D.

    With N = S_pn − S_an − S_ap + 1 the cosine is N i_an i_ap, and a triplet is active where
    ``2 S_an − γ N i_an i_ap`` exceeds ``2 S_ap − margin``. Each active one weighs on three similarities:
    ``2 − γ i_ap (N i_an³ − i_an)`` on S_an, ``−2 − γ i_an (N i_ap³ − i_ap)`` on S_ap and ``−γ i_an i_ap`` on
    S_pn. What depends on a and n alone is multiplied once, by :meth:`close`.

    Args:
        S: ``(B, R)``, square.
        anchors: ``(A,)`` different rows, each with a positive at least; or a slice of them.
        negative: ``(B, R)``, ones and zeros.
        weights: ``(B, R)``, to which the derivatives are added.
    """

    def __init__(self, S: Tensor, anchors: Tensor | slice, negative: Tensor, weights: Tensor) -> None:
        self.S, self.anchors, self.weights = S, anchors, weights
        self.rows = S[anchors]
        self.inverse = inverse_distance(self.rows)
        self.scaled = self.rows * self.inverse
        # Never active where it is no negative.
        self.doubled = (negative[anchors] - 1).mul_(FAR).add_(self.rows, alpha=2)
        # Of a slice the derivatives go to their place at once.
        self.own = weights[anchors] if isinstance(anchors, slice) else torch.zeros_like(self.rows)
        self.total = S.new_zeros((), dtype=torch.float64)
        # Sums over positives, for each anchor and negative: active triplets, their cosines, their i_an i_ap.
        self.active: Tensor | None = None
        self.turned: Tensor | None = None
        self.sided: Tensor | None = None

    def add(self, kin: Tensor, margin: float, gamma: float) -> None:
        """Add the triplets of the first anchors with one positive each, ``kin``; of all anchors at first."""
        part, column = slice(len(kin)), kin.unsqueeze(1)
        inverse_an = self.inverse[part]
        S_ap, inverse_ap = self.rows[part].gather(1, column), inverse_an.gather(1, column)
        bound = torch.mul(S_ap, 2).sub_(margin)
        turn = self.S.index_select(0, kin).sub_(S_ap - 1).mul_(inverse_an).sub_(self.scaled[part])  # N i_an
        # Where a and p coincide the limit is infinite, and its sign decides.
        limit = self.doubled[part].sub(bound).mul_(inverse_ap.reciprocal().div_(gamma))
        active = torch.gt(limit, turn, out=limit)
        reached = active.sum(dim=1, keepdim=True)
        self.active = _added(self.active, active)
        cosines = turn.mul_(active.mul_(inverse_ap))
        self.turned = _added(self.turned, cosines)
        by_pn = active.mul_(inverse_an)
        self.sided = _added(self.sided, by_pn)
        turns = cosines.sum(dim=1, keepdim=True)
        by_ap = by_pn.sum(dim=1, keepdim=True).sub_(turns * inverse_ap**2).mul_(gamma).sub_(reached, alpha=2)
        self.own[part].scatter_add_(1, column, by_ap)
        self.weights.index_add_(0, kin, by_pn, alpha=-gamma)
        self.total -= bound.mul_(reached).add_(turns, alpha=gamma).sum(dtype=torch.float64)

    def close(self, gamma: float) -> tuple[Tensor, Tensor]:
        """Add what is left; gives the sum over the active triplets and their number."""
        active, turned, sided = self.active, self.turned, self.sided
        assert active is not None
        assert turned is not None
        assert sided is not None
        per_anchor = (self.rows * active).sum(dim=1)
        towards = sided.sub_(turned.mul_(self.inverse).mul_(self.inverse)).mul_(gamma)
        self.own.add_(towards.add_(active, alpha=2))
        if not isinstance(self.anchors, slice):
            self.weights.index_add_(0, self.anchors, self.own)
        return self.total + 2 * per_anchor.sum(dtype=torch.float64), active.sum()


def _added(sums: Tensor | None, more: Tensor) -> Tensor:
    """``more`` ``(M, R)`` added to the first rows of ``sums`` ``(A, R)``, in place; at first a copy of it."""
    if sums is None:
        return more.clone()
    sums[: len(more)].add_(more)
    return sums
