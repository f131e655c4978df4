"""Which rows may be better than those found so far, told by products in bf16 whose error is bounded.

Where the processor has instructions for bf16, a product takes about half the time that it takes in float32.
It is off, but by no more than a bound: a row whose product falls short of the worst one found by more than
that cannot be better. The few others are multiplied again in float32, so that what is found is what float32
finds, and not nearly that.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearkin.index.arrays import Matrix, Rows

MOST = 1 / 64
"""Where more of a tile's products must be multiplied again, bf16 saves nothing."""
SEEN = 256
"""For each row that is wanted so many must have been seen: of the next, few are then better."""
_ROUNDING = 2.0**-8  # of a number to bf16, relative to it, at most
_ADDING = 2.0**-23  # of each of the products that are added in float32
_LONGEST = 1.001  # no row is longer: unit rows of float32
_AGAIN = 8192  # products in float32 at a time


class Better(NamedTuple):
    """Rows ``(n,)``, the queries that found them ``(n,)``, and similarities ``(n,)``."""

    rows: Rows
    asking: Rows
    similarities: NDArray[np.float32]


class RoughTiles:
    """Products of some unit rows at a time with many queries, in bf16, in the same memory each time.

    Args:
        matrix: Unit rows ``(N, D)``.
        queries: Unit rows ``(n, D)``.
        height: How many rows at a time, at most.
    """

    def __init__(self, matrix: Matrix, queries: Matrix, height: int) -> None:
        self._matrix, self._queries, self.height = matrix, queries, height
        asked = torch.from_numpy(queries)
        self._asked = asked.bfloat16()
        self._error = error_bounds(asked, self._asked)
        self._products = torch.empty(height, len(queries), dtype=torch.bfloat16)
        self._may_be_better = torch.empty(height, len(queries), dtype=torch.bool)
        self._pause, self._resting = 1, 0

    def better(self, rows: slice, worst: NDArray[np.float32], blocked: Rows) -> Better | None:
        """The rows that are better than each query's worst so far; ``None`` where float32 finds them faster.

        Args:
            rows: Of the matrix.
            worst: What a row's similarity must exceed, by query ``(n,)``.
            blocked: Rows among them that are not to be found, counted from the first.
        """
        if self._resting:
            self._resting -= 1
            return None
        some = torch.from_numpy(self._matrix[rows]).bfloat16()
        products = torch.mm(some, self._asked.T, out=self._products[: len(some)])
        products[torch.from_numpy(blocked)] = -torch.inf
        # The product is rounded to bf16 as its limit is, so that rounding changes no order.
        limits = (torch.from_numpy(worst) - self._error).bfloat16()
        may = torch.ge(products, limits, out=self._may_be_better[: len(some)]).numpy()
        if np.count_nonzero(may) > MOST * may.size:
            self._resting, self._pause = self._pause, 2 * self._pause
            return None
        places, asking = np.divmod(np.flatnonzero(may), may.shape[1])
        places += rows.start
        similarities = self._again(places, asking)
        kept = np.flatnonzero(similarities > worst[asking])
        return Better(places[kept], asking[kept], similarities[kept])

    def _again(self, rows: Rows, asking: Rows) -> NDArray[np.float32]:
        """Products of pairs in float32."""
        products = np.empty(len(rows), dtype=np.float32)
        for start in range(0, len(rows), _AGAIN):
            some = slice(start, start + _AGAIN)
            np.einsum("nd,nd->n", self._matrix[rows[some]], self._queries[asking[some]], out=products[some])
        return products


def error_bounds(queries: Tensor, rounded: Tensor) -> Tensor:
    """By how much a product in bf16 with a unit row may be off, for each query ``(n,)``, in float32.

    ``|q·v − q̂·v̂| ≤ |q − q̂| |v| + |q̂| |v − v̂|``, and every number of a row is off by at most a share of
    itself; besides, D products are added in float32.

    Args:
        queries: Unit rows ``(n, D)``.
        rounded: The same in bf16.

    >>> queries = torch.eye(2, 64)
    >>> [round(bound, 4) for bound in error_bounds(queries, queries.bfloat16()).tolist()]
    [0.0039, 0.0039]
    """
    own = (queries - rounded.float()).norm(dim=1)
    lengths = rounded.float().norm(dim=1)
    bounds: Tensor = _LONGEST * (own + lengths * (_ROUNDING + queries.shape[1] * _ADDING))
    return bounds
