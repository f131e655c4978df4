"""Searches that go stage by stage: one hyperparameter after the other, or fewer trials for longer.

What a stage does depends on the one before, so that all its trials are over before the next begins. How many
trials there are and how long they train depends on no score: two losses with one budget get the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

_ETA = 2
_MOST_HALVINGS = 2  # the first look comes after a quarter of the epochs: before, the warm-up decides

Point = TypeVar("Point")


@dataclass(frozen=True)
class Rung:
    """So many trials are trained as far as an epoch; the better ones go on.

    Attributes:
        epochs: The epoch.
        trials: How many get there.
    """

    epochs: int
    trials: int


def rungs(trials: int, epochs: int) -> list[Rung]:
    """Successive halving: all trials for a quarter of the epochs, half of them for half, the rest to the end.

    Jamieson and Talwalkar (2016, AISTATS), with all trials of a rung over before the next.

    >>> rungs(16, 8)
    [Rung(epochs=2, trials=16), Rung(epochs=4, trials=8), Rung(epochs=8, trials=4)]
    >>> rungs(1, 8), rungs(5, 2)
    ([Rung(epochs=8, trials=1)], [Rung(epochs=1, trials=5), Rung(epochs=2, trials=2)])
    """
    halvings = min(_MOST_HALVINGS, _whole_log(trials), _whole_log(epochs))
    return [
        Rung(math.ceil(epochs / _ETA ** (halvings - place)), max(1, trials // _ETA**place))
        for place in range(halvings + 1)
    ]


def _whole_log(number: int) -> int:
    return number.bit_length() - 1


def epochs_of(found: Sequence[Rung]) -> int:
    """Epochs of all trials together.

    >>> epochs_of(rungs(16, 8))
    64
    """
    before = 0
    total = 0
    for rung in found:
        total += rung.trials * (rung.epochs - before)
        before = rung.epochs
    return total


@dataclass(frozen=True)
class Coordinate:
    """One hyperparameter's turn.

    Attributes:
        key: The recipe's key.
        points: The values to try, the others held.
        first: The number of the first of its trials.
    """

    key: str
    points: list[Any]
    first: int

    @property
    def until(self) -> int:
        """The number after that of its last trial."""
        return self.first + len(self.points)


def coordinates(grids: Mapping[str, Sequence[Any]], trials: int | None = None) -> list[Coordinate]:
    """One hyperparameter after the other, every point of its grid, or as many as the trials allow.

    Args:
        grids: The points by key, in the order of the search.
        trials: In all; with fewer than there are points every key gets its share, evenly over its grid.

    >>> [(one.key, one.points, one.first) for one in coordinates({"a": [1, 2, 3, 4, 5], "b": [0, 1]}, 5)]
    [('a', [1, 3, 5], 0), ('b', [0, 1], 3)]

    Raises:
        ValueError: There are fewer trials than hyperparameters.
    """
    shares = _shares([len(points) for points in grids.values()], trials)
    found: list[Coordinate] = []
    for (key, points), share in zip(grids.items(), shares, strict=True):
        found.append(Coordinate(key, thinned(list(points), share), found[-1].until if found else 0))
    return found


def _shares(sizes: Sequence[int], trials: int | None) -> list[int]:
    """How many points each key gets, one after the other until the trials or the points are used up."""
    if trials is None or trials >= sum(sizes):
        return list(sizes)
    if trials < len(sizes):
        raise ValueError(
            f"trials={trials} is too few to try {len(sizes)} hyperparameters one after the other: give at "
            f"least {len(sizes)}, or hold some with --range KEY=VALUE"
        )
    shares = [0] * len(sizes)
    while trials:
        for place, size in enumerate(sizes):
            if trials and shares[place] < size:
                shares[place] += 1
                trials -= 1
    return shares


def thinned(points: list[Point], count: int) -> list[Point]:
    """So many of them, evenly, both ends included; one alone is the middle.

    >>> thinned(list(range(11)), 3), thinned(list(range(11)), 1)
    ([0, 5, 10], [5])
    """
    if count >= len(points):
        return points
    if count == 1:
        return [points[len(points) // 2]]
    return [points[round(place * (len(points) - 1) / (count - 1))] for place in range(count)]
