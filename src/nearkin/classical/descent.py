"""Minimising over the map ``G`` itself by L-BFGS, where the objective is smooth in it or nearly so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg, optimize
from sklearn.decomposition import PCA

from nearkin.classical.arrays import Array
from nearkin.classical.pairwise import SquaredDistances

Objective = Callable[[Array], tuple[float, Array]]


@dataclass(frozen=True)
class Descent:
    """Where a descent ended.

    Attributes:
        G: the map ``(n_components, n_features)``, in float64.
        objective: the value there.
        n_iter: L-BFGS iterations.
        converged: whether it stopped by itself.
    """

    G: Array
    objective: float
    n_iter: int
    converged: bool


def descend(objective: Objective, G: Array, *, max_iter: int, tol: float) -> Descent:
    """Minimise ``objective(G) -> (value, gradient)`` from ``G`` on.

    Stops when an iteration gains less than ``tol`` of the value.
    """

    def flat(g: Array) -> tuple[float, Array]:
        value, gradient = objective(g.reshape(G.shape))
        return float(value), np.asarray(gradient, dtype=np.float64).ravel()

    result = optimize.minimize(
        flat,
        np.asarray(G, dtype=np.float64).ravel(),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": max_iter, "maxfun": 10 * max_iter, "ftol": tol, "gtol": 0.0, "maxcor": 20},
    )
    return Descent(result.x.reshape(G.shape), float(result.fun), int(result.nit), result.nit < max_iter)


def initial_map(X: Array, n_components: int | None, init: str | ArrayLike) -> Array:
    """Where a descent starts: ``(n_components, n_features)``, float64.

    Args:
        X: points ``(n, n_features)``.
        n_components: rows of the map; None for as many as there are features.
        init: ``"identity"``, ``"pca"``, a matrix, or ``"auto"``: the identity (PCA where dimensions are
            dropped), scaled so that nearest neighbours are at distance 1.5 on average. Far from that scale
            every margin is met or none is, and every neighbour probability is 0 or 1: there is no slope to
            descend.
    """
    n, d = X.shape
    k = d if n_components is None else n_components
    if not 1 <= k <= d:
        raise ValueError(f"n_components={k} but the data has {d} features: choose between 1 and {d}")
    if not isinstance(init, str):
        G = np.asarray(init, dtype=np.float64)
        if G.shape != (k, d):
            raise ValueError(f"init has shape {G.shape}, expected (n_components, n_features) = {(k, d)}")
        return G.copy()
    if init not in ("auto", "identity", "pca"):
        raise ValueError(f'init must be "auto", "identity", "pca" or a matrix, got {init!r}')
    if init == "identity" or (init == "auto" and (k == d or k > n)):
        G = np.eye(k, d)
    elif k > n:
        raise ValueError(f'init="pca" finds at most {n} components in {n} samples, n_components={k}')
    else:
        G = np.asarray(PCA(k, svd_solver="full").fit(X.astype(np.float64)).components_)
    return 1.5 * G / _neighbour_distance(X @ G.T) if init == "auto" else G


def _neighbour_distance(Z: Array, rows: int = 1000) -> float:
    """The root mean squared distance of ``rows`` rows of ``Z (n, k)`` to the nearest of them that differs."""
    distances = SquaredDistances(Z[:: max(1, len(Z) // rows)])
    nearest = distances.rows_without_self(slice(0, distances.n)).min(axis=1)
    apart = nearest[nearest > 1e-12 * np.square(Z).mean()]
    return float(np.sqrt(apart.mean())) if len(apart) else 1.0


@dataclass(frozen=True)
class Whitening:
    """Coordinates in which the data has (nearly) unit covariance, where descent takes far fewer steps.

    A map ``G`` of the points is the map ``GW⁻¹`` of the whitened points ``Wx``: same distances, same optimum.

    Attributes:
        W: symmetric ``(d, d)``.
        inverse: of W.
    """

    W: Array
    inverse: Array

    @classmethod
    def of(cls, X: Array, floor: float = 1e-6) -> Whitening:
        """Whiten ``X (n, d)``; variances below ``floor`` of the largest are taken for that."""
        values, vectors = linalg.eigh(np.atleast_2d(np.cov(X.astype(np.float64), rowvar=False)))
        deviations = (
            np.sqrt(np.maximum(values, floor * values[-1])) if values[-1] > 0 else np.ones(len(values))
        )
        return cls((vectors / deviations) @ vectors.T, (vectors * deviations) @ vectors.T)

    def points(self, X: Array) -> Array:
        """The whitened points ``(n, d)``, centred, in the precision of ``X``."""
        return np.asarray((X - X.mean(axis=0)) @ self.W.astype(X.dtype))

    def inwards(self, G: Array) -> Array:
        """The map of whitened points that does what ``G (k, d)`` does with the original ones."""
        return G @ self.inverse

    def outwards(self, G: Array) -> Array:
        """The map of original points that does what ``G (k, d)`` does with whitened ones."""
        return G @ self.W
