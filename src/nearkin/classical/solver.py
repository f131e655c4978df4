"""The general model (2.1) over a cone, solved through its dual, with the duality gap as the witness.

``min_A  f/2 ‖A‖²_F + tr(AC) + Σ w_i [b_i − ⟨A, M_i⟩]₊``,  A in the cone.

With multipliers ``0 ≤ α_i ≤ w_i`` and a proximal term ``‖A − A₀‖²/2s`` the minimiser over A is a projection,
``A(α) = [A₀ + s(Σ α_i M_i − C)]₊``, so the dual is a smooth concave function on a box, which projected
quasi-Newton steps (L-BFGS-B) climb. For the Frobenius regulariser ``A₀ = 0`` and ``s = 1/f`` make this the
problem itself; for a linear regulariser the solution becomes the next ``A₀`` (the proximal point method).

Only a working set of constraints enters the dual; those found violated outside it join it. The gap is always
that of the whole problem.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import optimize

from nearkin.classical.arrays import Array
from nearkin.classical.cones import Cone
from nearkin.classical.constraints import Constraints

FIRST_WORKING_SET = 2000
EASY = 150  # dual evaluations that a proximal step may take and still be made longer


@dataclass(frozen=True)
class Report:
    """What a solver can vouch for.

    Attributes:
        objective: the value of (2.1) at the metric returned.
        lower_bound: a value that no metric of the cone can beat (the dual objective).
        gap: ``objective − lower_bound``: how far from optimal the metric can be at most.
        satisfied: share of the constraints that hold.
        n_active: constraints with a multiplier above 0; the metric depends on no others.
        n_iter: evaluations of the dual.
        converged: whether the gap came below the tolerance.
    """

    objective: float
    lower_bound: float
    gap: float
    satisfied: float
    n_active: int
    n_iter: int
    converged: bool


@dataclass(frozen=True)
class Regularizer:
    """``r(A) = f/2 ‖A‖²_F + tr(AC)``: (2.8) with ``f = 1, C = 0``, (2.9) with ``f = 0``."""

    frobenius: float
    linear: Array

    def value(self, A: Array) -> float:
        """``r(A)``."""
        return 0.5 * self.frobenius * float(np.vdot(A, A)) + float(np.vdot(A, self.linear))


@dataclass
class Problem:
    """One instance of (2.1).

    Attributes:
        V: the differences of the constraints' pairs ``(p, d)``.
        constraints: m of them.
        weights: what violating each costs ``(m,)``; λ in (2.1).
        regularizer: r(A).
        cone: where A lives.
    """

    V: Array
    constraints: Constraints
    weights: Array
    regularizer: Regularizer
    cone: Cone

    def primal(self, A: Array) -> tuple[float, Array]:
        """The objective at ``A`` and the violations ``(m,)``."""
        violations = self.constraints.violations(self.cone.distances(self.V, A))
        return self.regularizer.value(A) + float(self.weights @ violations), violations

    def lower_bound(self, alpha: Array) -> float:
        """A lower bound on the optimum from multipliers ``(m,)`` inside their box."""
        push = self.cone.outer_sum(self.V, self.constraints.mixing.T @ alpha)
        gain = float(alpha @ self.constraints.bounds)
        f, C = self.regularizer.frobenius, self.regularizer.linear
        if f > 0:
            A = self.cone.project((push - C) / f)
            return gain - 0.5 * f * float(np.vdot(A, A))
        # The dual of a linear regulariser wants C − Σ α_i M_i in the dual cone; shrinking α gets it there.
        ratio = self.cone.largest_ratio(push, C)
        return max(gain, 0.0) if ratio <= 1 else max(gain / ratio, 0.0)


def solve(
    problem: Problem, *, tol: float, max_iter: int, alpha: Array | None = None
) -> tuple[Array, Array, Report]:
    """Minimise (2.1): the metric, the multipliers ``(m,)`` and what can be said for them.

    Args:
        problem: what to minimise.
        tol: largest gap, relative to the objective.
        max_iter: largest number of evaluations of the dual.
        alpha: multipliers to start from.
    """
    f = problem.regularizer.frobenius
    alpha = np.zeros(len(problem.constraints)) if alpha is None else np.clip(alpha, 0.0, problem.weights)
    centre = 0.0 * problem.cone.identity(problem.V.shape[1])
    step = 1 / f if f > 0 else _first_step(problem)
    working = _hardest(problem, FIRST_WORKING_SET) | (alpha > 0)
    best_metric, best_alpha = centre, alpha.copy()
    objective, lower_bound = problem.primal(centre)[0], problem.lower_bound(alpha)
    evaluations = 0
    while evaluations < max_iter and objective - lower_bound > tol * abs(objective):
        budget = min(500, max_iter - evaluations)
        A, spent = _climb(problem, alpha, working, centre=centre, step=step, tol=tol, budget=budget)
        evaluations += max(1, spent)
        value, violations = problem.primal(A)
        improved = value < objective
        if improved:
            best_metric, objective = A, value
        bound = problem.lower_bound(alpha)
        if bound > lower_bound:
            best_alpha, lower_bound = alpha.copy(), bound
        working = (alpha > 0) | _most_violated(violations, working)
        if f == 0:
            centre = best_metric
            step *= _step_change(improved, spent)
    report = Report(
        objective=objective,
        lower_bound=lower_bound,
        gap=objective - lower_bound,
        satisfied=float(np.mean(problem.primal(best_metric)[1] <= 1e-9)),
        n_active=int(np.count_nonzero(best_alpha)),
        n_iter=evaluations,
        converged=objective - lower_bound <= tol * abs(objective),
    )
    return best_metric, best_alpha, report


def _climb(
    problem: Problem, alpha: Array, working: Array, *, centre: Array, step: float, tol: float, budget: int
) -> tuple[Array, int]:
    """Maximise the dual over the working set, ``alpha`` in place; the metric and the evaluations it took."""
    chosen = np.flatnonzero(working)
    mixing = problem.constraints.mixing[chosen]
    used = np.unique(mixing.indices)
    mixing = mixing[:, used]
    unmixing = mixing.T.tocsr()
    V, bounds = problem.V[used], problem.constraints.bounds[chosen]
    cone, C = problem.cone, problem.regularizer.linear
    constant = float(np.vdot(centre, centre))

    def metric(a: Array) -> Array:
        return cone.project(centre + step * (cone.outer_sum(V, unmixing @ a) - C))

    def negative_dual(a: Array) -> tuple[float, Array]:
        A = metric(a)
        value = float(a @ bounds) - (float(np.vdot(A, A)) - constant) / (2 * step)
        return -value, mixing @ cone.distances(V, A) - bounds

    result = optimize.minimize(
        negative_dual,
        alpha[chosen],
        jac=True,
        method="L-BFGS-B",
        bounds=optimize.Bounds(0.0, problem.weights[chosen]),
        options={"maxfun": budget, "maxiter": budget, "maxcor": 20, "ftol": 1e-7 * tol, "gtol": 1e-12},
    )
    alpha[:] = 0.0
    alpha[chosen] = result.x
    return metric(result.x), int(result.nfev)


def _first_step(problem: Problem) -> float:
    """A proximal step that takes the metric from 0 to about the scale where distances meet the bounds."""
    constraints = problem.constraints
    d = problem.cone.distances(problem.V, problem.cone.identity(problem.V.shape[1]))
    scale = np.abs(constraints.bounds).mean() / max(float(d.mean()), np.finfo(float).tiny)
    pull = np.linalg.norm(problem.regularizer.linear)
    return float(scale * np.sqrt(problem.V.shape[1]) / max(float(pull), np.finfo(float).tiny))


def _step_change(improved: bool, evaluations: int) -> float:
    """Step control: longer proximal steps while they are easy, shorter ones once they miss."""
    if not improved:
        return 0.25
    return 2.0 if evaluations < EASY else 1.0


def _hardest(problem: Problem, count: int) -> Array:
    """A mask of the ``count`` constraints that fail most at ``A = 0``, or else in Euclidean distance."""
    euclidean = problem.cone.distances(problem.V, problem.cone.identity(problem.V.shape[1]))
    order = np.lexsort([problem.constraints.mixing @ euclidean, -problem.constraints.bounds])
    mask = np.zeros(len(order), dtype=bool)
    mask[order[:count]] = True
    return mask


def _most_violated(violations: Array, working: Array) -> Array:
    """A mask of the violated constraints, at most as many new ones as the working set has members."""
    mask = violations > 0
    new = np.flatnonzero(mask & ~working)
    allowed = max(FIRST_WORKING_SET, int(working.sum()))
    if len(new) > allowed:
        mask[new[np.argsort(violations[new])[:-allowed]]] = False
    return mask
