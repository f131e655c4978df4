"""The CurricularFace loss."""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.losses.base import register
from nearkin.losses.margin_softmax import MarginSoftmax, add_angle, require_angle
from nearkin.losses.search_space import SCALE, Range, space


@register("curricularface")
class CurricularFace(MarginSoftmax):
    """ArcFace that leaves hard negatives for later: they count more as the own cosines grow.

    Equation:
        L = mean over samples of −log softmax of s·cos(θ_y + m) for the own class, s·N(cos θ_c) for the others
        N(c) = c, or c (t + c) where c > cos(θ_y + m)

        t starts at 0; after each batch of a training t ← (1 − momentum)·t + momentum · mean cos θ_y. (The
        authors' code changes t before the batch that changes it is measured; here a batch has no part in its
        own t, which is a constant.) Where θ_y > π − m, cos θ_y − m sin m takes the place of cos(θ_y + m).

    Source:
        Huang, Wang, Tai, Liu, Shen, Li, Li, Huang. CurricularFace: Adaptive Curriculum Learning Loss for Deep
        Face Recognition. CVPR 2020. arXiv:2004.00288.

    When to use:
        Large sets of faces, trained for long from scratch. Short trainings end while t is still small, and
        hard negatives are then weighed down.

    Relations to other losses:
        Where no other cosine exceeds the moved own one it is ``arcface``. ``adaface`` adapts the margin to
        the sample instead of the negatives to the moment.

    Args:
        num_classes: C.
        embedding_dim: D.
        margin_degrees: m, in degrees, at most 130.
        scale: s.
        momentum: how fast t follows.
        generator: starts the proxies.

    Attributes:
        t: the running mean, a scalar buffer.

    Example:
        >>> loss = CurricularFace(num_classes=3, embedding_dim=4)
        >>> bool(loss(torch.eye(4), torch.tensor([0, 1, 2, 0])) > 0)
        True
    """

    search_space = space(margin_degrees=Range(0.0, 60.0, step=5.0), scale=SCALE)
    t: Tensor

    def __init__(
        self,
        num_classes: int,
        embedding_dim: int,
        *,
        margin_degrees: float = 28.6,
        scale: float = 64.0,
        momentum: float = 0.01,
        generator: torch.Generator | None = None,
    ) -> None:
        self._margin = require_angle(margin_degrees)
        if not 0 <= momentum <= 1:
            raise ValueError(f"momentum={momentum} must be from 0 to 1")
        super().__init__(
            num_classes, embedding_dim, scale=scale, reach=max(2, 1 + self._margin), generator=generator
        )
        self.margin_degrees = margin_degrees
        self.momentum = momentum
        self.register_buffer("t", torch.zeros(()))

    def move(self, cosine: Tensor) -> tuple[Tensor, Tensor]:
        """The margin is added to the angle."""
        return add_angle(cosine, self._margin)

    def harden(self, S: Tensor, moved: Tensor) -> tuple[Tensor, Tensor | None]:
        """What exceeds the own cosine is multiplied by t + cos θ."""
        hard, t = moved < S, self.t.to(S.dtype)
        return torch.where(hard, S * (S + t), S), torch.where(hard, 2 * S + t, 1)

    def remember(self, own: Tensor) -> None:
        """Move t towards the mean own cosine."""
        self.move_on("t", own.mean().clamp_(-1, 1), self.momentum)
