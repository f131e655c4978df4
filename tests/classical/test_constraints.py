from __future__ import annotations

import numpy as np
import pytest

from nearkin.classical.constraints import (
    Constraints,
    distance_bounds,
    neighbour_triplets,
    random_pairs,
    target_neighbours,
)


def test_violations_are_the_hinges_of_the_equations():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(10, 3))
    A = np.diag([1.0, 2.0, 0.5])
    triplets, near, far = (
        rng.integers(10, size=(7, 3)),
        rng.integers(10, size=(4, 2)),
        rng.integers(10, size=(5, 2)),
    )
    constraints = (
        Constraints.relative(triplets, 0.7)
        + Constraints.similar(near, 1.5)
        + Constraints.dissimilar(far, 2.5)
    )

    def d(i, j):
        return (X[i] - X[j]) @ A @ (X[i] - X[j])

    expected = [max(0, 0.7 + d(i, j) - d(i, k)) for i, j, k in triplets]
    expected += [max(0, d(i, j) - 1.5) for i, j in near] + [max(0, 2.5 - d(i, j)) for i, j in far]
    distances = np.array([d(i, j) for i, j in constraints.pairs])
    assert np.allclose(constraints.violations(distances), expected)


def test_parts_must_fit_together():
    with pytest.raises(ValueError, match="2 bounds"):
        Constraints(np.zeros((1, 2), dtype=int), Constraints.similar([[0, 1]], 1.0).mixing, np.zeros(2))


def test_targets_are_the_nearest_of_the_class():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(30, 2)), rng.integers(3, size=30)
    y[0] = 3  # alone in its class
    pairs = target_neighbours(X, y, 4)
    for i in range(30):
        d = np.square(X - X[i]).sum(axis=1)
        others = [j for j in np.argsort(d) if j != i and y[j] == y[i]][:4]
        assert pairs[pairs[:, 0] == i, 1].tolist() == others


def test_triplets_of_neighbours():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(30, 2)), rng.integers(3, size=30)
    triplets = neighbour_triplets(X, y, 2, 5)
    assert len(triplets) == 30 * 2 * 5
    i, j, k = triplets.T
    assert ((y[i] == y[j]) & (y[i] != y[k]) & (i != j)).all()
    d = np.square(X - X[7]).sum(axis=1)
    nearest = np.argsort(np.where(y == y[7], np.inf, d))[:5]
    assert set(k[i == 7]) == set(nearest)


@pytest.mark.parametrize("n", [10, 3000])
def test_random_pairs_are_distinct_and_of_the_kind_they_say(n):
    y = np.random.default_rng(0).integers(4, size=n)
    pairs, similar = random_pairs(y, 60, np.random.RandomState(0))
    assert len(pairs) <= 60
    assert len(np.unique(np.sort(pairs, axis=1), axis=0)) == len(pairs)
    assert ((y[pairs[:, 0]] == y[pairs[:, 1]]) == similar).all()
    assert (pairs[:, 0] != pairs[:, 1]).all()
    if n == 3000:
        assert similar.sum() == 30 == (~similar).sum()


def test_bounds_need_a_pair_of_different_points():
    with pytest.raises(ValueError, match="equal points"):
        distance_bounds(np.zeros((3, 2)), np.array([[0, 1], [1, 2]]))
