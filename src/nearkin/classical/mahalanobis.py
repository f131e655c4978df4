"""The general linear model of metric learning."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import validate_data

from nearkin.classical.arrays import FLOATS, Array
from nearkin.classical.base import LEARNERS, LearnsFromPairs, LearnsFromTriplets
from nearkin.classical.cones import PositiveSemidefinite
from nearkin.classical.constraints import (
    Constraints,
    distance_bounds,
    neighbour_triplets,
)
from nearkin.classical.covariance import inverse_root
from nearkin.classical.parameters import AT_LEAST_ONE, NOT_NEGATIVE, PAIRS, POSITIVE, StrOptions
from nearkin.classical.solver import Problem, Regularizer, Report, solve

if TYPE_CHECKING:
    from typing import Self


@LEARNERS.register("mahalanobis")
class MahalanobisLearner(LearnsFromPairs, LearnsFromTriplets):
    """The general model: a regulariser and hinge losses on distance constraints (thesis 2.1.1; Kulis 2013).

    ``min_{A ⪰ 0}  r(A) + λ Σ_i c_i(XᵀAX)``                                        (2.1)

    where ``c_i`` is ``[d_A(i, j) − u]₊`` for a similar pair (2.4), ``[l − d_A(i, j)]₊`` for a dissimilar one
    (2.5), or ``[m + d_A(i, j) − d_A(i, k)]₊`` for a triplet (2.7). The problem is convex; it is solved
    through its dual over a working set of constraints, and ``report_`` holds the duality gap: how far from
    the optimum the metric can be at most.

    Source: B. Kulis, "Metric Learning: A Survey", Foundations and Trends in Machine Learning, 2013.

    Use it to try one's own constraints, or to know how good a solution is. For nearest neighbours from labels
    ``LMNN`` is faster.

    Args:
        constraints: what labels become: ``"triplets"`` (each point, its ``n_neighbors`` nearest of its class,
            its ``n_impostors`` nearest of others), ``"pairs"`` (``n_pairs`` random pairs), or a function
            ``(X, labels) -> Constraints``.
        regularizer: ``"frobenius"``, ½‖A‖²_F (2.8); ``"trace"``, tr A; ``"similar"``, tr(AC) (2.9) with C the
            sum of ``(x_i − x_j)(x_i − x_j)ᵀ`` over the pairs that should be near; or a matrix C
            ``(n_features, n_features)``, symmetric and positive semi-definite.
        trade_off: λ, the weight of the losses.
        margin: m of (2.7).
        upper: u of (2.2), a squared distance; None takes the 5th percentile of the pairs' distances.
        lower: l of (2.3), a squared distance; None takes the 95th percentile.
        n_neighbors: near points per anchor when labels become triplets.
        n_impostors: far points per anchor when labels become triplets.
        n_pairs: pairs when labels become pairs; None takes 20 C² for C classes, at most 20,000.
        tol: largest duality gap, relative to the objective; a larger one left is a ``ConvergenceWarning``.
        max_iter: largest number of dual evaluations.
        random_state: seed of the random pairs.

    Attributes:
        components_: ``G (n_features, n_features)``.
        report_: objective, lower bound, gap, share of satisfied constraints, active ones.
        multipliers_: one α per constraint, 0 where the metric does not depend on it.

    >>> import numpy as np
    >>> X = np.array([[0.0, 0.0], [0.1, 2.0], [1.0, 0.1], [1.1, 1.9]])
    >>> learner = MahalanobisLearner(n_neighbors=1).fit(X, [0, 0, 1, 1])
    >>> bool(learner.report_.gap <= 1e-3 * learner.report_.objective)
    True
    >>> learner.score(X, [0, 0, 1, 1])  # Euclidean distance gets every one of them wrong
    1.0
    """

    report_: Report
    multipliers_: Array

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "constraints": [StrOptions({"triplets", "pairs"}), callable],
        "regularizer": [StrOptions({"frobenius", "trace", "similar"}), "array-like"],
        "trade_off": [POSITIVE],
        "margin": [NOT_NEGATIVE],
        "upper": [POSITIVE, None],
        "lower": [POSITIVE, None],
        "n_neighbors": [AT_LEAST_ONE],
        "n_impostors": [AT_LEAST_ONE],
        "n_pairs": PAIRS,
        "tol": [NOT_NEGATIVE],
        "max_iter": [AT_LEAST_ONE],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        *,
        constraints: str | Callable[[Array, Array], Constraints] = "triplets",
        regularizer: str | ArrayLike = "frobenius",
        trade_off: float = 1.0,
        margin: float = 1.0,
        upper: float | None = None,
        lower: float | None = None,
        n_neighbors: int = 3,
        n_impostors: int = 10,
        n_pairs: int | None = None,
        tol: float = 1e-3,
        max_iter: int = 10_000,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.constraints = constraints
        self.regularizer = regularizer
        self.trade_off = trade_off
        self.margin = margin
        self.upper = upper
        self.lower = lower
        self.n_neighbors = n_neighbors
        self.n_impostors = n_impostors
        self.n_pairs = n_pairs
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state

    def fit_constraints(self, X: ArrayLike, constraints: Constraints) -> Self:
        """Learn from constraints of one's own over the rows of ``X (n, n_features)``."""
        self._validate_params()
        points: Array = validate_data(self, X, dtype=FLOATS)
        self.components_ = self._learn_constraints(points, constraints).astype(points.dtype, copy=False)
        return self

    def _learn(self, X: Array, labels: Array) -> Array:
        if callable(self.constraints):
            return self._learn_constraints(X, self.constraints(X, labels))
        if self.constraints == "triplets":
            return self._learn_triplets(X, neighbour_triplets(X, labels, self.n_neighbors, self.n_impostors))
        return self._learn_pairs(X, *self._drawn_pairs(labels))

    def _learn_triplets(self, X: Array, triplets: Array) -> Array:
        return self._learn_constraints(X, Constraints.relative(triplets, self.margin))

    def _learn_pairs(self, X: Array, pairs: Array, similar: Array) -> Array:
        upper, lower = distance_bounds(X, pairs, self.upper, self.lower)
        near = Constraints.similar(pairs[similar], upper)
        return self._learn_constraints(X, near + Constraints.dissimilar(pairs[~similar], lower))

    def _learn_constraints(self, X: Array, constraints: Constraints) -> Array:
        X = X.astype(np.float64)
        V = X[constraints.pairs[:, 0]] - X[constraints.pairs[:, 1]]
        cone = PositiveSemidefinite()
        regularizer = self._regularizer(V, constraints)
        scaling = _conditioning(regularizer)
        scaled = Regularizer(regularizer.frobenius, scaling @ regularizer.linear @ scaling)
        weights = np.full(len(constraints), float(self.trade_off))
        problem = Problem(V @ scaling, constraints, weights, scaled, cone)
        B, self.multipliers_, self.report_ = solve(problem, tol=self.tol, max_iter=self.max_iter)
        self.n_iter_ = self.report_.n_iter
        warn_unless_converged(self.report_, type(self).__name__)
        return cone.components(B) @ scaling

    def _regularizer(self, V: Array, constraints: Constraints) -> Regularizer:
        d = V.shape[1]
        if not isinstance(self.regularizer, str):
            C = np.asarray(self.regularizer, dtype=float)
            if (
                C.shape != (d, d)
                or not np.allclose(C, C.T)
                or np.linalg.eigvalsh(C)[0] < -1e-9 * np.abs(C).max()
            ):
                raise ValueError(
                    f"regularizer must be symmetric, positive semi-definite and {(d, d)}; it is {C.shape}"
                )
            return Regularizer(0.0, C)
        if self.regularizer == "frobenius":
            return Regularizer(1.0, np.zeros((d, d)))
        if self.regularizer == "trace":
            return Regularizer(0.0, np.eye(d))
        near = np.unique(constraints.mixing.tocoo().col[constraints.mixing.tocoo().data < 0])
        return Regularizer(0.0, V[near].T @ V[near])


def _conditioning(regularizer: Regularizer) -> Array:
    """A symmetric ``W (d, d)``: over ``B`` with ``A = WBW`` a linear regulariser is nearly tr B, and easier.

    The Frobenius norm would not stay what it is, so there W is the identity.
    """
    C = regularizer.linear
    d = len(C)
    if regularizer.frobenius > 0:
        return np.eye(d)
    return inverse_root(C + 1e-6 * max(np.trace(C) / d, np.finfo(float).tiny) * np.eye(d))


def warn_unless_converged(report: Report, name: str) -> None:
    """A ``ConvergenceWarning`` that says how large the gap still is."""
    if not report.converged:
        warnings.warn(
            f"{name} stopped after {report.n_iter} evaluations with objective {report.objective:.6g} "
            f"and a gap of {report.gap:.2g}: raise max_iter or tol, or scale the features",
            ConvergenceWarning,
            stacklevel=3,
        )
