from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_wine, make_circles
from sklearn.metrics.pairwise import polynomial_kernel, rbf_kernel
from sklearn.model_selection import cross_val_score

from nearkin import classical
from nearkin.classical import ITML, LMNN, MCML, RCA, Covariance, Kernelized, MahalanobisLearner

# Figure 2 of the thesis: opposite corners belong together.
CORNERS = np.array([[0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
COLOURS = np.array([0, 0, 1, 1])
WANTED = np.array([[0, 1, 2], [0, 1, 3], [1, 0, 2], [1, 0, 3], [2, 3, 0], [2, 3, 1], [3, 2, 0], [3, 2, 1]])


def distances(learner, X):
    Z = learner.transform(X)
    return np.linalg.norm(Z[:, None] - Z[None], axis=2)


@pytest.mark.parametrize("name", [name for name in classical.names() if name != "kernelized"])
def test_no_linear_method_solves_xor(name):
    fitted = classical.build(name).fit(CORNERS, COLOURS)
    assert fitted.score_triplets(WANTED, CORNERS) < 1


@pytest.mark.parametrize("learner", [LMNN(1), MCML(), MahalanobisLearner(n_neighbors=1), RCA(ridge=1e-3)])
@pytest.mark.parametrize("kernel", [{"kernel": "polynomial", "degree": 2}, {"kernel": "rbf", "gamma": 1.0}])
def test_a_kernel_solves_xor(learner, kernel):
    fitted = Kernelized(learner, **kernel).fit(CORNERS, COLOURS)
    assert fitted.score_triplets(WANTED, CORNERS) == 1


def test_circles_on_new_points():
    X, y = make_circles(300, factor=0.6, noise=0.08, random_state=0)
    linear, kernel = RCA(1), Kernelized(RCA(1), kernel="polynomial", degree=2)
    assert cross_val_score(kernel, X, y, cv=3).mean() > 0.85 > cross_val_score(linear, X, y, cv=3).mean()


def test_linear_kernel_changes_no_distance():
    X, y = load_wine(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    direct, kernel = RCA().fit(X, y), Kernelized(RCA(), kernel="linear").fit(X, y)
    assert np.allclose(distances(direct, X[:20]), distances(kernel, X[:20]))


def test_a_kernel_by_name_by_function_and_precomputed_are_the_same():
    X, y = load_wine(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    train, test = X[::2], X[1::2]
    by_name = Kernelized(RCA(), kernel="rbf", gamma=0.1).fit(train, y[::2])
    by_function = Kernelized(RCA(), kernel=lambda A, B: rbf_kernel(A, B, gamma=0.1)).fit(train, y[::2])
    K = rbf_kernel(train, gamma=0.1)
    precomputed = Kernelized(RCA(), kernel="precomputed").fit(K, y[::2])
    expected = distances(by_name, test)
    assert np.allclose(distances(by_function, test), expected)
    assert np.allclose(distances(precomputed, rbf_kernel(test, train, gamma=0.1)), expected)
    with pytest.raises(ValueError, match="square"):
        Kernelized(RCA(), kernel="precomputed").fit(K[:, :5], y[::2])


def test_coordinates_have_the_kernel_s_inner_products():
    X = np.random.default_rng(0).normal(size=(20, 3))
    identity = Kernelized(Covariance(), kernel="polynomial", degree=2, gamma=1.0, coef0=1.0).fit(X)
    phi = identity._map(X)
    assert np.allclose(phi @ phi.T, polynomial_kernel(X, degree=2, gamma=1.0, coef0=1.0))
    assert phi.shape[1] == 10  # the monomials of degree up to 2 in 3 variables


def test_few_landmarks_come_near_to_all_of_them():
    X, y = load_wine(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    few = Kernelized(RCA(ridge=1e-2), gamma=0.02, n_components=40).fit(X, y)
    assert few.landmarks_.shape == (40, 13)
    assert few.score(X, y) > 0.95
    errors = []
    for landmarks in (20, 80, 178):
        phi = Kernelized(RCA(), gamma=0.02, n_components=landmarks, tol=1e-12).fit(X, y)._map(X)
        errors.append(np.linalg.norm(phi @ phi.T - rbf_kernel(X, gamma=0.02)))
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-6


def test_pairs_and_triplets_in_feature_space():
    pairs, similar = np.array([[0, 1], [2, 3], [0, 2], [1, 3], [0, 3], [1, 2]]), [1, 1, -1, -1, -1, -1]
    by_pairs = Kernelized(ITML(gamma=100.0, upper=1.0, lower=10.0), kernel="polynomial", degree=2).fit_pairs(
        pairs, similar, CORNERS
    )
    assert by_pairs.score_pairs(pairs, similar, CORNERS) == 1
    by_triplets = Kernelized(MahalanobisLearner(), kernel="polynomial", degree=2).fit_triplets(
        WANTED, CORNERS
    )
    assert by_triplets.score_triplets(WANTED, CORNERS) == 1
    with pytest.raises(ValueError, match="LMNN has no fit_pairs"):
        Kernelized(LMNN()).fit_pairs(pairs, similar, CORNERS)


def test_what_is_no_kernel_is_an_error_that_says_so():
    with pytest.raises(ValueError, match="not a kernel"):
        Kernelized(RCA(), kernel="precomputed").fit(-np.eye(4), COLOURS)
    with pytest.raises(ValueError, match="n_components"):
        Kernelized(RCA(), n_components=0).fit(CORNERS, COLOURS)
