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


def fisher_directions(X: Array, labels: Array, n_components: int | None, ridge: float) -> Array:
    """The directions ``(k, d)`` with the least within-class share of the variance, whitened within classes.

    Fewer than ``n_components`` where ``X (n, d)`` varies in fewer directions.

    Args:
        X: points.
        labels: classes or chunklets, 0, 1, ….
        n_components: k; None for all.
        ridge: share of the mean within-class variance (of the total, where that is 0) added everywhere.
    """
    X = X.astype(np.float64) - X.mean(axis=0, dtype=np.float64)
    varying = varying_directions(X, n_components)
    Y = X @ varying
    total, within = Y.T @ Y / len(Y), within_scatter(Y, labels) / len(Y)
    within += ridge * (np.trace(within) or np.trace(total)) / len(within) * np.eye(len(within))
    shares, directions = linalg.eigh(within, total)
    k = min(n_components or X.shape[1], len(shares))
    refuse_singular(shares[:k], ridge)
    return np.asarray((varying @ directions[:, :k] / np.sqrt(shares[:k])).T)


def refuse_singular(shares: Array, ridge: float) -> None:
    """Refuse directions without any variance within classes: their weight would be infinite."""
    if not (shares > 0).all():
        raise ValueError(
            f"ridge={ridge} is too small for this data: the classes do not vary at all in some direction, "
            "whose weight would be infinite"
        )
