"""NCA and MCML, both sums over stochastic neighbours."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize
from sklearn.datasets import load_iris, load_wine
from sklearn.neighbors import NeighborhoodComponentsAnalysis

from nearkin.classical import MCML, NCA
from nearkin.classical.mcml import divergence, divergence_in_metric
from nearkin.classical.nca import negative_expected_hits
from nearkin.classical.neighbourhood import Sorted


def naive_probabilities(Z):
    P = np.zeros((len(Z), len(Z)))
    for i in range(len(Z)):
        d = np.square(Z - Z[i]).sum(axis=1)
        d[i] = np.inf
        weights = np.exp(d.min() - d)
        P[i] = weights / weights.sum()
    return P


def naive_hits(G, X, y):
    P = naive_probabilities(X @ G.T)
    return sum(P[i, j] for i in range(len(X)) for j in range(len(X)) if y[i] == y[j])


def naive_divergence(G, X, y):
    P = naive_probabilities(X @ G.T)
    total = 0.0
    for i in range(len(X)):
        own = [j for j in range(len(X)) if j != i and y[j] == y[i]]
        total += sum(np.log(1 / len(own) / P[i, j]) / len(own) for j in own)
    return total


@pytest.fixture
def small():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(25, 4))
    y = np.append(rng.integers(3, size=24), 3)  # the last is alone in its class
    return X, y


@pytest.mark.parametrize("block_entries", [2**17, 60])
def test_values_are_the_sums_of_the_papers(small, block_entries, monkeypatch):
    monkeypatch.setattr("nearkin.classical.pairwise.BLOCK_ENTRIES", block_entries)
    X, y = small
    G = np.random.default_rng(1).normal(size=(3, 4))
    points = Sorted.of(X, y)
    assert -negative_expected_hits(G, points)[0] == pytest.approx(naive_hits(G, X, y))
    assert divergence(G, points)[0] == pytest.approx(naive_divergence(G, X, y))


@pytest.mark.parametrize("objective", [negative_expected_hits, divergence])
@pytest.mark.parametrize("block_entries", [2**17, 60])
def test_gradients(small, objective, block_entries, monkeypatch):
    monkeypatch.setattr("nearkin.classical.pairwise.BLOCK_ENTRIES", block_entries)
    points = Sorted.of(*small)
    g = np.random.default_rng(1).normal(size=12) * 0.5
    error = optimize.check_grad(
        lambda g: objective(g.reshape(3, 4), points)[0],
        lambda g: objective(g.reshape(3, 4), points)[1].ravel(),
        g,
    )
    assert error < 1e-5


def test_far_points_do_not_overflow():
    X = np.array([[0.0], [1e4], [2e4], [1e5]])
    points = Sorted.of(X, np.array([0, 0, 1, 1]))
    value, gradient = negative_expected_hits(np.eye(1), points)
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()
    assert np.isfinite(divergence(np.eye(1), points)[0])


@pytest.mark.parametrize("load", [load_iris, load_wine])
def test_nca_classifies_as_many_as_scikit_learns(load):
    X, y = load(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    theirs = NeighborhoodComponentsAnalysis(init="identity", max_iter=100).fit(X, y)
    # The objective is not convex: a point or two of 150 is the luck of the start.
    assert NCA().fit(X, y).objective_ >= naive_hits(theirs.components_, X, y) - 2.5


def test_mcml_reaches_the_optimum_that_projected_gradients_creep_to(small):
    X, y = small
    fitted = MCML(max_iter=2000).fit(X, y)
    points = Sorted.of(X, y)
    A = np.eye(4)
    for _ in range(4000):
        values, vectors = np.linalg.eigh(A)
        root = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
        A = A - 0.005 * divergence_in_metric(root, points)[1]
        values, vectors = np.linalg.eigh(A)
        A = (vectors * np.maximum(values, 0)) @ vectors.T
    values, vectors = np.linalg.eigh(A)
    crept = divergence((vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T, points)[0]
    assert fitted.objective_ <= crept + 1e-6
    assert fitted.objective_ == pytest.approx(crept, rel=1e-3)
    assert 0 <= fitted.gap_ < 1e-2 * fitted.objective_


def test_mcml_gap_bounds_the_distance_from_the_optimum():
    X, y = load_wine(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    best = MCML(max_iter=2000, tol=1e-12).fit(X, y)
    early = MCML(max_iter=40).fit(X, y)
    assert early.gap_ > best.gap_
    if np.square(best.components_).sum() <= np.square(early.components_).sum():
        assert early.objective_ - best.objective_ <= early.gap_
