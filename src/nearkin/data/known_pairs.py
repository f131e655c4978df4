"""What is known of pairs of samples, where their classes are not: the same, different, or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, get_args

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

Others = Literal["unknown", "different"]
"""What is to be taken of the pairs that nobody says anything about."""

_DRAWN = 5_000  # pairs that differ, where all that are not said to match do
_SEED = 0  # of that draw: the same pairs are scored in every run


@dataclass(frozen=True)
class KnownPairs:
    """Which pairs of some samples are the same, and which are different.

    Attributes:
        pairs: ``(P, 2)`` rows of samples.
        same: ``(P,)`` boolean, the answer of each.
        groups: ``(N,)`` the group of every sample: those that matches join, directly or through others.
        others: Of every pair that does not follow from these: ``unknown``, or ``different``.
        transitive: Whether what matches the same sample matches each other. If so, a group is the same
            throughout, and two groups differ as soon as one of their pairs does.

    >>> known = KnownPairs.of(4, [(0, 1), (1, 2), (2, 3)], [True, True, False])
    >>> known.among(torch.arange(4))
    tensor([[ 1,  1,  1, -1],
            [ 1,  1,  1, -1],
            [ 1,  1,  1, -1],
            [-1, -1, -1,  1]], dtype=torch.int8)
    """

    pairs: Tensor
    same: Tensor
    groups: Tensor
    others: Others = "unknown"
    transitive: bool = True

    @classmethod
    def of(
        cls,
        samples: int,
        pairs: Sequence[tuple[int, int]] | Tensor,
        same: Sequence[bool] | Tensor,
        *,
        others: Others = "unknown",
        transitive: bool = True,
    ) -> KnownPairs:
        """Of a list of pairs; which samples are of a group follows from it.

        Args:
            samples: N.
            pairs: Two rows each.
            same: The answer of each.
            others: As the attribute.
            transitive: As the attribute.
        """
        if others not in get_args(Others):
            raise ValueError(f"others={others!r} must be one of: {', '.join(get_args(Others))}")
        rows = torch.as_tensor(pairs, dtype=torch.long).reshape(-1, 2)
        answers = torch.as_tensor(same, dtype=torch.bool)
        return cls(rows, answers, joined(samples, rows[answers]), others, transitive)

    @property
    def are_classes(self) -> bool:
        """Whether every pair is known and groups are classes, so that any loss can learn from them."""
        return self.transitive and self.others == "different"

    def select(self, rows: Tensor) -> KnownPairs:
        """What is known of the pairs among some of the samples, numbered in their new order."""
        places = torch.full((len(self.groups),), -1, dtype=torch.long)
        places[rows] = torch.arange(len(rows))
        pairs = places[self.pairs]
        inside = (pairs >= 0).all(dim=1)
        groups = self.groups[rows].unique(return_inverse=True)[1]
        return replace(self, pairs=pairs[inside], same=self.same[inside], groups=groups)

    def joined_with(self, other: KnownPairs) -> KnownPairs:
        """The pairs of two sets of samples, of which no group is common; ``other`` comes behind."""
        count, groups = len(self.groups), int(self.groups.max()) + 1 if len(self.groups) else 0
        return replace(
            self,
            pairs=torch.cat([self.pairs, other.pairs + count]),
            same=torch.cat([self.same, other.same]),
            groups=torch.cat([self.groups, other.groups + groups]),
        )

    def among(self, rows: Tensor) -> Tensor:
        """What is known of each two of some rows ``(B,)``: 1 the same, -1 different, 0 nothing; ``(B, B)``.

        A row that comes twice, as the views of a sample do, is the same as itself.
        """
        chosen = self._nodes[rows.cpu()]
        asked = chosen[:, None] * len(self._nodes) + chosen
        matching, differing = self._sorted_keys
        same = (chosen[:, None] == chosen) | _contains(matching, asked)
        known = same.to(torch.int8)
        if self.others == "different":
            return 2 * known - 1
        return known.masked_fill_(_contains(differing, asked) & ~same, -1)

    @cached_property
    def _nodes(self) -> Tensor:
        """What answers are about: groups where these are the same throughout, else samples; ``(N,)``."""
        return self.groups if self.transitive else torch.arange(len(self.groups))

    @cached_property
    def _sorted_keys(self) -> tuple[Tensor, Tensor]:
        """Of what is said to match and of what is said to differ."""
        ends = self._nodes[self.pairs]
        return _keys(ends[self.same], len(self._nodes)), _keys(ends[~self.same], len(self._nodes))

    def scored(self) -> tuple[Tensor, Tensor]:
        """Pairs ``(P, 2)`` to score, and their answers ``(P,)``: those that are listed.

        Where everything else is different and little of that is listed, other pairs of two groups join them,
        drawn at random, always the same ones.
        """
        listed = int((~self.same).sum())
        if self.others == "unknown" or listed >= _DRAWN or len(self.groups.unique()) < 2:
            return self.pairs, self.same
        generator = torch.Generator().manual_seed(_SEED)
        drawn = torch.randint(len(self.groups), (4 * _DRAWN, 2), generator=generator)
        drawn = drawn[self.groups[drawn[:, 0]] != self.groups[drawn[:, 1]]].sort(dim=1).values
        fresh = ~_contains(_keys(self.pairs, len(self.groups)), drawn[:, 0] * len(self.groups) + drawn[:, 1])
        drawn = drawn[fresh].unique(dim=0)
        if len(drawn) > _DRAWN - listed:
            drawn = drawn[torch.randperm(len(drawn), generator=generator)[: _DRAWN - listed].sort().values]
        answers = torch.zeros(len(drawn), dtype=torch.bool)
        return torch.cat([self.pairs, drawn]), torch.cat([self.same, answers])


def joined(count: int, matches: Tensor) -> Tensor:
    """``(count,)`` the group of every sample, numbered in order; matches ``(M, 2)`` join samples to groups.

    >>> joined(5, torch.tensor([[0, 3], [3, 4]]))
    tensor([0, 1, 2, 0, 0])
    """
    ones = np.ones(len(matches), dtype=np.int8)
    edges = coo_array((ones, tuple(matches.T.numpy())), shape=(count, count))
    return torch.from_numpy(connected_components(edges, directed=False)[1]).long()


def _keys(pairs: Tensor, count: int) -> Tensor:
    """One number for each pair in either order, sorted."""
    first, second = pairs.unbind(dim=1)
    return torch.cat([first * count + second, second * count + first]).sort().values


def _contains(keys: Tensor, asked: Tensor) -> Tensor:
    """Which of the numbers are among sorted keys."""
    if not len(keys):
        return torch.zeros_like(asked, dtype=torch.bool)
    places = torch.searchsorted(keys, asked).clamp_(max=len(keys) - 1)
    return keys[places] == asked
