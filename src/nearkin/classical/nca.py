"""Neighbourhood Components Analysis."""

from __future__ import annotations

from typing import Any, ClassVar

from numpy.typing import ArrayLike

from nearkin.classical.arrays import Array
from nearkin.classical.base import LEARNERS, SupervisedLearner
from nearkin.classical.descent import Whitening, descend, initial_map
from nearkin.classical.neighbourhood import GradientSum, Sorted, probabilities
from nearkin.classical.pairwise import SquaredDistances
from nearkin.classical.parameters import AT_LEAST_ONE, COMPONENTS, INIT, NOT_NEGATIVE


@LEARNERS.register("nca")
class NCA(SupervisedLearner):
    """Maximise the expected number of points that a stochastic nearest neighbour classifies rightly.

    ``max_G  Σ_i Σ_{j ≠ i, y_j = y_i} p_ij``,  ``p_ij = exp(−‖Gx_i − Gx_j‖²) / Σ_{k ≠ i} exp(−‖Gx_i −
    Gx_k‖²)``

    Source: Goldberger, Roweis, Hinton, Salakhutdinov, "Neighbourhood Components Analysis", NeurIPS 2004.

    Use it for nearest-neighbour classification and for supervised reduction to a few dimensions. The
    objective is not convex: the result depends on ``init``, and features of large scale leave it nothing to
    climb, so scale them first. Time grows with n², memory with n.

    Args:
        n_components: dimensions of the result; None keeps all.
        init: ``"auto"`` (the identity, or Fisher's directions where ``n_components`` is smaller, scaled so
            that nearest neighbours are at distance 1.5 on average), ``"identity"``, ``"pca"`` or a matrix.
        max_iter: largest number of L-BFGS iterations.
        tol: stop when an iteration gains less than this share of the objective.

    Attributes:
        components_: ``G (n_components, n_features)``.
        objective_: the expected number of points classified rightly.
        n_iter_: iterations taken.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> nca = NCA(n_components=2).fit(X, y)
    >>> nca.transform(X).shape, bool(nca.objective_ > 145)
    ((150, 2), True)
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
        max_iter: int = 100,
        tol: float = 1e-8,
    ) -> None:
        self.n_components = n_components
        self.init = init
        self.max_iter = max_iter
        self.tol = tol

    def _learn(self, X: Array, labels: Array) -> Array:
        whitening = Whitening.of(X)
        points = Sorted.of(whitening.points(X), labels)
        start = whitening.inwards(initial_map(X, labels, self.n_components, self.init))
        end = descend(
            lambda G: negative_expected_hits(G, points), start, max_iter=self.max_iter, tol=self.tol
        )
        self.objective_ = -end.objective
        self.n_iter_ = end.n_iter
        return whitening.outwards(end.G)


def negative_expected_hits(G: Array, points: Sorted) -> tuple[float, Array]:
    """``−Σ_i p_i`` and its gradient ``(k, d)``, ``p_i`` the probability of a neighbour of i's class."""
    X = points.X
    distances = SquaredDistances(X @ G.T.astype(X.dtype))
    gradient = GradientSum(X)
    hits = 0.0
    for block, parts in points.blocks():
        P, _ = probabilities(distances, block)
        for rows, members in parts:
            own = P[rows, members].copy()
            p = own.sum(axis=1)
            hits += float(p.sum())
            P[rows] *= -p[:, None]  # W_ij = p_ij (1[same class] − p_i)
            P[rows, members] += own
        gradient.add(block, P)
    return -hits, 2 * G @ gradient.total()
