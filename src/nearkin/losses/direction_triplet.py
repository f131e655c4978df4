"""The triplet loss with direction regularisation."""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.losses.base import register, require_non_negative
from nearkin.losses.direction import direction_
from nearkin.losses.pair import Pairs
from nearkin.losses.search_space import MARGIN, space
from nearkin.losses.similarity import Measured, inverse_distance
from nearkin.losses.triplet import Triplet
from nearkin.mining.base import as_float, places_in_rows

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
        """All triplets, one positive of some anchors at a time."""
        anchor, column = pairs.positive.nonzero().unbind(dim=1)
        if self.gamma == 0 or not len(anchor):
            return super().measure(S, pairs, with_weights)
        # Anchors with most positives come first: those that have a k-th one are then a slice, not a copy.
        place = places_in_rows(anchor, len(S))
        most = int(place.max()) + 1
        in_row, order = anchor.bincount(minlength=len(S)).sort(descending=True)
        kin = column.new_zeros(len(S), most).index_put_((anchor, place), column)[order]
        sums = _Sums(S, order, as_float(pairs.negative[order], S), with_weights)
        at_once = max(1, _CHUNK // S.shape[1])
        for k in range(most):
            have_it = int((in_row > k).sum())
            for start in range(0, have_it, at_once):
                part = slice(start, min(start + at_once, have_it))
                sums.add(part, kin[part, k], self.margin, self.gamma)
        return sums.measured()


class _Sums:
    """What the triplets add up to; each weighs on three similarities: S_ap, S_an and S_pn.

    Args:
        S: ``(B, R)``, square.
        order: ``(B,)``, the order of the anchors.
        strangers: ``(B, R)`` ones and zeros, in that order.
        with_weights: whether the weights are wanted.
    """

    def __init__(self, S: Tensor, order: Tensor, strangers: Tensor, with_weights: bool) -> None:
        self.S, self.order, self.strangers = S, order, strangers
        self.rows = S[order]
        self.inverse = inverse_distance(self.rows)
        self.total, self.count = S.new_zeros(()), S.new_zeros(())
        self.to_rows = torch.zeros_like(S) if with_weights else None
        self.to_kin = torch.zeros_like(S) if with_weights else None

    def add(self, part: slice, kin: Tensor, margin: float, gamma: float) -> None:
        """Add the triplets of the anchors ``part`` with one positive each, ``kin``."""
        S_an, inverse_an, column = self.rows[part], self.inverse[part], kin.unsqueeze(1)
        S_ap, inverse_ap = S_an.gather(1, column), inverse_an.gather(1, column)
        cosine, q = direction_(self.S.index_select(0, kin), S_an, S_ap, inverse_an, inverse_ap)
        terms = torch.mul(S_an, 2).add_(margin - 2 * S_ap).sub_(cosine, alpha=gamma)
        active = torch.gt(terms, 0, out=torch.empty_like(terms)).mul_(self.strangers[part])
        in_rows = active.sum(dim=1, keepdim=True)
        self.total += terms.mul_(active).sum()
        self.count += in_rows.sum()
        if self.to_rows is None or self.to_kin is None:
            return
        q.mul_(active)
        cosine.mul_(active)
        by_ap = cosine.sum(dim=1, keepdim=True).mul_(inverse_ap.square()).sub_(q.sum(dim=1, keepdim=True))
        by_an = cosine.mul_(inverse_an).mul_(inverse_an).sub_(q)
        self.to_rows[part].add_(active, alpha=2).sub_(by_an, alpha=gamma)
        self.to_rows[part].scatter_add_(1, column, by_ap.mul_(-gamma).sub_(in_rows, alpha=2))
        self.to_kin.index_add_(0, kin, q, alpha=-gamma)

    def measured(self) -> Measured:
        """The mean over the active triplets."""
        share = 1 / self.count.clamp_min_(1)
        if self.to_rows is None or self.to_kin is None:
            return Measured(self.total * share)
        return Measured(self.total * share, self.to_kin.index_add_(0, self.order, self.to_rows).mul_(share))
