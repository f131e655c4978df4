from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize

from nearkin.classical.cones import NonnegativeDiagonal, PositiveSemidefinite
from nearkin.classical.constraints import Constraints
from nearkin.classical.solver import Problem, Regularizer, solve


def problem(cone, frobenius, *, seed=0, n=12, d=2, m=40):
    """Triplets whose first feature says the truth, similar and dissimilar pairs, and a weight for each."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    triplets = rng.integers(n, size=(m, 3))
    constraints = Constraints.relative(triplets, 1.0)
    constraints += Constraints.similar(rng.integers(n, size=(5, 2)), 0.5)
    constraints += Constraints.dissimilar(rng.integers(n, size=(5, 2)), 2.0)
    V = X[constraints.pairs[:, 0]] - X[constraints.pairs[:, 1]]
    linear = cone.identity(d) * (0.0 if frobenius else 3.0)
    return Problem(
        V, constraints, rng.uniform(0.1, 1, len(constraints)), Regularizer(frobenius, linear), cone
    )


@pytest.mark.parametrize("seed", range(3))
def test_diagonal_metric_with_linear_regulariser_is_a_linear_programme(seed):
    p = problem(NonnegativeDiagonal(), 0.0, seed=seed, d=4)
    _, _, report = solve(p, tol=1e-5, max_iter=20_000)
    m, d = len(p.constraints), 4
    per_feature = p.constraints.mixing @ np.square(p.V)
    lp = optimize.linprog(
        np.concatenate([p.regularizer.linear, p.weights]),
        A_ub=np.hstack([-per_feature, -np.eye(m)]),
        b_ub=-p.constraints.bounds,
        bounds=[(0, None)] * (d + m),
    )
    assert report.converged
    assert report.objective == pytest.approx(lp.fun, rel=1e-4)
    assert report.lower_bound <= lp.fun * (1 + 1e-9)


@pytest.mark.parametrize("frobenius", [1.0, 0.0])
def test_full_metric_in_the_plane_against_a_search_over_its_three_numbers(frobenius):
    p = problem(PositiveSemidefinite(), frobenius)
    A, _, report = solve(p, tol=1e-4, max_iter=20_000)

    def objective(g):
        G = np.array([[g[0], g[1]], [0.0, g[2]]])
        return p.primal(G.T @ G)[0]

    starts = np.random.default_rng(0).normal(size=(8, 3))
    options = {"xatol": 1e-9, "fatol": 1e-11, "maxiter": 5000}
    searched = min(optimize.minimize(objective, s, method="Nelder-Mead", options=options).fun for s in starts)
    assert report.converged
    assert report.objective == pytest.approx(searched, rel=2e-4)
    assert p.primal(A)[0] == pytest.approx(report.objective)


@pytest.mark.parametrize("cone", [PositiveSemidefinite(), NonnegativeDiagonal()])
@pytest.mark.parametrize("frobenius", [1.0, 0.0])
@given(seed=st.integers(0, 10_000))
def test_no_metric_beats_the_lower_bound_of_any_multipliers(cone, frobenius, seed):
    p = problem(cone, frobenius, seed=seed, d=3)
    rng = np.random.default_rng(seed)
    bound = p.lower_bound(p.weights * rng.uniform(size=len(p.weights)))
    for scale in (0.0, 0.01, 0.1, 1.0):
        A = cone.project(scale * cone.outer_sum(rng.normal(size=(3, 3)), rng.normal(size=3)))
        assert bound <= p.primal(A)[0] + 1e-9


def test_working_set_finds_the_same_optimum_as_all_constraints_at_once(monkeypatch):
    p = problem(PositiveSemidefinite(), 1.0, n=60, d=5, m=600)
    _, _, whole = solve(p, tol=1e-5, max_iter=20_000)
    monkeypatch.setattr("nearkin.classical.solver.FIRST_WORKING_SET", 20)
    A, alpha, sparse = solve(p, tol=1e-5, max_iter=20_000)
    assert sparse.converged
    assert sparse.objective == pytest.approx(whole.objective, rel=2e-5)
    assert sparse.n_active == np.count_nonzero(alpha) < len(alpha)
    violations = p.primal(A)[1]
    assert sparse.satisfied == pytest.approx(np.mean(violations <= 1e-9))


def test_constraints_that_can_hold_do_hold_when_they_are_dear_enough():
    X = np.array([[0.0, 0.0], [0.0, 2.0], [1.0, 0.0], [1.0, 2.0]])
    constraints = Constraints.relative([[0, 1, 2], [3, 2, 1]], margin=1.0)
    V = X[constraints.pairs[:, 0]] - X[constraints.pairs[:, 1]]
    cone = PositiveSemidefinite()
    p = Problem(V, constraints, np.full(2, 1e3), Regularizer(1.0, np.zeros((2, 2))), cone)
    A, _, report = solve(p, tol=1e-6, max_iter=20_000)
    assert report.satisfied == 1.0 or p.primal(A)[1].max() < 1e-5
    assert np.allclose(A, [[1.0, 0.0], [0.0, 0.0]], atol=1e-3)  # the least matrix that does it


def test_projection_is_the_nearest_point_of_the_cone():
    rng = np.random.default_rng(0)
    B = rng.normal(size=(4, 4))
    B = B + B.T
    A = PositiveSemidefinite().project(B)
    assert np.linalg.eigvalsh(A)[0] >= -1e-12
    assert abs(np.vdot(A, B - A)) < 1e-9  # Moreau: the rest is orthogonal to it …
    assert np.linalg.eigvalsh(B - A)[-1] <= 1e-12  # … and in the polar cone


def test_ratio_of_two_matrices():
    C, B = np.diag([1.0, 2.0, 0.0]), np.diag([3.0, 2.0, 0.0])
    cone = PositiveSemidefinite()
    assert cone.largest_ratio(B, C) == pytest.approx(3.0)
    assert cone.largest_ratio(-B, C) == 0.0
    assert cone.largest_ratio(np.eye(3), C) == np.inf
    assert NonnegativeDiagonal().largest_ratio(np.diag(B), np.diag(C)) == pytest.approx(3.0)
    assert NonnegativeDiagonal().largest_ratio(np.ones(3), np.diag(C)) == np.inf
