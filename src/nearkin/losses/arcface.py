"""The ArcFace loss."""

from __future__ import annotations

from math import cos, inf, radians, sin

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from nearkin.losses.base import register, require_positive
from nearkin.losses.proxy import ProxyLoss
from nearkin.losses.search_space import SCALE, Range, space
from nearkin.losses.similarity import Measured
from nearkin.losses.softmax import cross_entropy_


@register("arcface")
class ArcFace(ProxyLoss):
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
        if not 0 <= margin_degrees <= 130:  # beyond 133.5° cos θ − m sin m would no longer continue downwards
            raise ValueError(f"margin_degrees={margin_degrees} must be an angle from 0 to 130")
        require_positive(scale=scale)
        super().__init__(num_classes, embedding_dim, generator)
        self.margin_degrees = margin_degrees
        self.scale = scale

    def value(self, S: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy after the own cosines were moved by the margin."""
        own = labels.unsqueeze(1)
        cosine = S.gather(1, own)
        moved, slope = add_angle(cosine.detach(), radians(self.margin_degrees))
        moved = moved + slope * (
            cosine - cosine.detach()
        )  # whose last term is 0, and has the right derivative
        return cross_entropy(self.scale * S.scatter(1, own, moved), labels, reduction="none")

    def measure(self, S: Tensor, labels: Tensor, with_weights: bool) -> Measured:
        """The gradient of a cross-entropy, scaled, and times another slope for the own cosines."""
        own, reach = labels.unsqueeze(1), 1 + radians(self.margin_degrees)
        moved, own_slopes = add_angle(S.gather(1, own), radians(self.margin_degrees))
        logits = torch.mul(S, self.scale).scatter_(1, own, moved.mul_(self.scale))
        return Measured(*cross_entropy_(logits, own, self.scale * reach, self.scale, own_slopes))


def add_angle(cosine: Tensor, margin: float) -> tuple[Tensor, Tensor]:
    """``cos(θ + m)`` from ``cos θ``, kept falling beyond θ = π − m, and its derivative by ``cos θ``.

    The derivative grows without limit towards θ = 0, where the direction of the angle is lost: there the part
    that has no direction is left out.

    >>> add_angle(torch.tensor([1.0, 0.5, -1.0]), torch.pi / 3)
    (tensor([ 0.5000, -0.5000, -1.9069]), tensor([0.5000, 1.0000, 1.0000]))
    """
    cosine = cosine.clamp(-1, 1)
    squared_sine = torch.rsub(cosine * cosine, 1)
    cotangent = torch.threshold(squared_sine, 8 * torch.finfo(cosine.dtype).eps, inf).rsqrt_().mul_(cosine)
    moved = torch.mul(cosine, cos(margin)).sub_(squared_sine.sqrt_(), alpha=sin(margin))
    slope = cotangent.mul_(sin(margin)).add_(cos(margin))
    beyond = cosine < -cos(margin)
    return torch.where(beyond, cosine - margin * sin(margin), moved), slope.masked_fill_(beyond, 1)
