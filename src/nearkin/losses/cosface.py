"""The CosFace loss."""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.losses.base import register, require_non_negative
from nearkin.losses.margin_softmax import MarginSoftmax
from nearkin.losses.search_space import MARGIN, SCALE, space


@register("cosface")
class CosFace(MarginSoftmax):
    """Classification by angle, where the own cosine must win by a margin.

    Equation:
        L = mean over samples of −log softmax of s (cos θ_y − m) for the own class, s·cos θ_c for the others

    Source:
        Wang, Wang, Zhou, Ji, Gong, Zhou, Li, Liu. CosFace: Large Margin Cosine Loss for Deep Face
        Recognition. CVPR 2018. arXiv:1801.09414.

    When to use:
        Where ArcFace is used, when training must be calm from the first step: the margin is as large for a
        sample on its proxy as for one that is far away, and the gradient of the own cosine has no factor.

    Relations to other losses:
        Without margin it is ``softmax(normalized=True)``. ``arcface`` adds its margin to the angle;
        ``soft_triple`` with one centre per class and τ 0 is the same formula with another scale and margin;
        ``adaface`` has a margin of both kinds.

    Args:
        num_classes: C.
        embedding_dim: D.
        margin: m.
        scale: s.
        generator: starts the proxies.

    Example:
        >>> loss = CosFace(num_classes=3, embedding_dim=4)
        >>> bool(loss(torch.eye(4), torch.tensor([0, 1, 2, 0])) > 0)
        True
    """

    search_space = space(margin=MARGIN, scale=SCALE)

    def __init__(
        self,
        num_classes: int,
        embedding_dim: int,
        *,
        margin: float = 0.35,
        scale: float = 64.0,
        generator: torch.Generator | None = None,
    ) -> None:
        require_non_negative(margin=margin)
        super().__init__(num_classes, embedding_dim, scale=scale, reach=1 + margin, generator=generator)
        self.margin = margin

    def move(self, cosine: Tensor) -> tuple[Tensor, Tensor]:
        """The margin is subtracted from the cosine."""
        return cosine - self.margin, torch.ones_like(cosine)
