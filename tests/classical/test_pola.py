from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_iris

from nearkin.classical import POLA


def test_one_pair_is_the_two_projections_of_the_paper():
    rng = np.random.default_rng(0)
    pola = POLA()
    A, b = np.zeros((3, 3)), 1.0
    for _ in range(200):
        v, y = rng.normal(size=3), rng.choice([-1.0, 1.0])
        pola.partial_fit_pairs(np.array([[v, np.zeros(3)]]), [y])
        loss = max(0.0, 1 + y * (v @ A @ v - b))
        alpha = loss / (np.linalg.norm(v) ** 4 + 1)
        moved, threshold = A - y * alpha * np.outer(v, v), b + y * alpha
        if loss > 0:
            assert 1 + y * (v @ moved @ v - threshold) == pytest.approx(0.0, abs=1e-9)
        values, vectors = np.linalg.eigh(moved)
        A, b = (vectors * np.maximum(values, 0)) @ vectors.T, max(1.0, threshold)
        assert np.allclose(pola.get_mahalanobis_matrix(), A, atol=1e-6)
        assert pola.threshold_ == pytest.approx(b)
    assert pola.n_pairs_seen_ == 200
    assert 0 < pola.n_updates_ <= 200


def test_batches_go_on_where_the_last_ended():
    X, y = load_iris(return_X_y=True)
    order = np.random.default_rng(0).permutation(150)
    pola = POLA()
    for batch in np.array_split(order, 5):
        pola.partial_fit(X[batch], y[batch])
    assert pola.score(X, y) > 0.9
    with pytest.raises(ValueError, match="features"):
        pola.partial_fit(X[:, :2], y)


def test_fit_starts_anew():
    X, y = load_iris(return_X_y=True)
    pola = POLA().fit(X, y)
    again = POLA().partial_fit(X[::2], y[::2]).fit(X, y)
    assert np.array_equal(pola.components_, again.components_)
    assert pola.n_pairs_seen_ == again.n_pairs_seen_
