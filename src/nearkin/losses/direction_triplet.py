"""The triplet loss with direction regularisation."""

from __future__ import annotations

from typing import NamedTuple

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
        """All triplets, class by class where kin are classes of a batch, else anchor by anchor."""
        if self.gamma == 0:
            return super().measure(S, pairs, with_weights)
        in_classes = pairs.labels.dim() == 1 and pairs.anchors == len(S)
        sums = self._sum_over_classes(S, pairs.labels) if in_classes else self._sum_over_anchors(S, pairs)
        share = 1 / sums.active.clamp_min(1)
        return Measured(sums.total.to(S.dtype) * share, sums.weights.mul_(share))

    def _sum_over_classes(self, S: Tensor, labels: Tensor) -> _Sums:
        """Classes of one size at a time; their rows lie together, and go back at the end."""
        ordered, order = labels.sort(stable=True)
        sizes = ordered.unique_consecutive(return_counts=True)[1]
        first = sizes.cumsum(0) - sizes
        sums, visited, begin = _Sums.start(S), [], 0
        for size in sizes.unique().tolist():
            members = order[first[sizes == size].unsqueeze(1) + torch.arange(size, device=S.device)]
            end = begin + members.numel()
            together = sums._replace(weights=sums.weights[begin:end].view(*members.shape, -1))
            _add_classes(together, S, members, self.margin, self.gamma)
            visited.append(members.flatten())
            begin = end
        back = torch.cat(visited).argsort()
        return sums._replace(weights=sums.weights.index_select(0, back))

    def _sum_over_anchors(self, S: Tensor, pairs: Pairs) -> _Sums:
        """Some anchors at a time, and of them one positive at a time."""
        sums = _Sums.start(S)
        sums.weights.zero_()
        anchor, column = places_of(pairs.positive)
        if not len(anchor):
            return sums
        # Anchors with most positives come first: those that have a k-th one are then a slice, not a copy.
        place = places_in_rows(anchor, len(S))
        most = int(place.max()) + 1
        in_row, order = anchor.bincount(minlength=len(S)).sort(descending=True, stable=True)
        kin = column.new_zeros(len(S), most).index_put_((anchor, place), column)[order]
        with_kth = (in_row > torch.arange(most, device=S.device).unsqueeze(1)).sum(dim=1).tolist()
        negative = pairs.indicators(S).negative
        at_once = max(1, _CHUNK // S.shape[1])
        for start in range(0, with_kth[0], at_once):
            end = min(start + at_once, with_kth[0])
            triplets = _Triplets(S, order[start:end], negative, sums)
            for k, last in enumerate(with_kth):
                triplets.add(kin[start : min(end, last), k], self.margin, self.gamma)
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

    @classmethod
    def start(cls, S: Tensor) -> _Sums:
        """Nothing yet; the weights are not written."""
        return cls(S.new_zeros((), dtype=torch.float64), S.new_zeros(()), torch.empty_like(S))


def _add_classes(sums: _Sums, S: Tensor, members: Tensor, margin: float, gamma: float) -> None:
    """Add the triplets of classes of one size to the sums, and write their weights ``(C, M, R)``.

    Anchors of a class meet their next one, the one after it, and so on around: rows stay where they are, no
    row has to be looked up. Some classes at a time, in the same few matrices, which stay in a processor's
    cache.

    Args:
        sums: changed in place.
        S: ``(B, R)``, square.
        members: ``(C, M)``, the rows and columns of C classes of M images each.
        margin: α.
        gamma: γ.
    """
    C, M = members.shape
    if M == 1:
        sums.weights.zero_()
        return
    around = torch.arange(M, device=S.device)
    # Of every anchor the next one, the one after it, …: (C, M − 1, M)
    kin = members[:, (around + around[1:].unsqueeze(1)) % M]
    S_ap = S[members.unsqueeze(1), kin].transpose(0, 1).unsqueeze(3)
    inverse_ap = inverse_distance(S_ap)
    shifts, bounds, push = S_ap - 1, S_ap - margin / 2, inverse_ap * gamma
    reached, turns, sides = (torch.empty_like(S_ap) for _ in range(3))
    at_once = min(C, max(1, _CHUNK // (M * S.shape[1])))
    space = S.new_empty(6, at_once, M, S.shape[1])
    for begin in range(0, C, at_once):
        some = slice(begin, begin + at_once)
        of_pairs = [column[:, some] for column in (shifts, bounds, push, reached, turns, sides)]
        sums.total.add_(_add_rows(sums.weights[some], S, members[some], of_pairs, space))
    turns.mul_(push)
    by_ap = sides.mul_(push).addcmul_(turns, inverse_ap.square_(), value=-1).sub_(reached, alpha=2)
    sums.weights.scatter_add_(2, kin.transpose(1, 2), by_ap.squeeze(3).permute(1, 2, 0))
    sums.total.sub_(bounds.mul_(reached).mul_(2).add_(turns).sum())
    sums.active.add_(reached.sum())


def _add_rows(weights: Tensor, S: Tensor, members: Tensor, of_pairs: list[Tensor], space: Tensor) -> Tensor:
    """Write the weights of some classes ``(G, M, R)``, all but those on S_ap; and Σ 2 S_an over the active.

    Args:
        weights: written.
        S: ``(B, R)``, square.
        members: ``(G, M)``.
        of_pairs: ``(M − 1, G, M, 1)`` each, for anchors and their next ones: S_ap − 1, half the bound and
            γ i_ap; written are the number of active triplets, and their sums of N i_an and of i_an.
        space: ``(6, G or more, M, R)``, overwritten.
    """
    G, M = members.shape
    own_class = members.unsqueeze(1).expand(G, M, M)
    rows, inverse, active_with, turned, others, other = space[:, :G].unbind(0)
    torch.index_select(S, 0, members.flatten(), out=rows.view(G * M, -1))
    inverse_distance(rows, out=inverse)
    steps = zip(*(column.unbind(0) for column in of_pairs), strict=True)
    for step, (shift, bound, push, reached, turns, sides) in enumerate(steps, start=1):
        ahead = M - step  # so many have their step-th next one below them, the others start again above
        turn, active, near = (turned, active_with, others) if step == 1 else (others, other, other)
        torch.sub(rows[:, step:], rows[:, :ahead], out=turn[:, :ahead])
        torch.sub(rows[:, :step], rows[:, ahead:], out=turn[:, ahead:])
        turn.sub_(shift).mul_(inverse)
        torch.addcmul(rows, turn, push, value=-0.5, out=active)
        torch.gt(active, bound, out=active).scatter_(2, own_class, 0)
        torch.sum(active, 2, keepdim=True, out=reached)
        torch.sum(turn.mul_(active), 2, keepdim=True, out=turns)
        if step == 1:
            turned.mul_(push)
            torch.mul(active, inverse, out=near)
            torch.mul(near, push, out=weights)
        else:
            turned.addcmul_(turn, push)
            active_with.add_(active)
            torch.mul(active, inverse, out=near)
            weights.addcmul_(near, push)
        torch.sum(near, 2, keepdim=True, out=sides)
        weights[:, step:].addcmul_(near[:, :ahead], push[:, :ahead], value=-1)
        weights[:, :step].addcmul_(near[:, ahead:], push[:, ahead:], value=-1)
    weights.addcmul_(turned.mul_(inverse), inverse, value=-1).add_(active_with, alpha=2)
    return rows.mul_(active_with).sum(dim=2).sum(dtype=torch.float64).mul_(2)


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

    def add(self, kin: Tensor, margin: float, gamma: float) -> None:
        """Add the triplets of the first anchors with one positive each, ``kin``."""
        part, column = slice(len(kin)), kin.unsqueeze(1)
        inverse_an = self.inverse[part]
        S_ap, inverse_ap = self.rows[part].gather(1, column), inverse_an.gather(1, column)
        bound = torch.mul(S_ap, 2).sub_(margin)
        turn = self.S.index_select(0, kin).sub_(S_ap - 1).mul_(inverse_an).sub_(self.scaled[part])  # N i_an
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
        self.sums.weights.index_add_(0, kin, by_pn, alpha=-gamma)
        self.sums.weights[self.anchors[part], kin] += by_ap.squeeze(1)
        self.sums.total.sub_(bound.mul_(reached).add_(turns, alpha=gamma).sum())

    def close(self, gamma: float) -> None:
        """Add what is left."""
        towards = self.sided.sub_(self.turned.mul_(self.inverse).mul_(self.inverse)).mul_(gamma)
        self.sums.weights.index_add_(0, self.anchors, towards.add_(self.active, alpha=2))
        self.sums.total.add_(self.rows.mul_(self.active).sum(dim=1).sum(dtype=torch.float64).mul_(2))
        self.sums.active.add_(self.active.sum())
