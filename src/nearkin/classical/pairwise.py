"""Distances between all points, a block of rows at a time, so that memory stays bounded."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

BLOCK_ENTRIES = 2**17  # entries of one block: 1 MB in float64, so that passes over it stay in the cache


def row_blocks(n_rows: int, n_columns: int) -> Iterator[slice]:
    """Slices that cover ``n_rows`` in blocks of about ``BLOCK_ENTRIES`` entries."""
    size = max(1, BLOCK_ENTRIES // max(1, n_columns))
    for start in range(0, n_rows, size):
        yield slice(start, min(start + size, n_rows))


class SquaredDistances:
    """Blocks of ``‖z_i − z_j‖²`` between the rows of ``Z (n, k)``, each from one matrix product.

    With ``‖z_i‖²`` and a one appended to the rows, ``‖z_i‖² + ‖z_j‖² − 2 z_i·z_j`` is an inner product:
    nothing has to be added afterwards.
    """

    def __init__(self, Z: NDArray[np.floating]) -> None:
        self.n = len(Z)
        Z = Z - Z.mean(axis=0)
        squares = np.einsum("ij,ij->i", Z, Z)[:, None]
        ones = np.ones_like(squares)
        self._left = np.hstack([-2 * Z, squares, ones])
        self._right = np.ascontiguousarray(np.hstack([Z, ones, squares]).T)
        self._buffer = np.empty(0, dtype=Z.dtype)

    def rows(self, block: slice) -> NDArray[np.floating]:
        """Distances from the rows of a block to all points ``(b, n)``; rounding may leave tiny negatives.

        The next call overwrites them: fresh memory for every block would cost as much as the arithmetic.
        """
        left = self._left[block]
        shape = len(left), self.n
        if self._buffer.size < shape[0] * shape[1]:
            self._buffer = np.empty(shape[0] * shape[1], dtype=left.dtype)
        return np.matmul(left, self._right, out=self._buffer[: shape[0] * shape[1]].reshape(shape))

    def rows_without_self(self, block: slice) -> NDArray[np.floating]:
        """As ``rows``, with infinity between a point and itself."""
        D = self.rows(block)
        own = np.arange(block.start, block.stop)
        D[own - block.start, own] = np.inf
        return D


def nearest_other(Z: NDArray[np.floating]) -> NDArray[np.intp]:
    """For each row the number of the nearest other row ``(n,)``; itself is excluded by index."""
    distances = SquaredDistances(Z)
    nearest = np.empty(len(Z), dtype=np.intp)
    for block in row_blocks(len(Z), len(Z)):
        nearest[block] = distances.rows_without_self(block).argmin(axis=1)
    return nearest
