"""The triplet loss with direction regularisation."""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.losses.base import register, require_non_negative
from nearkin.losses.pair import Pairs
from nearkin.losses.similarity import Measured, inverse_distance
from nearkin.losses.triplet import Triplet
from nearkin.mining.base import FAR, only, places_in_rows, places_of

_CHUNK = 1 << 17
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

    def __init__(self, *, margin: float = 0.1, gamma: float = 0.3) -> None:
        require_non_negative(gamma=gamma)
        super().__init__(margin=margin, metric="squared_euclidean", mining="all")
        self.gamma = gamma

    def measure(self, S: Tensor, pairs: Pairs, with_weights: bool) -> Measured:
        """All triplets, one positive of some anchors at a time."""
        anchor, column = places_of(pairs.positive)
        if self.gamma == 0 or not len(anchor):
            return super().measure(S, pairs, with_weights)
        # Anchors with most positives come first: those that have a k-th one are then a slice, not a copy.
        place = places_in_rows(anchor, len(S))
        most = int(place.max()) + 1
        in_row, order = anchor.bincount(minlength=len(S)).sort(descending=True)
        kin = column.new_zeros(len(S), most).index_put_((anchor, place), column)[order]
        sums = _Sums(S, order, pairs.negative[order], self.margin, self.gamma)
        at_once = max(1, _CHUNK // S.shape[1])
        for k in range(most):
            have_it = int((in_row > k).sum())
            for start in range(0, have_it, at_once):
                part = slice(start, min(start + at_once, have_it))
                sums.add(part, kin[part, k])
        return sums.measured()


class _Sums:
    """What the triplets add up to, in terms of S and i = 1/D.

    With N = S_pn − S_an − S_ap + 1 the cosine is N i_an i_ap, and a triplet is active where
    ``2 S_an − γ N i_an i_ap`` exceeds ``2 S_ap − margin``. Each active one weighs on three similarities:
    ``2 − γ i_ap (N i_an³ − i_an)`` on S_an, ``−2 − γ i_an (N i_ap³ − i_ap)`` on S_ap and ``−γ i_an i_ap`` on
    S_pn. What depends on a and n alone is multiplied once, at the end.

    Args:
        S: ``(B, R)``, square.
        order: ``(B,)``, the order of the anchors.
        negative: ``(B, R)``, in that order.
        margin: α.
        gamma: γ.
    """

    def __init__(self, S: Tensor, order: Tensor, negative: Tensor, margin: float, gamma: float) -> None:
        self.S, self.order, self.margin, self.gamma = S, order, margin, gamma
        self.rows = S[order]
        self.inverse = inverse_distance(self.rows)
        self.doubled = only(negative, self.rows * 2, -FAR)  # never active where it is no negative
        self.total, self.count = S.new_zeros((), dtype=torch.float64), S.new_zeros(())
        self.active, self.pulled, self.turned = (torch.zeros_like(S) for _ in range(3))
        self.to_positives, self.to_kin = torch.zeros_like(S), torch.zeros_like(S)

    def add(self, part: slice, kin: Tensor) -> None:
        """Add the triplets of the anchors ``part`` with one positive each, ``kin``."""
        S_an, inverse_an, column = self.rows[part], self.inverse[part], kin.unsqueeze(1)
        S_ap, inverse_ap = S_an.gather(1, column), inverse_an.gather(1, column)
        # N i_an
        turn = self.S.index_select(0, kin).sub_(S_an).add_(1 - S_ap).mul_(inverse_an)
        above = torch.addcmul(self.doubled[part], turn, inverse_ap, value=-self.gamma)
        bound = 2 * S_ap - self.margin
        active = torch.gt(above, bound, out=above)
        self.active[part].add_(active)
        self.pulled[part].addcmul_(active, inverse_ap)
        turn.mul_(active)
        self.turned[part].addcmul_(turn, inverse_ap)
        reached = active.sum(dim=1, keepdim=True)
        turns = turn.sum(dim=1, keepdim=True)
        inverses = torch.mul(active, inverse_an, out=active).sum(dim=1, keepdim=True)
        self.count += reached.sum()
        self.total -= reached.mul(bound).add_(turns * inverse_ap, alpha=self.gamma).sum(dtype=torch.float64)
        by_ap = inverses.mul_(inverse_ap).sub_(turns.mul_(inverse_ap**3)).mul_(self.gamma)
        self.to_positives[part].scatter_add_(1, column, by_ap.sub_(reached, alpha=2))
        self.to_kin.index_add_(0, kin, active.mul_(inverse_ap), alpha=-self.gamma)

    def measured(self) -> Measured:
        """The mean over the active triplets."""
        share = 1 / self.count.clamp_min_(1)
        total = self.total + 2 * (self.active * self.rows).sum(dim=1).sum(dtype=torch.float64)
        # 2 A − γ (i_an² Σ i_ap N i_an − i_an Σ i_ap)
        towards = self.turned.mul_(self.inverse).sub_(self.pulled).mul_(self.inverse).mul_(-self.gamma)
        towards.add_(self.active, alpha=2).add_(self.to_positives)
        weights = self.to_kin.index_add_(0, self.order, towards).mul_(share)
        return Measured(total.to(share.dtype) * share, weights)
