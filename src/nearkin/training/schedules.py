"""How learning rates change in the course of a training; one class per schedule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from nearkin.registry import Registry


class Shape(Protocol):
    """The shape of a learning rate after its warm-up."""

    def __call__(self, epoch: float, epochs: int, warmup: float) -> float:
        """The factor at a moment counted in epochs, of a training of so many, the first of them warm-up."""
        ...


registry: Registry[Shape] = Registry("schedule")
register = registry.register
names = registry.names


@register("cosine")
class Cosine:
    """Half a cosine from the peak to 0."""

    def __call__(self, epoch: float, epochs: int, warmup: float) -> float:
        """From 1 after the warm-up to 0 at the end.

        >>> Cosine()(5.0, epochs=10, warmup=0)
        0.5
        """
        share = (epoch - warmup) / max(epochs - warmup, 1e-9)
        return 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))


@register("constant")
class Constant:
    """The peak until the end."""

    def __call__(self, epoch: float, epochs: int, warmup: float) -> float:
        """Always 1."""
        return 1.0


@register("step")
class Step:
    """Times ``factor`` every ``every`` epochs.

    >>> Step(every=5)(10.0, epochs=100, warmup=0)
    0.010000000000000002
    """

    def __init__(self, every: int = 10, factor: float = 0.1) -> None:
        _check_factor(factor)
        if every < 1:
            raise ValueError(f"every={every} must be at least 1")
        self.every, self.factor = every, factor

    def __call__(self, epoch: float, epochs: int, warmup: float) -> float:
        """``factor`` to the power of the steps so far."""
        return float(self.factor ** (epoch // self.every))


@register("multi_step")
class MultiStep:
    """Times ``factor`` at every milestone, counted in epochs.

    >>> MultiStep(milestones=(2, 4))(2.0, epochs=6, warmup=0)
    0.1
    """

    def __init__(self, milestones: tuple[int, ...], factor: float = 0.1) -> None:
        _check_factor(factor)
        if not milestones or list(milestones) != sorted(set(milestones)) or milestones[0] < 1:
            raise ValueError(f"milestones={_listed(milestones)} must be rising epochs, such as [20, 40]")
        self.milestones, self.factor = tuple(milestones), factor

    def __call__(self, epoch: float, epochs: int, warmup: float) -> float:
        """``factor`` to the power of the milestones so far."""
        return float(self.factor ** sum(epoch >= milestone for milestone in self.milestones))


@dataclass(frozen=True)
class Schedule:
    """A linear warm-up from 0, and then a shape.

    >>> Schedule(Cosine(), warmup=2.0)(1.0, epochs=12)
    0.5
    """

    shape: Shape
    warmup: float = 0.0

    def __call__(self, epoch: float, epochs: int) -> float:
        """What the learning rates are multiplied by at a moment of the training, counted in epochs."""
        return epoch / self.warmup if epoch < self.warmup else self.shape(epoch, epochs, self.warmup)

    def scheduler(self, optimizer: Optimizer, *, epochs: int, steps: int) -> LambdaLR:
        """A scheduler to be stepped with the optimiser, which makes so many steps per epoch.

        The first step of a warm-up moves a little, not by 0, and a training of one step moves at the peak.
        """

        def factor(step: int) -> float:
            if epochs * steps == 1:
                return 1.0
            moment = max(step, 1) if self.warmup else step
            return self(moment / steps, epochs)

        return LambdaLR(optimizer, factor)


def _check_factor(factor: float) -> None:
    if not 0 < factor <= 1:
        raise ValueError(f"factor={factor} must be above 0 and at most 1")


def _listed(values: Sequence[int]) -> list[int]:
    return list(values)
