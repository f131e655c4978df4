from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize

from nearkin.classical import ITML
from nearkin.classical.itml import Slack


def bregman_projections(V, similar, bounds, gamma, rounds=3000):
    """The algorithm of the paper: one constraint after the other."""
    A = np.eye(V.shape[1])
    multipliers = np.zeros(len(V))
    slack = bounds.astype(float).copy()
    for _ in range(rounds):
        for i, v in enumerate(V):
            sign = 1.0 if similar[i] else -1.0
            p = v @ A @ v
            alpha = min(multipliers[i], sign * gamma / (gamma + 1) * (1 / p - 1 / slack[i]))
            multipliers[i] -= alpha
            beta = sign * alpha / (1 - sign * alpha * p)
            slack[i] = gamma * slack[i] / (gamma + sign * alpha * slack[i])
            A += beta * np.outer(A @ v, A @ v)
    return A


@pytest.fixture
def task():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 4))
    pairs = rng.integers(30, size=(40, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    similar = np.abs(X[pairs[:, 0], 0] - X[pairs[:, 1], 0]) < 1
    return X, pairs, similar


@pytest.mark.parametrize("gamma", [0.1, 1.0, 10.0])
def test_reaches_the_metric_of_bregman_projections(task, gamma):
    X, pairs, similar = task
    fitted = ITML(gamma=gamma, upper=2.0, lower=8.0).fit_pairs(pairs, similar, X)
    V = X[pairs[:, 0]] - X[pairs[:, 1]]
    A = bregman_projections(V, similar, np.where(similar, 2.0, 8.0), gamma)
    assert np.allclose(fitted.get_mahalanobis_matrix(), A, atol=2e-3 * np.abs(A).max())
    assert 0 <= fitted.gap_ + 1e-9 < 1e-4 * max(1, fitted.objective_)


def test_gradient(task):
    X, pairs, similar = task
    slack = Slack(X[pairs[:, 0]] - X[pairs[:, 1]], similar, np.where(similar, 2.0, 8.0), 1.0)
    g = (np.eye(4) + 0.2 * np.random.default_rng(1).normal(size=(4, 4))).ravel()
    error = optimize.check_grad(
        lambda g: slack.objective(g.reshape(4, 4))[0],
        lambda g: slack.objective(g.reshape(4, 4))[1].ravel(),
        g,
    )
    assert error < 1e-4


def test_no_metric_beats_the_lower_bound(task):
    X, pairs, similar = task
    slack = Slack(X[pairs[:, 0]] - X[pairs[:, 1]], similar, np.where(similar, 2.0, 8.0), 1.0)
    rng = np.random.default_rng(0)
    bounds = [slack.lower_bound(np.eye(4) + 0.3 * rng.normal(size=(4, 4))) for _ in range(50)]
    values = [slack.objective(np.eye(4) + 0.3 * rng.normal(size=(4, 4)))[0] for _ in range(50)]
    assert max(bounds) <= min(values)
    assert max(bounds) > -np.inf


def test_without_reason_to_leave_it_the_prior_stays(task):
    X, pairs, similar = task
    prior = np.diag([1.0, 2.0, 3.0, 4.0])
    fitted = ITML(prior=prior, upper=1e6, lower=1e-6).fit_pairs(pairs, similar, X)
    assert np.allclose(fitted.get_mahalanobis_matrix(), prior)
    assert fitted.objective_ == pytest.approx(0.0, abs=1e-9)


def test_a_dissimilar_pair_of_equal_points_is_left_out(task):
    X, pairs, similar = task
    X = np.vstack([X, X[0]])
    more = ITML(upper=2.0, lower=8.0).fit_pairs(np.vstack([pairs, [0, 30]]), np.append(similar, False), X)
    fewer = ITML(upper=2.0, lower=8.0).fit_pairs(pairs, similar, X)
    assert np.allclose(more.components_, fewer.components_)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"gamma": 0.0}, "gamma"),
        ({"prior": "zero"}, "prior"),
        ({"prior": -np.eye(4)}, "prior"),
        ({"upper": -1.0}, "upper"),
    ],
)
def test_wrong_values_are_errors_that_name_them(task, keywords, message):
    X, pairs, similar = task
    with pytest.raises(ValueError, match=message):
        ITML(**keywords).fit_pairs(pairs, similar, X)
