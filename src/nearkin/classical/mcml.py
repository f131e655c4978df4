"""Maximally Collapsing Metric Learning."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg

from nearkin.classical.arrays import Array
from nearkin.classical.base import LEARNERS, SupervisedLearner
from nearkin.classical.descent import Whitening, descend, initial_map
from nearkin.classical.neighbourhood import GradientSum, Sorted, probabilities
from nearkin.classical.pairwise import SquaredDistances
from nearkin.classical.parameters import AT_LEAST_ONE, COMPONENTS, INIT, NOT_NEGATIVE


@LEARNERS.register("mcml")
class MCML(SupervisedLearner):
    """Bring each class as near to a single point, far from the others, as a linear map can.

    ``min_{A ⪰ 0}  Σ_i KL(p⁰_i ‖ p_i)``,  ``p_ij ∝ exp(−d_A(x_i, x_j))``, ``p⁰_ij`` equal on i's class, 0
    elsewhere.

    The problem is convex in ``A``; it is solved over ``G`` with ``A = GᵀG``, and ``gap_`` bounds how far the
    result is from the optimum, from the gradient in ``A``. A point that is alone in its class has no target
    and is left out of the sum.

    Source: Globerson, Roweis, "Metric Learning by Collapsing Classes", NeurIPS 2005.

    Use it where classes are compact (one cluster each). Time grows with n², memory with n.

    Args:
        n_components: dimensions of the result; None keeps all, and only then is the problem convex.
        init: ``"auto"`` (the identity, or Fisher's directions where ``n_components`` is smaller, scaled so
            that nearest neighbours are at distance 1.5 on average), ``"identity"``, ``"pca"`` or a matrix.
        max_iter: largest number of L-BFGS iterations.
        tol: stop when an iteration gains less than this share of the objective.

    Attributes:
        components_: ``G (n_components, n_features)``.
        objective_: the sum of divergences.
        gap_: ``⟨∇, A⟩ + max(0, −λ_min(∇)) · tr A``, with ∇ the gradient in ``A``: by convexity at least the
            distance from the optimum over all metrics of no larger trace.
        n_iter_: iterations taken.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> mcml = MCML().fit(X, y)
    >>> bool(mcml.gap_ < 0.01 * mcml.objective_), round(mcml.score(X, y), 2)
    (True, 0.97)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_components": COMPONENTS,
        "init": INIT,
        "max_iter": [AT_LEAST_ONE],
        "tol": [NOT_NEGATIVE],
    }

    def __init__(
        self,
        n_components: int | None = None,
        *,
        init: str | ArrayLike = "auto",
        max_iter: int = 500,
        tol: float = 1e-9,
    ) -> None:
        self.n_components = n_components
        self.init = init
        self.max_iter = max_iter
        self.tol = tol

    def _learn(self, X: Array, labels: Array) -> Array:
        whitening = Whitening.of(X)
        points = Sorted.of(whitening.points(X), labels)
        start = whitening.inwards(initial_map(X, labels, self.n_components, self.init))
        end = descend(lambda G: divergence(G, points), start, max_iter=self.max_iter, tol=self.tol)
        self.objective_ = end.objective
        self.n_iter_ = end.n_iter
        G = whitening.outwards(end.G)
        self.gap_ = _gap(G, divergence_in_metric(G, Sorted.of(X, labels))[1])
        return G


def divergence(G: Array, points: Sorted) -> tuple[float, Array]:
    """``Σ_i KL(p⁰_i ‖ p_i)`` and its gradient in the map ``(k, d)``."""
    value, gradient = divergence_in_metric(G, points)
    return value, 2 * G @ gradient


def divergence_in_metric(G: Array, points: Sorted) -> tuple[float, Array]:
    """``Σ_i KL(p⁰_i ‖ p_i)`` and its gradient in ``A = GᵀG``, ``(d, d)``."""
    X = points.X
    distances = SquaredDistances(X @ G.T.astype(X.dtype))
    gradient = GradientSum(X)
    value = 0.0
    for block, parts in points.blocks():
        P, log_total = probabilities(distances, block)
        np.negative(P, out=P)  # W_ij = p⁰_ij − p_ij
        for rows, members in parts:
            others = members.stop - members.start - 1
            if others == 0:
                P[rows] = 0.0
                continue
            own = np.arange(rows.start, rows.stop)
            P[rows, members] += 1 / others
            P[own, own + block.start] = 0.0
            value += float((log_total[rows] - np.log(others)).sum())
        gradient.add(block, P)
    return value + _mean_target_distances(X @ G.T.astype(X.dtype), points.classes), gradient.total()


def _mean_target_distances(Z: Array, classes: list[slice]) -> float:
    """``Σ_ij p⁰_ij ‖z_i − z_j‖²``: a class of m points gives ``2m/(m − 1)`` times its scatter."""
    total = 0.0
    for members in classes:
        m = members.stop - members.start
        if m > 1:
            scatter = np.square(Z[members] - Z[members].mean(axis=0), dtype=np.float64).sum()
            total += 2 * m / (m - 1) * float(scatter)
    return total


def _gap(G: Array, gradient: Array) -> float:
    """How far above the optimum the objective can be, from its gradient in ``A = GᵀG``; see ``MCML``."""
    slope = float(np.vdot(G @ gradient, G))
    steepest = max(0.0, -float(linalg.eigvalsh(gradient)[0]))
    return max(0.0, slope) + steepest * float(np.vdot(G, G))
