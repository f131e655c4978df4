"""The ArcFace loss."""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.losses.base import register
from nearkin.losses.margin_softmax import MarginSoftmax, add_angle, require_angle
from nearkin.losses.search_space import SCALE, Range, space


@register("arcface")
class ArcFace(MarginSoftmax):
    """Classification by angle, where the own class must win by a margin of degrees.

    Equation:
        L = mean over samples of −log softmax of s·cos(θ_y + m) for the own class, s·cos θ_c for the others

        Where θ_y > π − m, cos θ_y − m sin m takes the place of cos(θ_y + m), which would rise again.

    Source:
        Deng, Guo, Xue, Zafeiriou. ArcFace: Additive Angular Margin Loss for Deep Face Recognition. CVPR 2019.
        arXiv:1801.07698.

    When to use:
        Many classes with many samples each, as in faces. With few samples per class lower the scale.

    Relations to other losses:
        Without margin it is ``softmax(normalized=True)``. ``cosface`` subtracts its margin from the cosine
        instead of adding it to the angle; ``sub_center_arcface`` has several centres per class,
        ``curricularface`` weighs hard negatives more as training goes on, ``adaface`` lets the margin depend
        on the length of the embedding.

    Args:
        num_classes: C.
        embedding_dim: D.
        margin_degrees: m, in degrees, at most 130.
        scale: s.
        generator: starts the proxies.

    Example:
        >>> loss = ArcFace(num_classes=3, embedding_dim=4)
        >>> bool(loss(torch.eye(4), torch.tensor([0, 1, 2, 0])) > 0)
        True
    """

    search_space = space(margin_degrees=Range(0.0, 60.0, step=5.0), scale=SCALE)

    def __init__(
        self,
        num_classes: int,
        embedding_dim: int,
        *,
        margin_degrees: float = 28.6,
        scale: float = 64.0,
        generator: torch.Generator | None = None,
    ) -> None:
        self._margin = require_angle(margin_degrees)
        super().__init__(num_classes, embedding_dim, scale=scale, reach=1 + self._margin, generator=generator)
        self.margin_degrees = margin_degrees

    def move(self, cosine: Tensor) -> tuple[Tensor, Tensor]:
        """The margin is added to the angle."""
        return add_angle(cosine, self._margin)
