"""The triplet loss with direction regularisation."""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.losses.base import register, require_non_negative
from nearkin.losses.pair import Pairs
from nearkin.losses.search_space import MARGIN, space
from nearkin.losses.similarity import Measured, inverse_distance
from nearkin.losses.triplet import Triplet
from nearkin.mining.base import FAR, only, places_in_rows, places_of

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
        in_row, order = anchor.bincount(minlength=len(S)).sort(descending=True)
        kin = column.new_zeros(len(S), most).index_put_((anchor, place), column)[order]
        with_kth = (in_row > torch.arange(most, device=S.device).unsqueeze(1)).sum(dim=1).tolist()
        weights = torch.zeros_like(S)
        total, count = S.new_zeros((), dtype=torch.float64), S.new_zeros(())
        at_once = max(1, _CHUNK // S.shape[1])
        for start in range(0, with_kth[0], at_once):
            triplets = _Triplets(S, order[start : start + at_once], pairs.negative, weights)
            for k, end in enumerate(with_kth):
                triplets.add(kin[start : min(end, start + at_once), k], self.margin, self.gamma)
            total += triplets.close(self.gamma)
            count += triplets.active.sum()
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
        anchors: ``(A,)``.
        negative: ``(B, R)``.
        weights: ``(B, R)``, to which the derivatives are added.
    """

    def __init__(self, S: Tensor, anchors: Tensor, negative: Tensor, weights: Tensor) -> None:
        self.S, self.anchors, self.weights = S, anchors, weights
        self.rows = S.index_select(0, anchors)
        self.inverse = inverse_distance(self.rows)
        # Never active where it is no negative.
        self.doubled = only(negative.index_select(0, anchors), self.rows * 2, -FAR)
        self.active, self.pulled, self.turned = (torch.zeros_like(self.rows) for _ in range(3))
        self.total = S.new_zeros((), dtype=torch.float64)

    def add(self, kin: Tensor, margin: float, gamma: float) -> None:
        """Add the triplets of the first anchors with one positive each, ``kin``."""
        part, column = slice(len(kin)), kin.unsqueeze(1)
        S_an, inverse_an = self.rows[part], self.inverse[part]
        S_ap, inverse_ap = S_an.gather(1, column), inverse_an.gather(1, column)
        bound = torch.mul(S_ap, 2).sub_(margin)
        turn = self.S.index_select(0, kin).sub_(S_an).sub_(S_ap - 1).mul_(inverse_an)  # N i_an
        active = torch.addcmul(self.doubled[part], turn, inverse_ap, value=-gamma)
        torch.gt(active, bound, out=active)
        self.active[part].add_(active)
        self.pulled[part].addcmul_(active, inverse_ap)
        self.turned[part].addcmul_(turn.mul_(active), inverse_ap)
        reached, turns = active.sum(dim=1, keepdim=True), turn.sum(dim=1, keepdim=True)
        by_pn = active.mul_(inverse_an).mul_(inverse_ap)
        by_ap = by_pn.sum(dim=1, keepdim=True).sub_(turns * inverse_ap**3).mul_(gamma).sub_(reached, alpha=2)
        self.weights.index_add_(0, kin, by_pn, alpha=-gamma)
        self.weights[self.anchors[part], kin] += by_ap.squeeze(1)
        self.total -= bound.mul_(reached).add_(turns.mul_(inverse_ap), alpha=gamma).sum(dtype=torch.float64)

    def close(self, gamma: float) -> Tensor:
        """Add what is left; gives the sum over the active triplets."""
        total = self.total + (self.active * self.rows).sum(dim=1).sum(dtype=torch.float64).mul_(2)
        towards = self.turned.mul_(self.inverse).sub_(self.pulled).mul_(self.inverse).mul_(-gamma)
        self.weights.index_add_(0, self.anchors, towards.add_(self.active, alpha=2))
        return total
