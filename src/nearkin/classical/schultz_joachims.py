"""Schultz and Joachims: relative comparisons under a diagonal metric."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from scipy import linalg

from nearkin.classical.arrays import Array
from nearkin.classical.base import LEARNERS, LearnsFromTriplets
from nearkin.classical.cones import NonnegativeDiagonal
from nearkin.classical.constraints import Constraints, neighbour_triplets
from nearkin.classical.mahalanobis import warn_unless_converged
from nearkin.classical.parameters import AT_LEAST_ONE, NOT_NEGATIVE, POSITIVE, StrOptions
from nearkin.classical.solver import Problem, Regularizer, Report, solve


@LEARNERS.register("schultz_joachims")
class SchultzJoachims(LearnsFromTriplets):
    """Weigh the features so that relative comparisons hold: a support vector machine over distances.

    ``min_{w ≥ 0}  ½‖A‖²_F + C Σ ξ_ijk``,  ``d_A(i, k) − d_A(i, j) ≥ 1 − ξ_ijk``,  ``A = Bᵀ diag(w) B``

    with ``B`` fixed and orthogonal: the axes themselves, or the principal axes of the data. This is the
    general model (2.1) with the regulariser (2.8), triplets (2.7) and a diagonal metric.

    Source: Schultz, Joachims, "Learning a Distance Metric from Relative Comparisons", NeurIPS 2003.

    Use it when there are few comparisons or many features: it learns one number per feature.

    Args:
        C: the price of a violated comparison.
        basis: ``"features"`` or ``"pca"``.
        n_neighbors: near points per anchor when labels become triplets.
        n_impostors: far points per anchor when labels become triplets.
        tol: largest duality gap, relative to the objective.
        max_iter: largest number of dual evaluations.

    Attributes:
        components_: ``G = diag(√w) B`` ``(n_features, n_features)``.
        weights_: ``w (n_features,)``.
        report_: objective, duality gap, share of satisfied comparisons.

    >>> import numpy as np
    >>> X = np.array([[0.0, 0.0], [0.1, 2.0], [1.0, 0.1], [1.1, 1.9]])
    >>> SchultzJoachims(n_neighbors=1).fit(X, [0, 0, 1, 1]).weights_.round(2).tolist()
    [1.25, 0.0]
    """

    weights_: Array
    report_: Report

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "C": [POSITIVE],
        "basis": [StrOptions({"features", "pca"})],
        "n_neighbors": [AT_LEAST_ONE],
        "n_impostors": [AT_LEAST_ONE],
        "tol": [NOT_NEGATIVE],
        "max_iter": [AT_LEAST_ONE],
    }

    def __init__(
        self,
        *,
        C: float = 1.0,
        basis: str = "features",
        n_neighbors: int = 3,
        n_impostors: int = 10,
        tol: float = 1e-3,
        max_iter: int = 10_000,
    ) -> None:
        self.C = C
        self.basis = basis
        self.n_neighbors = n_neighbors
        self.n_impostors = n_impostors
        self.tol = tol
        self.max_iter = max_iter

    def _learn(self, X: Array, labels: Array) -> Array:
        return self._learn_triplets(X, neighbour_triplets(X, labels, self.n_neighbors, self.n_impostors))

    def _learn_triplets(self, X: Array, triplets: Array) -> Array:
        X = X.astype(np.float64)
        d = X.shape[1]
        B = self._axes(X)
        constraints = Constraints.relative(triplets, margin=1.0)
        V = (X[constraints.pairs[:, 0]] - X[constraints.pairs[:, 1]]) @ B.T
        problem = Problem(
            V,
            constraints,
            np.full(len(constraints), float(self.C)),
            Regularizer(1.0, np.zeros(d)),
            NonnegativeDiagonal(),
        )
        self.weights_, _, self.report_ = solve(problem, tol=self.tol, max_iter=self.max_iter)
        self.n_iter_ = self.report_.n_iter
        warn_unless_converged(self.report_, type(self).__name__)
        return np.sqrt(self.weights_)[:, None] * B

    def _axes(self, X: Array) -> Array:
        if self.basis == "features":
            return np.eye(X.shape[1])
        return np.asarray(linalg.eigh(np.atleast_2d(np.cov(X, rowvar=False)))[1][:, ::-1].T)
