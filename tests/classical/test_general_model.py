"""MahalanobisLearner, and the two named methods that are cases of it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize
from sklearn.datasets import load_iris, load_wine
from sklearn.exceptions import ConvergenceWarning

from nearkin.classical import Constraints, KwokTsang, MahalanobisLearner, SchultzJoachims


@pytest.fixture(scope="module")
def wine():
    X, y = load_wine(return_X_y=True)
    return (X - X.mean(axis=0)) / X.std(axis=0), y


@pytest.mark.parametrize("regularizer", ["frobenius", "trace", "similar"])
@pytest.mark.parametrize("constraints", ["triplets", "pairs"])
def test_objective_and_gap_are_what_the_metric_has(regularizer, constraints, wine):
    X, y = load_iris(return_X_y=True)
    learner = MahalanobisLearner(constraints=constraints, regularizer=regularizer, trade_off=0.1).fit(X, y)
    report = learner.report_
    assert report.converged
    assert report.lower_bound <= report.objective
    assert report.gap <= 1e-3 * report.objective
    assert report.n_active == np.count_nonzero(learner.multipliers_)
    assert learner.score(X, y) > 0.9


def test_the_value_of_one_s_own_constraints(wine):
    X, y = wine
    rng = np.random.default_rng(0)
    triplets = np.array([t for t in rng.integers(len(X), size=(500, 3)) if y[t[0]] == y[t[1]] != y[t[2]]])
    own = Constraints.relative(triplets, 2.0)
    C = np.diag(np.arange(1.0, 14.0))
    learner = MahalanobisLearner(regularizer=C, trade_off=0.5).fit_constraints(X, own)
    A = learner.get_mahalanobis_matrix()
    d = learner.pair_distances(own.pairs, X, squared=True)
    violations = own.violations(d)
    assert learner.report_.objective == pytest.approx(np.vdot(A, C) + 0.5 * violations.sum(), rel=1e-6)
    assert learner.report_.satisfied == pytest.approx(np.mean(violations <= 1e-9), abs=0.02)
    by_function = MahalanobisLearner(constraints=lambda X, y: own, regularizer=C, trade_off=0.5).fit(X, y)
    assert np.allclose(by_function.components_, learner.components_)


def test_a_constant_feature_gets_no_weight(wine):
    X, y = wine
    more = np.column_stack([X, np.full(len(X), 7.0)])
    for regularizer in ("frobenius", "trace", "similar"):
        A = MahalanobisLearner(regularizer=regularizer, tol=1e-2).fit(more, y).get_mahalanobis_matrix()
        assert np.abs(A[-1]).max() < 1e-8 * np.abs(A).max()


def test_too_few_steps_are_a_warning_with_the_gap(wine):
    with pytest.warns(ConvergenceWarning, match="gap"):
        MahalanobisLearner(max_iter=5).fit(*wine)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"trade_off": 0.0}, "trade_off"),
        ({"regularizer": "l1"}, "regularizer"),
        ({"regularizer": -np.eye(13)}, "regularizer"),
        ({"constraints": "quadruplets"}, "constraints"),
    ],
)
def test_wrong_values_are_errors_that_name_them(wine, keywords, message):
    with pytest.raises(ValueError, match=message):
        MahalanobisLearner(**keywords).fit(*wine)


def test_schultz_joachims_is_its_quadratic_programme():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(15, 3))
    triplets = rng.integers(15, size=(20, 3))
    learner = SchultzJoachims(C=0.7, tol=1e-6).fit_triplets(triplets, X)
    i, j, k = triplets.T
    gains = np.square(X[i] - X[k]) - np.square(X[i] - X[j])

    def objective(w):
        return 0.5 * w @ w + 0.7 * np.maximum(1 - gains @ w, 0).sum()

    # The same programme with slack variables, for a general solver.
    n = len(triplets)
    start = np.concatenate([np.ones(3), np.ones(n) * 10])
    solved = optimize.minimize(
        lambda v: 0.5 * v[:3] @ v[:3] + 0.7 * v[3:].sum(),
        start,
        jac=lambda v: np.concatenate([v[:3], np.full(n, 0.7)]),
        bounds=[(0, None)] * (3 + n),
        constraints={
            "type": "ineq",
            "fun": lambda v: gains @ v[:3] - 1 + v[3:],
            "jac": lambda v: np.hstack([gains, np.eye(n)]),
        },
        method="SLSQP",
        options={"maxiter": 500},
    )
    assert objective(learner.weights_) == pytest.approx(solved.fun, rel=1e-4)
    assert np.allclose(learner.weights_, solved.x[:3], atol=1e-2)


def test_schultz_joachims_on_the_principal_axes(wine):
    X, y = wine
    learner = SchultzJoachims(basis="pca").fit(X, y)
    G = learner.components_
    assert np.allclose(G @ G.T, np.diag(learner.weights_), atol=1e-9)
    with pytest.raises(ValueError, match="basis"):
        SchultzJoachims(basis="random").fit(X, y)
    with pytest.raises(ValueError, match="'C' parameter"):
        SchultzJoachims(C=0).fit(X, y)


def kwok_tsang_value(A, margin, V, similar, C, nu):
    d, euclidean = np.einsum("ij,jk,ik->i", V, A, V), np.square(V).sum(axis=1)
    near = np.maximum(d - euclidean, 0)[similar].mean()
    far = np.maximum(euclidean + margin - d, 0)[~similar].mean()
    return 0.5 * np.vdot(A, A) + C[0] * near + C[1] * (far - nu * margin)


@pytest.mark.parametrize("nu", [0.2, 0.5, 0.9])
def test_kwok_tsang_chooses_the_best_margin(nu):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20, 2))
    pairs = rng.integers(20, size=(30, 2))
    similar = np.arange(30) % 2 == 0
    learner = KwokTsang(C_similar=20.0, C_dissimilar=30.0, nu=nu).fit_pairs(pairs, similar, X)
    V = X[pairs[:, 0]] - X[pairs[:, 1]]

    def value(v):
        G = np.array([[v[0], v[1]], [0.0, v[2]]])
        return kwok_tsang_value(G.T @ G, abs(v[3]), V, similar, (20.0, 30.0), nu)

    reached = kwok_tsang_value(
        learner.get_mahalanobis_matrix(), learner.margin_, V, similar, (20.0, 30.0), nu
    )
    assert reached == pytest.approx(learner.report_.objective, abs=1e-6)
    assert learner.report_.converged
    options = {"maxiter": 4000, "xatol": 1e-9, "fatol": 1e-11}
    starts = np.random.default_rng(1).normal(size=(10, 4))
    searched = min(optimize.minimize(value, s, method="Nelder-Mead", options=options).fun for s in starts)
    assert reached <= searched + 2e-2 * abs(searched)
    assert learner.report_.lower_bound <= searched + 1e-9


@pytest.mark.parametrize(("keywords", "message"), [({"nu": 0}, "nu"), ({"C_similar": 0}, "C_similar")])
def test_kwok_tsang_refuses_wrong_values(wine, keywords, message):
    with pytest.raises(ValueError, match=message):
        KwokTsang(**keywords).fit(*wine)


def test_kwok_tsang_needs_both_kinds_of_pairs():
    with pytest.raises(ValueError, match="only one kind"):
        KwokTsang().fit_pairs([[0, 1], [1, 2]], [1, 1], np.eye(3))
