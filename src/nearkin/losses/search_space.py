"""Where a search looks for a hyperparameter; every loss brings its own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Range:
    """All numbers between two, both included.

    Args:
        low: The smallest.
        high: The largest.
        step: Between two neighbours on a grid; other searches look everywhere. Without one a grid has 11
            points.
        log: Whether to look at orders of magnitude evenly.
        whole: Only whole numbers.
        inverse: The grid's step is one of 1/value, at its multiples.

    >>> Range(0.0, 0.3, step=0.1).points()
    [0.0, 0.1, 0.2, 0.3]
    >>> Range(0.01, 1.0, step=10, log=True).points()
    [0.01, 0.1, 1.0]
    >>> Range(0.02, 1.0, step=10, inverse=True).points()
    [0.1, 0.05, 0.0333333333333, 0.025, 0.02]
    """

    low: float
    high: float
    step: float | None = None
    log: bool = False
    whole: bool = False
    inverse: bool = False

    def __post_init__(self) -> None:
        if not -math.inf < self.low < self.high < math.inf:
            raise ValueError(f"a range needs low < high, both finite, not {self.low} and {self.high}")
        if self.log and self.low <= 0:
            raise ValueError(f"low={self.low} must be above 0 to search orders of magnitude")
        if self.step is not None and self.step <= (1 if self.log else 0):
            raise ValueError(f"step={self.step} must be above {'1 (a factor)' if self.log else 0}")
        if self.inverse and (self.step is None or self.low <= 0):
            raise ValueError("an inverse range needs a step, and a low end above 0")

    def points(self) -> list[float]:
        """The grid: from ``low`` in steps (factors, if ``log``), as far as ``high`` allows."""
        if self.inverse:
            return self._inverse_points()
        low, high = (math.log(end) if self.log else end for end in (self.low, self.high))
        step = (high - low) / 10 if self.step is None else math.log(self.step) if self.log else self.step
        places = [low + index * step for index in range(math.floor((high - low) / step + 1e-9) + 1)]
        values = [float(f"{math.exp(place) if self.log else place:.12g}") for place in places]
        return sorted({round(value) for value in values}) if self.whole else values

    def _inverse_points(self) -> list[float]:
        assert self.step is not None
        first, last = math.ceil(1 / self.high / self.step - 1e-9), math.floor(1 / self.low / self.step + 1e-9)
        return [float(f"{1 / (place * self.step):.12g}") for place in range(max(first, 1), last + 1)]


@dataclass(frozen=True)
class Choices:
    """Some values without an order between them.

    >>> Choices("semi_hard", "hard").points()
    ['semi_hard', 'hard']
    """

    values: tuple[str | float | bool, ...]

    def __init__(self, *values: str | float | bool) -> None:
        if not values:
            raise ValueError("there is nothing to choose from")
        object.__setattr__(self, "values", values)

    def points(self) -> list[str | float | bool]:
        """All of them."""
        return list(self.values)


SearchSpace = Mapping[str, Range | Choices]
"""Hyperparameter → where to look for it."""


def space(**where: Range | Choices) -> SearchSpace:
    """The search space of a loss, keyword by keyword; it cannot be changed afterwards.

    >>> space(margin=MARGIN)["margin"]
    Range(low=0.0, high=1.0, step=0.1, log=False, whole=False, inverse=False)
    """
    return MappingProxyType(where)


# Thesis, Table 15. Its scales lie in (0, 100].
MARGIN = Range(0.0, 1.0, step=0.1)
SCALE = Range(2.0, 100.0, step=2.0)
TEMPERATURE = Range(0.01, 1.0, log=True)
