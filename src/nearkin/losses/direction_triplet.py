"""The triplet loss with direction regularisation."""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.losses.base import register, require_non_negative
from nearkin.losses.direction import direction
from nearkin.losses.pair import Pairs
from nearkin.losses.similarity import Measured, safe_distance
from nearkin.losses.triplet import Triplet

_CHUNK = 1 << 19
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
        """All triplets, some positive pairs at a time; each triplet weighs on three similarities."""
        anchor, kin = pairs.positive.nonzero(as_tuple=True)
        if self.gamma == 0 or not len(anchor):
            return super().measure(S, pairs, with_weights)
        _, inverse = safe_distance(S)
        total, count = S.new_zeros(()), S.new_zeros(())
        weights = torch.zeros_like(S) if with_weights else None
        at_once = max(1, _CHUNK // S.shape[1])
        for a, p in zip(anchor.split(at_once), kin.split(at_once), strict=True):
            S_an, S_ap = S[a], S[a, p].unsqueeze(1)
            way = direction(S_an, S_ap, S[p], inverse[a], inverse[a, p].unsqueeze(1))
            terms = (S_an - S_ap).mul_(2).add_(self.margin).sub_(way.cosine, alpha=self.gamma)
            active = (terms > 0) & pairs.negative[a]
            total += torch.where(active, terms, 0).sum()
            count += active.sum()
            if weights is not None:
                active = active.to(S.dtype)
                to_positive = (way.by_ap * active).sum(dim=1).mul_(-self.gamma) - 2 * active.sum(dim=1)
                weights.index_add_(0, a, way.by_an.mul_(-self.gamma).add_(2).mul_(active))
                weights.index_add_(0, p, way.by_pn.mul_(active), alpha=-self.gamma)
                weights.index_put_((a, p), to_positive, accumulate=True)
        share = 1 / count.clamp_min(1)
        return Measured(total * share, None if weights is None else weights.mul_(share))
