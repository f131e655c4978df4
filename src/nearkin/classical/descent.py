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
from nearkin.classical.scatter import fisher_directions

Objective = Callable[[Array], tuple[float, Array]]


@dataclass(frozen=True)
class Descent:
    """Where a descent ended.

    Attributes:
        G: the map ``(n_components, n_features)``, in float64.
        objective: the value there.
        n_iter: L-BFGS iterations.
    """

    G: Array
    objective: float
    n_iter: int


def descend(objective: Objective, G: Array, *, max_iter: int, tol: float) -> Descent:
    """Minimise ``objective(G) -> (value, gradient)`` from ``G`` on.

    Stops when an iteration gains less than ``tol`` of the value (of 1, where the value is smaller).
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
    return Descent(result.x.reshape(G.shape), float(result.fun), int(result.nit))


def initial_map(X: Array, labels: Array, n_components: int | None, init: str | ArrayLike) -> Array:
    """Where a descent starts: ``(n_components, n_features)``, float64.

    Args:
        X: points ``(n, n_features)``.
        labels: their classes ``(n,)``.
        n_components: rows of the map; None for as many as there are features.
        init: ``"identity"``, ``"pca"``, a matrix, or ``"auto"``: the identity (Fisher's directions where
            dimensions are dropped), scaled so that nearest neighbours are at distance 1.5 on average. Far
            from that scale every margin is met or none is, and every neighbour probability is 0 or 1: there
            is no slope to descend.
    """
    d = X.shape[1]
    k = d if n_components is None else n_components
    if not 1 <= k <= d:
        raise ValueError(f"n_components={k} but the data has {d} features: choose between 1 and {d}")
    if not isinstance(init, str):
        G = np.asarray(init, dtype=np.float64)
        if G.shape != (k, d):
            raise ValueError(f"init has shape {G.shape}, expected (n_components, n_features) = {(k, d)}")
        return G.copy()
    if init == "auto":
        G = np.eye(k, d)
        if k < d and np.ptp(X, axis=0).any():
            fisher = fisher_directions(X, labels, k, ridge=1e-3)
            G[: len(fisher)] = fisher
        return 1.5 * G / _neighbour_distance(X @ G.T)
    if init == "identity":
        return np.eye(k, d)
    if init == "pca":
        if k > len(X):
            raise ValueError(f'init="pca" finds at most {len(X)} components in {len(X)} samples, not {k}')
        return np.asarray(PCA(k, svd_solver="full").fit(X.astype(np.float64)).components_)
    raise ValueError(f'init must be "auto", "identity", "pca" or a matrix, got {init!r}')


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
        """Whiten ``X (n, d)``; a variance below ``floor`` times the largest counts as that much."""
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
