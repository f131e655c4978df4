"""The margin core: a softmax over cosines in which the own class must win by a margin.

ArcFace, CosFace, sub-centre ArcFace, CurricularFace and AdaFace differ in how the own cosine is moved and,
one of them, in what becomes of the others. Each states that; value and ∂L/∂S are found here.
"""

from __future__ import annotations

from math import cos, inf, radians, sin

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from nearkin.losses.base import require_positive
from nearkin.losses.proxy import ProxyLoss
from nearkin.losses.similarity import Measured
from nearkin.losses.softmax import cross_entropy_


class MarginSoftmax(ProxyLoss):
    """Cross-entropy of ``scale`` times the cosines, after the own one was moved.

    A subclass defines :meth:`move`, and may define :meth:`harden` and ``remember``.

    Running means (buffers, in ``state_dict``) are taken in training mode only, and what a batch adds to them
    counts from the next batch on: so a batch's gradient is the derivative of its value with everything that
    is remembered held constant. They see what the loss sees: with gradient caching (``training.chunk``) and
    with several processes the whole batch, once; with ``training.accumulate`` each batch of a group.

    Args:
        num_classes: C.
        embedding_dim: D.
        scale: s.
        reach: no moved cosine is larger than this, nor below its negative.
        generator: starts the proxies.
        proxies_per_class: K.
    """

    tiling = "rows"

    def __init__(
        self,
        num_classes: int,
        embedding_dim: int,
        *,
        scale: float,
        reach: float,
        generator: torch.Generator | None,
        proxies_per_class: int | None = None,
    ) -> None:
        require_positive(scale=scale)
        super().__init__(num_classes, embedding_dim, generator, proxies_per_class)
        self.scale = scale
        self._reach = reach

    def move(self, cosine: Tensor) -> tuple[Tensor, Tensor]:
        """What becomes of the own cosines ``(B, 1)``, in new memory, and its derivative by them."""
        raise NotImplementedError(f"{type(self).__name__} must define move")

    def harden(self, S: Tensor, moved: Tensor) -> tuple[Tensor, Tensor | None]:
        """What becomes of the cosines ``(B, C)`` of the other classes, and its derivative, if not 1.

        Args:
            S: left as it is; what becomes of the own ones does not matter.
            moved: the moved cosines of the own classes, ``(B, 1)``.
        """
        return S, None

    def move_on(self, name: str, towards: Tensor, momentum: float) -> None:
        """Move a running mean, the buffer ``name``, a little towards what a batch has."""
        mean: Tensor = getattr(self, name)
        towards = towards.to(mean.dtype)
        if torch.compiler.is_compiling():  # the graph's backward pass may compute again from what was there
            setattr(self, name, torch.lerp(mean, towards, momentum))
        else:
            mean.lerp_(towards, momentum)

    def own_logits(self, own: Tensor) -> Tensor:
        """Moved, and scaled."""
        return self.scale * with_derivative(*self.move(own.detach()), own)

    def other_logits(self, others: Tensor, own: Tensor) -> Tensor:
        """Hardened, and scaled."""
        hardened, slopes = self.harden(others.detach(), self.move(own)[0])
        return self.scale * (others if slopes is None else with_derivative(hardened, slopes, others))

    def value(self, S: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy after the own cosines were moved by the margin."""
        own = labels.unsqueeze(1)
        cosine = S.gather(1, own)
        moved, slope = self.move(cosine.detach())
        others, slopes = self.harden(S.detach(), moved)
        if slopes is not None:
            S = with_derivative(others, slopes, S)
        logits = self.scale * S.scatter(1, own, with_derivative(moved, slope, cosine))
        if self.training:
            self.remember(cosine.detach())
        return cross_entropy(logits, labels, reduction="none")

    def measure(self, S: Tensor, labels: Tensor, with_weights: bool) -> Measured:
        """The gradient of a cross-entropy, scaled, and times another slope for what was moved."""
        own = labels.unsqueeze(1)
        cosine = S.gather(1, own)
        moved, own_slopes = self.move(cosine)
        others, slopes = self.harden(S, moved)
        logits = torch.mul(others, self.scale).scatter_(1, own, moved.mul_(self.scale))
        bound = self.scale * self._reach
        value, weights = cross_entropy_(logits, own, bound, self.scale, own_slopes)
        if slopes is not None:
            weights.mul_(slopes.scatter_(1, own, 1))
        if self.training:
            self.remember(cosine)
        return Measured(value, weights)


def with_derivative(value: Tensor, slope: Tensor, of: Tensor) -> Tensor:
    """``value`` exactly, with the derivative ``slope`` by ``of``."""
    return value + slope * (of - of.detach())  # whose last term is 0


def require_angle(margin_degrees: float) -> float:
    """The angle in radians, from 0 to 130°."""
    if not 0 <= margin_degrees <= 130:  # beyond 133.5° cos θ − m sin m would no longer continue downwards
        raise ValueError(f"margin_degrees={margin_degrees} must be an angle from 0 to 130")
    return radians(margin_degrees)


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


def turn(cosine: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
    """``cos(θ + angle)`` from ``cos θ`` for one angle each, θ + angle kept in 0 … π, and its derivative.

    Where θ + angle leaves 0 … π there is no derivative; as above, its part without direction is left out.

    >>> turn(torch.tensor([0.5, 0.5]), torch.tensor([torch.pi / 3, -torch.pi / 2]))
    (tensor([-0.5000,  1.0000]), tensor([1.0000, 0.0000]))
    """
    cosine = cosine.clamp(-1, 1)
    squared_sine = 1 - cosine * cosine
    cotangent = cosine * torch.threshold(squared_sine, 8 * torch.finfo(cosine.dtype).eps, inf).rsqrt()
    moved = cosine * angle.cos() - squared_sine.sqrt() * angle.sin()
    slope = angle.cos() + cotangent * angle.sin()
    before = (angle < 0) & (cosine > angle.cos())
    beyond = (angle > 0) & (cosine < -angle.cos())
    moved = moved.masked_fill_(before, 1).masked_fill_(beyond, -1)
    return moved, slope.masked_fill_(before | beyond, 0)
