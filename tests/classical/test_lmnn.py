from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize
from sklearn.datasets import load_digits, make_classification

from nearkin.classical import LMNN
from nearkin.classical.constraints import target_neighbours
from nearkin.classical.lmnn import Margins


def naive_loss(G, X, y, k, push):
    Z = X @ G.T
    total = 0.0
    for i, j in target_neighbours(X, y, k):
        near = np.square(Z[i] - Z[j]).sum()
        total += (1 - push) * near
        for other in np.flatnonzero(y != y[i]):
            total += push * max(0.0, 1 + near - np.square(Z[i] - Z[other]).sum())
    return total


@pytest.fixture
def small():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 5))
    y = np.append(rng.integers(3, size=38), [3, 4])  # two points alone in their class
    return X, y


def test_loss_is_the_sum_over_all_triplets(small):
    X, y = small
    G = np.random.default_rng(1).normal(size=(3, 5)) * 0.5
    value, _ = Margins.of(X, y, 3, 0.3).loss(G)
    assert value == pytest.approx(naive_loss(G, X, y, 3, 0.3))


@pytest.mark.parametrize("push", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("softness", [0.0, 0.5])
def test_gradient(small, push, softness):
    margins = Margins.of(*small, 3, push)
    g = np.random.default_rng(1).normal(size=15) * 0.5

    def loss(g):
        value, gradient = margins.loss(g.reshape(3, 5), softness=softness)
        return value, gradient.ravel()

    error = optimize.check_grad(lambda g: loss(g)[0], lambda g: loss(g)[1], g)
    assert error < 1e-4 * (1 + np.linalg.norm(loss(g)[1]))


def test_a_softer_hinge_is_lower_by_no_more_than_half_its_width(small):
    margins = Margins.of(*small, 3, 1.0)
    G = np.random.default_rng(1).normal(size=(3, 5)) * 0.5
    exact, soft = margins.loss(G)[0], margins.loss(G, softness=0.01)[0]
    assert exact - 0.005 * margins.active_triplets(G) <= soft <= exact
    assert soft == pytest.approx(exact, rel=0.02)


def test_a_list_of_candidates_that_holds_all_impostors_changes_nothing(small):
    X, y = small
    margins = Margins.of(X, y, 2, 0.5)
    G = np.random.default_rng(1).normal(size=(5, 5)) * 0.3
    i, j = np.nonzero(np.sort(y)[:, None] != np.sort(y))
    value, gradient = margins.loss(G, np.stack([i, j], axis=1))
    assert value == pytest.approx(margins.loss(G)[0])
    assert np.allclose(gradient, margins.loss(G)[1])


@pytest.mark.parametrize("share", [0.0, 0.02, 1.0])
def test_lists_of_candidates_and_whole_searches_reach_the_same_objective(share, monkeypatch):
    monkeypatch.setattr("nearkin.classical.lmnn.SPARSE_SHARE", share)
    X, y = make_classification(200, 8, n_informative=4, n_classes=3, random_state=0)
    fitted = LMNN().fit(X, y)
    assert fitted.objective_ == pytest.approx(naive_loss(fitted.components_, X, y, 3, 0.5), rel=1e-9)
    assert fitted.objective_ == pytest.approx(LMNN(tol=1e-8, max_iter=2000).fit(X, y).objective_, rel=2e-3)


def test_reaches_the_optimum_of_the_convex_problem(small):
    X, y = small
    fitted = LMNN(n_neighbors=2, tol=1e-9, max_iter=3000).fit(X, y)

    def objective(g):
        return naive_loss(g.reshape(5, 5), X, y, 2, 0.5)

    for seed in range(3):
        start = np.random.default_rng(seed).normal(size=(5, 5))
        other = LMNN(n_neighbors=2, init=start, tol=1e-9, max_iter=3000).fit(X, y)
        assert other.objective_ == pytest.approx(fitted.objective_, rel=1e-3)
    assert objective(fitted.components_.ravel()) == pytest.approx(fitted.objective_)


def test_fewer_components():
    X, y = load_digits(return_X_y=True)
    fitted = LMNN(n_components=10, max_iter=30).fit(X[:500], y[:500])
    assert fitted.transform(X).shape == (len(X), 10)
    assert fitted.score(X[500:], y[500:]) > 0.85


@pytest.mark.parametrize(
    "keywords", [{"push": 1.5}, {"n_neighbors": 0}, {"n_components": 9}, {"init": "random"}]
)
def test_wrong_values_are_errors_that_name_them(small, keywords):
    with pytest.raises(ValueError, match=next(iter(keywords))):
        LMNN(**keywords).fit(*small)


def test_a_start_of_the_wrong_shape_is_an_error(small):
    with pytest.raises(ValueError, match="init has shape"):
        LMNN(init=np.eye(3)).fit(*small)
