"""Information-Theoretic Metric Learning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg

from nearkin.classical.arrays import Array
from nearkin.classical.base import LEARNERS, LearnsFromPairs
from nearkin.classical.cones import components_of
from nearkin.classical.constraints import distance_bounds
from nearkin.classical.covariance import precision_matrix
from nearkin.classical.descent import descend
from nearkin.classical.parameters import AT_LEAST_ONE, NOT_NEGATIVE, PAIRS, POSITIVE, StrOptions


@LEARNERS.register("itml")
class ITML(LearnsFromPairs):
    """Stay as close to a prior metric as the pairs allow, in the LogDet divergence.

    ``min_{A ≻ 0}  D(A, A₀) + γ Σ_i h(ξ_i / b_i)``,  ``D(A, A₀) = tr(AA₀⁻¹) − log det(AA₀⁻¹) − d``,
    ``h(r) = r − log r − 1``, subject to ``d_A ≤ ξ_i`` for similar pairs (b = u) and ``d_A ≥ ξ_i`` for
    dissimilar ones (b = l).

    The best slack has a closed form, ``ξ = max(d_A, u)`` and ``ξ = min(d_A, l)``; what is left is smooth and
    strictly convex in A, and is solved by L-BFGS instead of one Bregman projection per pair. ``gap_`` is the
    duality gap.

    Source: Davis, Kulis, Jain, Sra, Dhillon, "Information-Theoretic Metric Learning", ICML 2007.

    Use it with pairs and a metric one already trusts, the prior. A dissimilar pair of equal points can never
    be separated and is left out.

    Args:
        gamma: γ, the price of violating the bounds.
        prior: A₀: ``"identity"``, ``"covariance"`` (the inverse covariance) or a positive definite matrix.
        upper: u, a squared distance; None takes the 5th percentile of the pairs' distances.
        lower: l, a squared distance; None takes the 95th percentile.
        n_pairs: pairs to draw from labels; None takes 20 C² for C classes, at most 20,000.
        max_iter: largest number of L-BFGS iterations.
        tol: stop when an iteration gains less than this share of the objective.
        random_state: seed of the pairs drawn from labels.

    Attributes:
        components_: ``G (n_features, n_features)``.
        objective_: the objective at the end.
        gap_: the duality gap: no metric does better by more than this.
        bounds_: (u, l) as used.
        n_iter_: iterations taken.

    >>> import numpy as np
    >>> pairs = np.array([[[0.0, 0.0], [0.0, 2.0]], [[0.0, 0.0], [1.0, 0.0]]])
    >>> itml = ITML(upper=1.0, lower=4.0).fit_pairs(pairs, [1, -1])
    >>> itml.pair_distances(pairs, squared=True).round(2).tolist()
    [1.6, 1.6]
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "gamma": [POSITIVE],
        "prior": [StrOptions({"identity", "covariance"}), "array-like"],
        "upper": [POSITIVE, None],
        "lower": [POSITIVE, None],
        "n_pairs": PAIRS,
        "max_iter": [AT_LEAST_ONE],
        "tol": [NOT_NEGATIVE],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        *,
        gamma: float = 1.0,
        prior: str | ArrayLike = "identity",
        upper: float | None = None,
        lower: float | None = None,
        n_pairs: int | None = None,
        max_iter: int = 1000,
        tol: float = 1e-10,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.gamma = gamma
        self.prior = prior
        self.upper = upper
        self.lower = lower
        self.n_pairs = n_pairs
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def _learn_pairs(self, X: Array, pairs: Array, similar: Array) -> Array:
        X = X.astype(np.float64)
        upper, lower = self.bounds_ = distance_bounds(X, pairs, self.upper, self.lower)
        root = components_of(self._prior(X))
        V = (X[pairs[:, 0]] - X[pairs[:, 1]]) @ root
        distinct = (V != 0).any(axis=1)
        slack = Slack(V[distinct], similar[distinct], np.where(similar, upper, lower)[distinct], self.gamma)
        end = descend(slack.objective, np.eye(X.shape[1]), max_iter=self.max_iter, tol=self.tol)
        self.objective_, self.n_iter_ = end.objective, end.n_iter
        self.gap_ = end.objective - slack.lower_bound(end.G)
        return end.G @ root

    def _prior(self, X: Array) -> Array:
        d = X.shape[1]
        if isinstance(self.prior, str):
            if self.prior == "identity":
                return np.eye(d)
            A = precision_matrix(X)
        else:
            A = np.asarray(self.prior, dtype=np.float64)
        if A.shape != (d, d) or not np.allclose(A, A.T) or linalg.eigvalsh(A)[0] <= 0:
            raise ValueError(f"the prior must be symmetric, positive definite and {(d, d)}; it is not")
        return A


@dataclass(frozen=True)
class Slack:
    """The objective in coordinates where the prior is the identity.

    Attributes:
        V: differences ``(m, d)``.
        similar: booleans ``(m,)``.
        bounds: u or l ``(m,)``.
        gamma: γ.
    """

    V: Array
    similar: Array
    bounds: Array
    gamma: float

    def _pull(self, G: Array) -> tuple[Array, Array]:
        """``ξ_i / b_i`` and the derivative of each pair's cost by its distance."""
        d = np.square(self.V @ G.T).sum(axis=1)
        d = np.maximum(d, np.finfo(float).tiny)
        ratio = np.where(self.similar, np.maximum(d / self.bounds, 1.0), np.minimum(d / self.bounds, 1.0))
        return ratio, self.gamma / self.bounds * (1 - 1 / ratio)

    def objective(self, G: Array) -> tuple[float, Array]:
        """The value and its gradient at ``A = GᵀG``; infinite where G is singular."""
        sign, log_det = np.linalg.slogdet(G)
        if sign == 0:
            return np.inf, np.zeros_like(G)
        ratio, weights = self._pull(G)
        value = float(np.vdot(G, G)) - 2 * float(log_det) - len(G)
        value += self.gamma * float((ratio - np.log(ratio) - 1).sum())
        pulled = (self.V * weights[:, None]).T @ self.V
        return value, 2 * (G + G @ pulled - linalg.inv(G).T)

    def lower_bound(self, G: Array) -> float:
        """The dual objective at the multipliers that the gradient at ``G`` suggests."""
        ratio, alpha = self._pull(G)
        B = np.eye(len(G)) + (self.V * alpha[:, None]).T @ self.V
        sign, log_det = np.linalg.slogdet(B)
        if sign <= 0 or linalg.eigvalsh(B)[0] <= 0:
            return -np.inf
        return float(log_det) - self.gamma * float(np.log(ratio).sum())
