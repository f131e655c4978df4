"""The angular loss."""

from __future__ import annotations

from math import radians, tan

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from nearkin.losses.base import register
from nearkin.losses.exponentials import log_sum_exp
from nearkin.losses.pair import PairLoss, Pairs
from nearkin.losses.search_space import Range, space
from nearkin.losses.triplet import each_positive


@register("angular")
class Angular(PairLoss):
    """Limit the angle at the negative of each triangle of anchor, positive and negative.

    Equation:
        L = mean over positive pairs (a, p) of log(1 + Σ_{n∈N_a} e^{4t(S_an + S_pn) − 2(1 + t)S_ap})
        t = tan²α

        One value per sample: its own pairs' part of the mean, times B.

    Source:
        Wang, Zhou, Wen, Liu, Lin. Deep Metric Learning with Angular Loss. ICCV 2017. arXiv:1708.01682. (On
        unit vectors, without the N-pair term that the paper adds.)

    When to use:
        Where distances of different classes have different scales: an angle has none. Usually added to
        ``npair``.

    Relations to other losses:
        ``npair`` with the middle of anchor and positive in the place of the anchor. Like ``triplet`` with
        swap it also pushes negatives from the positive.

    Args:
        angle_degrees: α, in degrees, between 0 and 90.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
        >>> Angular()(embeddings, torch.tensor([0, 0, 1]))
        tensor(4.6496)
    """

    among_references = True

    search_space = space(angle_degrees=Range(30.0, 60.0, step=5.0))

    def __init__(self, *, angle_degrees: float = 45.0) -> None:
        if not 0 < angle_degrees < 90:
            raise ValueError(f"angle_degrees={angle_degrees} must be between 0 and 90")
        super().__init__()
        self.angle_degrees = angle_degrees

    @property
    def traceable(self) -> bool:
        """The positives of an anchor are listed."""
        return False

    def value(self, S: Tensor, pairs: Pairs) -> Tensor:
        """One positive of each anchor at a time, of which nothing is kept for the backward pass."""
        t = tan(radians(self.angle_degrees)) ** 2

        def of_one_positive(S: Tensor, anchor: Tensor, positive: Tensor) -> Tensor:
            near = log_sum_exp(4 * t * (S[anchor] + S[positive]), pairs.negative[anchor])
            return torch.nn.functional.softplus(near - 2 * (1 + t) * S[anchor, positive])

        sums = S.new_zeros(len(S))
        for anchor, positive in each_positive(pairs.positive):
            terms: Tensor = checkpoint(of_one_positive, S, anchor, positive, use_reentrant=False)
            sums = sums.index_add(0, anchor, terms)
        return pairs.mean_of_sums(sums, pairs.positive.sum(dim=1).to(S.dtype))
