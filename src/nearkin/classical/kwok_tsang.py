"""Kwok and Tsang: a metric from an idealised kernel."""

from __future__ import annotations

from dataclasses import replace
from numbers import Real
from typing import Any, ClassVar

import numpy as np

from nearkin.classical.arrays import Array
from nearkin.classical.base import LEARNERS, LearnsFromPairs
from nearkin.classical.cones import PositiveSemidefinite
from nearkin.classical.constraints import Constraints
from nearkin.classical.mahalanobis import warn_unless_converged
from nearkin.classical.parameters import AT_LEAST_ONE, NOT_NEGATIVE, PAIRS, POSITIVE, Interval
from nearkin.classical.solver import Problem, Regularizer, Report, solve


@LEARNERS.register("kwok_tsang")
class KwokTsang(LearnsFromPairs):
    """Similar pairs no further than they were, dissimilar ones further by a margin that is itself maximised.

    ``min_{A ⪰ 0, γ ≥ 0}  ½‖A‖²_F + (C_S/|S|) Σ_S ξ_ij + C_D ((1/|D|) Σ_D ξ_ij − νγ)``

    subject to ``d_A(i, j) ≤ d(i, j) + ξ_ij`` for similar pairs and ``d_A(i, j) ≥ d(i, j) + γ − ξ_ij`` for
    dissimilar ones, ``d`` the squared Euclidean distance. For a given margin γ this is the general model
    (2.1) with (2.8) and a bound for each pair; the best γ is where the dissimilar pairs' multipliers add up
    to C_D ν, found by bisection.

    Source: Kwok, Tsang, "Learning with Idealized Kernels", ICML 2003.

    Use it with pairs when the original distances deserve trust: nothing is asked of a similar pair that is
    near already.

    Args:
        C_similar: C_S, the price of similar pairs that drift apart.
        C_dissimilar: C_D, the price of dissimilar pairs within the margin.
        nu: ν in (0, 1]: at most this share of the dissimilar pairs violates the margin.
        n_pairs: pairs to draw from labels; None takes 20 C² for C classes, at most 20,000.
        tol: largest duality gap, relative to the objective.
        max_iter: largest number of dual evaluations for one margin.
        random_state: seed of the pairs drawn from labels.

    Attributes:
        components_: ``G (n_features, n_features)``, the symmetric square root of ``A``.
        margin_: γ.
        report_: objective, duality gap, share of satisfied constraints.

    >>> import numpy as np
    >>> X = np.array([[0.0, 0.0], [0.1, 2.0], [1.0, 0.1], [1.1, 1.9]])
    >>> pairs = [[0, 1], [2, 3], [0, 2], [1, 3]]
    >>> learner = KwokTsang(C_similar=100.0, C_dissimilar=100.0).fit_pairs(pairs, [1, 1, -1, -1], X)
    >>> near, _, far, _ = learner.pair_distances(pairs, X)
    >>> bool(far > near), bool(learner.margin_ > 0)
    (True, True)
    """

    margin_: float
    report_: Report

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "C_similar": [POSITIVE],
        "C_dissimilar": [POSITIVE],
        "nu": [Interval(Real, 0, 1, closed="right")],
        "n_pairs": PAIRS,
        "tol": [NOT_NEGATIVE],
        "max_iter": [AT_LEAST_ONE],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        *,
        C_similar: float = 1.0,
        C_dissimilar: float = 1.0,
        nu: float = 0.5,
        n_pairs: int | None = None,
        tol: float = 1e-3,
        max_iter: int = 2000,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.C_similar = C_similar
        self.C_dissimilar = C_dissimilar
        self.nu = nu
        self.n_pairs = n_pairs
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state

    def _learn_pairs(self, X: Array, pairs: Array, similar: Array) -> Array:
        self._check(similar)
        X = X.astype(np.float64)
        pairs = np.concatenate([pairs[similar], pairs[~similar]])
        n_similar = int(similar.sum())
        V = X[pairs[:, 0]] - X[pairs[:, 1]]
        euclidean = np.square(V).sum(axis=1)
        constraints = Constraints.similar(pairs[:n_similar], euclidean[:n_similar])
        constraints += Constraints.dissimilar(pairs[n_similar:], euclidean[n_similar:])
        prices = self.C_similar / n_similar, self.C_dissimilar / (len(pairs) - n_similar)
        weights = np.repeat(prices, [n_similar, len(pairs) - n_similar])
        d = X.shape[1]
        problem = Problem(V, constraints, weights, Regularizer(1.0, np.zeros((d, d))), PositiveSemidefinite())
        A = self._best_margin(problem, n_similar, first=float(np.median(euclidean)) or 1.0)
        return problem.cone.components(A)

    def _best_margin(self, problem: Problem, n_similar: int, first: float) -> Array:
        """Bisect on γ: the derivative of the optimum by it is ``Σ_D α − C_D ν``, which grows with γ."""
        wanted = self.C_dissimilar * self.nu
        alpha = np.zeros(len(problem.constraints))
        below: tuple[float, float, Array] | None = None  # margin, surplus and multipliers on either side
        above: tuple[float, float, Array] | None = None
        margin = 0.0
        self.n_iter_ = 0
        while True:
            at_margin = _with_margin(problem, n_similar, margin)
            A, alpha, report = solve(at_margin, tol=self.tol / 4, max_iter=self.max_iter, alpha=alpha)
            self.n_iter_ += report.n_iter
            surplus = float(alpha[n_similar:].sum()) - wanted
            if surplus < 0:
                below = margin, surplus, alpha
            else:
                above = margin, surplus, alpha
            bound = at_margin.lower_bound(_balanced(below, above)) if above else -np.inf
            gap = report.objective - bound if margin > 0 else report.gap
            converged = above is not None and gap <= self.tol * report.objective
            if converged or (margin == 0 and above) or self.n_iter_ >= 20 * self.max_iter:
                break
            low = below[0] if below else 0.0
            margin = (low + above[0]) / 2 if above else max(first, 2 * low)
        objective = report.objective - wanted * margin
        self.margin_ = margin
        self.report_ = replace(
            report,
            objective=objective,
            lower_bound=objective - gap,
            gap=gap,
            n_iter=self.n_iter_,
            converged=converged,
        )
        warn_unless_converged(self.report_, type(self).__name__)
        return A

    def _check(self, similar: Array) -> None:
        if similar.all() or not similar.any():
            raise ValueError("KwokTsang needs similar and dissimilar pairs, got only one kind")


def _with_margin(problem: Problem, n_similar: int, margin: float) -> Problem:
    """The problem with the dissimilar pairs' bounds raised by the margin."""
    bounds = problem.constraints.bounds.copy()
    bounds[n_similar:] += margin
    return replace(problem, constraints=replace(problem.constraints, bounds=bounds))


def _balanced(below: tuple[float, float, Array] | None, above: tuple[float, float, Array]) -> Array:
    """Multipliers without surplus, as the dual wants, between those on either side of the best margin."""
    if below is None:
        return above[2]
    share = above[1] / (above[1] - below[1])
    return share * below[2] + (1 - share) * above[2]
