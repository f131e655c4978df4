"""Scatter matrices, and the subspace in which data varies at all."""

from __future__ import annotations

import numpy as np
from scipy import linalg

from nearkin.classical.arrays import Array


def varying_directions(X: Array, n_components: int | None = None, tol: float = 1e-10) -> Array:
    """An orthonormal basis ``(d, r)`` of the directions in which centred ``X (n, d)`` varies.

    A generalised eigenproblem is regular inside it, whatever features are constant or copies of one another.
    """
    d = X.shape[1]
    if n_components is not None and not 1 <= n_components <= d:
        raise ValueError(
            f"n_components={n_components} but the data has {d} features: choose between 1 and {d}"
        )
    values, vectors = linalg.eigh(X.T @ X)
    kept = values > tol * values[-1]
    if not kept.any():
        raise ValueError("all points are equal: nothing to learn from")
    return np.asarray(vectors[:, kept])


def within_scatter(X: Array, labels: Array) -> Array:
    """``Σ_c Σ_{i in c} (x_i − m_c)(x_i − m_c)ᵀ``, ``(d, d)``."""
    sums = np.zeros((int(labels.max()) + 1, X.shape[1]))
    np.add.at(sums, labels, X)
    centred = X - (sums / np.bincount(labels)[:, None])[labels]
    return np.asarray(centred.T @ centred)
