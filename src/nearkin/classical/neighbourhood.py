"""Stochastic neighbours: ``p_ij ∝ exp(−‖z_i − z_j‖²)``, ``p_ii = 0``, and gradients through them.

NCA and MCML are sums over these probabilities. Both give a weight ``W_ij = ∂f/∂d_ij`` to each distance, so
both gradients are ``∂f/∂A = Σ W_ij (x_i − x_j)(x_i − x_j)ᵀ``, gathered here block by block from matrix
products.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nearkin.classical.arrays import Array
from nearkin.classical.pairwise import SquaredDistances, row_blocks

NEGLIGIBLE = -80.0  # exp of less does not show in a sum of ones, but underflow makes it many times slower


@dataclass(frozen=True)
class Sorted:
    """Centred points with the members of each class side by side, so that a class is a slice of columns.

    Attributes:
        X: ``(n, d)``.
        classes: the slice of each class.
    """

    X: Array
    classes: list[slice]

    @classmethod
    def of(cls, X: Array, labels: Array) -> Sorted:
        """Sort ``X (n, d)`` by label; distances do not mind the order or the centre."""
        X = X[np.argsort(labels, kind="stable")]
        ends = np.cumsum(np.bincount(labels))
        starts = np.concatenate([[0], ends[:-1]])
        return cls(X - X.mean(axis=0), [slice(int(a), int(b)) for a, b in zip(starts, ends, strict=True)])

    def blocks(self) -> Iterator[tuple[slice, list[tuple[slice, slice]]]]:
        """Blocks of rows, and in each the parts of one class: (rows within the block, columns)."""
        for block in row_blocks(len(self.X), len(self.X)):
            parts = []
            for members in self.classes:
                start, stop = max(block.start, members.start), min(block.stop, members.stop)
                if start < stop:
                    parts.append((slice(start - block.start, stop - block.start), members))
            yield block, parts


def probabilities(distances: SquaredDistances, block: slice) -> tuple[Array, Array]:
    """``p_ij`` for the rows of a block ``(b, n)``, and ``log Σ_j exp(−d_ij)`` ``(b,)``."""
    P = distances.rows_without_self(block)
    nearest = P.min(axis=1)
    np.subtract(nearest[:, None], P, out=P)
    np.maximum(P, NEGLIGIBLE, out=P)
    np.exp(P, out=P)
    own = np.arange(block.start, block.stop)
    P[own - block.start, own] = 0.0
    total = P.sum(axis=1)
    P /= total[:, None]
    return P, np.log(total) - nearest


class GradientSum:
    """``Σ W_ij (x_i − x_j)(x_i − x_j)ᵀ``, from blocks of rows of ``W``.

    It is ``Xᵀ diag(r + c) X − XᵀWX − (XᵀWX)ᵀ`` with the row and column sums r and c of ``W``.
    """

    def __init__(self, X: Array) -> None:
        self._X = X
        self._cross = np.zeros((X.shape[1], X.shape[1]), dtype=X.dtype)
        self._degree = np.zeros(len(X), dtype=X.dtype)

    def add(self, block: slice, W: Array) -> None:
        """Add the rows ``W (b, n)`` of a block, each of which must sum to 0."""
        self._cross += self._X[block].T @ (W @ self._X)
        self._degree += W.sum(axis=0)

    def total(self) -> Array:
        """The matrix ``(d, d)``, float64."""
        stretched = (self._X * self._degree[:, None]).T @ self._X
        return np.asarray(stretched - self._cross - self._cross.T, dtype=np.float64)
