from __future__ import annotations

import numpy as np
import pytest

from nearkin.classical.descent import Whitening, initial_map
from nearkin.classical.pairwise import SquaredDistances, nearest_other, row_blocks


def test_blocks_cover_every_row_once(monkeypatch):
    monkeypatch.setattr("nearkin.classical.pairwise.BLOCK_ENTRIES", 50)
    rows = np.concatenate([np.arange(23)[block] for block in row_blocks(23, 20)])
    assert rows.tolist() == list(range(23))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_distances_far_from_the_origin(dtype):
    Z = (np.random.default_rng(0).normal(size=(30, 4)) + 100).astype(dtype)
    expected = np.square(Z[:, None].astype(float) - Z[None]).sum(axis=2)
    found = SquaredDistances(Z).rows(slice(0, 30))
    assert found.dtype == dtype
    assert np.allclose(found, expected, atol=1e-4 if dtype == np.float32 else 1e-10)


def test_the_nearest_other_row_is_never_the_row_itself():
    Z = np.array([[0.0], [0.0], [5.0], [5.0], [9.0]])
    assert nearest_other(Z).tolist() == [1, 0, 3, 2, 2]


def test_a_whitened_map_is_the_same_map():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 4)) @ rng.normal(size=(4, 4)) * [1, 10, 100, 0]
    whitening = Whitening.of(X)
    G = rng.normal(size=(2, 4))
    Z = whitening.points(X) @ whitening.inwards(G).T
    expected = (X - X.mean(axis=0)) @ G.T
    assert np.allclose(Z, expected)
    assert np.allclose(whitening.outwards(whitening.inwards(G)), G)


@pytest.mark.parametrize(("n_components", "shape"), [(None, (4, 4)), (2, (2, 4))])
def test_the_start_puts_nearest_neighbours_one_and_a_half_apart(n_components, shape):
    X = np.random.default_rng(0).normal(size=(200, 4)) * 37
    G = initial_map(X, np.arange(200) % 3, n_components, "auto")
    assert G.shape == shape
    Z = X @ G.T
    nearest = np.linalg.norm(Z - Z[nearest_other(Z)], axis=1)
    assert np.sqrt(np.mean(nearest**2)) == pytest.approx(1.5)


@pytest.mark.parametrize("k", [None, 2])
def test_the_start_survives_points_that_are_all_equal(k):
    assert np.isfinite(initial_map(np.ones((5, 3)), np.array([0, 0, 1, 1, 1]), k, "auto")).all()
