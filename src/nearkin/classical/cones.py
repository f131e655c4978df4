"""Where the metric lives: all positive semi-definite matrices, or the diagonal ones."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from scipy import linalg

from nearkin.classical.arrays import Array


class Cone(Protocol):
    """A closed convex cone of metrics and how its elements meet difference vectors ``V (p, d)``."""

    def identity(self, d: int) -> Array:
        """The Euclidean metric."""
        ...

    def outer_sum(self, V: Array, weights: Array) -> Array:
        """``Σ w_i v_i v_iᵀ``, as far as the cone sees it."""
        ...

    def distances(self, V: Array, A: Array) -> Array:
        """``v_iᵀ A v_i``: ``(p,)``."""
        ...

    def project(self, B: Array) -> Array:
        """The nearest element of the cone in the Frobenius norm."""
        ...

    def largest_ratio(self, B: Array, C: Array) -> float:
        """The smallest ``t ≥ 0`` with ``tC − B`` in the cone; infinity where there is none."""
        ...

    def components(self, A: Array) -> Array:
        """``G`` with ``A = GᵀG``, ``(d, d)``."""
        ...


class PositiveSemidefinite:
    """Symmetric ``(d, d)`` matrices without negative eigenvalues."""

    def identity(self, d: int) -> Array:
        """The Euclidean metric."""
        return np.eye(d)

    def outer_sum(self, V: Array, weights: Array) -> Array:
        """``Σ w_i v_i v_iᵀ``."""
        return np.asarray((V * weights[:, None]).T @ V)

    def distances(self, V: Array, A: Array) -> Array:
        """``v_iᵀ A v_i``: ``(p,)``."""
        return np.asarray(np.einsum("ij,ij->i", V @ A, V))

    def project(self, B: Array) -> Array:
        """The nearest element of the cone."""
        values, vectors = linalg.eigh((B + B.T) / 2, check_finite=False)
        kept = values > 0
        return np.asarray((vectors[:, kept] * values[kept]) @ vectors[:, kept].T)

    def largest_ratio(self, B: Array, C: Array) -> float:
        """The smallest ``t ≥ 0`` with ``tC − B`` in the cone."""
        values, vectors = linalg.eigh(C)
        solid = values > 1e-10 * max(values[-1], 1e-300)
        hollow = vectors[:, ~solid]
        if hollow.size and np.abs(hollow.T @ B).max() > 1e-9 * max(np.abs(B).max(), 1e-300):
            return np.inf
        whitening = vectors[:, solid] / np.sqrt(values[solid])
        return max(0.0, float(linalg.eigvalsh(whitening.T @ B @ whitening)[-1])) if solid.any() else 0.0

    def components(self, A: Array) -> Array:
        """``G`` with ``A = GᵀG``."""
        return components_of(A)


class NonnegativeDiagonal:
    """Diagonal matrices without negative entries, held as vectors ``(d,)``."""

    def identity(self, d: int) -> Array:
        """The Euclidean metric."""
        return np.ones(d)

    def outer_sum(self, V: Array, weights: Array) -> Array:
        """``Σ w_i v_i v_iᵀ``."""
        return np.asarray(weights @ np.square(V))

    def distances(self, V: Array, A: Array) -> Array:
        """``v_iᵀ A v_i``: ``(p,)``."""
        return np.asarray(np.square(V) @ A)

    def project(self, B: Array) -> Array:
        """The nearest element of the cone."""
        return np.maximum(B, 0.0)

    def largest_ratio(self, B: Array, C: Array) -> float:
        """The smallest ``t ≥ 0`` with ``tC − B`` in the cone."""
        positive = B > 0
        if (C[positive] <= 0).any():
            return np.inf
        return float(np.max(B[positive] / C[positive], initial=0.0))

    def components(self, A: Array) -> Array:
        """``G`` with ``A = GᵀG``."""
        return np.diag(np.sqrt(A))


def components_of(A: Array) -> Array:
    """The symmetric square root ``G`` of a positive semi-definite ``A``, so that ``A = GᵀG``."""
    values, vectors = linalg.eigh(A)
    return np.asarray((vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T)
