"""Covariance, RCA and LFDA: one eigenproblem each, checked against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import linalg
from sklearn.datasets import load_digits, load_wine

from nearkin.classical import LFDA, RCA, Covariance


@pytest.fixture(scope="module")
def wine():
    X, y = load_wine(return_X_y=True)
    return (X - X.mean(axis=0)) / X.std(axis=0), y


def test_covariance_gives_the_inverse_of_it(wine):
    X, _ = wine
    A = Covariance().fit(X).get_mahalanobis_matrix()
    assert np.allclose(A, np.linalg.inv(np.cov(X, rowvar=False)))


def test_covariance_ignores_constant_and_repeated_features(wine):
    X, _ = wine
    more = np.column_stack([X, np.ones(len(X)), X[:, 0]])
    Z, more_Z = Covariance().fit_transform(X), Covariance().fit_transform(more)
    assert np.allclose(np.linalg.norm(Z[:1] - Z, axis=1), np.linalg.norm(more_Z[:1] - more_Z, axis=1))


def test_rca_gives_the_inverse_of_the_covariance_within_chunklets(wine):
    X, y = wine
    within = sum(np.cov(X[y == c], rowvar=False, bias=True) * np.mean(y == c) for c in range(3))
    assert np.allclose(RCA(ridge=0.0).fit(X, y).get_mahalanobis_matrix(), np.linalg.inv(within))


def test_rca_of_chunklets_sees_only_the_points_in_them(wine):
    X, y = wine
    chunklets = np.where(np.arange(len(y)) % 2, y, -1)
    assert np.allclose(
        RCA().fit_chunklets(X, chunklets).get_mahalanobis_matrix(),
        RCA().fit(X[1::2], y[1::2]).get_mahalanobis_matrix(),
    )
    with pytest.raises(ValueError, match="chunklet with 2 points"):
        RCA().fit_chunklets(X, np.full(len(X), -1))


def test_rca_keeps_the_directions_of_fisher(wine):
    X, y = wine
    two = RCA(2).fit(X, y)
    assert two.components_.shape == (2, 13)
    assert two.score(X, y) > 0.95


def test_rca_of_chunklets_of_equal_points_stays_finite():
    X = np.repeat(np.random.default_rng(0).normal(size=(4, 3)), 2, axis=0)
    assert np.isfinite(RCA().fit(X, np.repeat(np.arange(4), 2)).components_).all()


def naive_local_scatters(X, y, k):
    n, d = X.shape
    within, between = np.zeros((d, d)), np.zeros((d, d))
    counts = np.bincount(y)
    scales = np.empty(n)
    for i in range(n):
        own = np.sort(np.linalg.norm(X[y == y[i]] - X[i], axis=1))
        scales[i] = own[min(k, counts[y[i]] - 1)]
    for i in range(n):
        for j in range(n):
            V = np.outer(X[i] - X[j], X[i] - X[j]) / 2
            if y[i] == y[j]:
                a = np.exp(-np.square(X[i] - X[j]).sum() / (scales[i] * scales[j]))
                within += a / counts[y[i]] * V
                between += a * (1 / n - 1 / counts[y[i]]) * V
            else:
                between += V / n
    return within, between


def test_lfda_solves_the_eigenproblem_of_its_definition(wine):
    X, y = wine
    within, between = naive_local_scatters(X, y, 7)
    values, vectors = linalg.eigh(between, within)
    expected = vectors[:, ::-1][:, :3] * np.sqrt(values[::-1][:3])
    found = LFDA(3, ridge=0.0).fit(X, y).components_.T
    assert np.allclose(np.abs(found), np.abs(expected), atol=1e-6)


def test_lfda_embeddings(wine):
    X, y = wine
    orthonormal = LFDA(4, embedding="orthonormal").fit(X, y).components_
    assert np.allclose(orthonormal @ orthonormal.T, np.eye(4))
    with pytest.raises(ValueError, match="embedding"):
        LFDA(embedding="round").fit(X, y)
    with pytest.raises(ValueError, match="n_components=14"):
        LFDA(14).fit(X, y)


@pytest.mark.parametrize("learner", [RCA(), LFDA(), RCA(9), LFDA(9), Covariance()])
def test_constant_pixels_are_no_obstacle(learner):
    X, y = load_digits(return_X_y=True)
    assert (X.std(axis=0) == 0).any()
    fitted = learner.fit(X[:900], y[:900])
    assert np.isfinite(fitted.components_).all()
    assert fitted.score(X[900:], y[900:]) > 0.85


def test_equal_points_are_an_error_that_says_so():
    with pytest.raises(ValueError, match="all points are equal"):
        LFDA().fit(np.ones((6, 2)), [0, 0, 0, 1, 1, 1])
