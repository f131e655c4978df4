"""What every learner must do, over every name of the registry."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_iris, load_wine
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from nearkin import classical

SUPERVISED = [name for name in classical.names() if name != "covariance"]
# The kernel's feature space has as many dimensions as points: few steps are enough to check the interface.
QUICK = {"kernelized": {"learner": classical.RCA()}}


def learner(name, **keywords):
    return classical.build(name, **QUICK.get(name, {}), **keywords)


@pytest.fixture(scope="module")
def iris():
    X, y = load_iris(return_X_y=True)
    return StandardScaler().fit_transform(X), y


@parametrize_with_checks([learner(name) for name in classical.names()])
def test_passes_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([classical.Kernelized()])
def test_the_default_kernel_learner_passes_them_too(estimator, check):
    check(estimator)


@pytest.mark.parametrize("name", classical.names())
def test_the_metric_is_positive_semidefinite_and_measures_pairs(name, iris):
    X, y = iris
    fitted = learner(name).fit(X, y)
    A = fitted.get_mahalanobis_matrix()
    assert np.allclose(A, A.T)
    assert np.linalg.eigvalsh(A)[0] >= -1e-8 * np.abs(A).max()
    Z = fitted.transform(X)
    rows = np.array([[0, 1], [3, 140], [70, 20]])
    expected = np.linalg.norm(Z[rows[:, 0]] - Z[rows[:, 1]], axis=1)
    assert np.allclose(fitted.pair_distances(X[rows]), expected)
    assert np.allclose(fitted.pair_distances(rows, X, squared=True), expected**2)
    if name != "kernelized":
        V = X[rows[:, 0]] - X[rows[:, 1]]
        assert np.allclose(expected**2, np.einsum("ij,jk,ik->i", V, A, V))


@pytest.mark.parametrize("name", classical.names())
def test_learns_iris_at_least_as_well_as_euclidean_distance_nearly_does(name, iris):
    X, y = iris
    assert learner(name).fit(X, y).score(X, y) >= 0.9


@pytest.mark.parametrize("name", classical.names())
def test_single_precision_stays_single_and_agrees(name, iris):
    X, y = iris
    single = learner(name).fit(X.astype(np.float32), y)
    assert single.components_.dtype == np.float32
    assert single.transform(X.astype(np.float32)).dtype == np.float32
    double = learner(name).fit(X, y)
    assert abs(single.score(X, y) - double.score(X, y)) <= 0.03


@pytest.mark.parametrize("name", classical.names())
def test_same_result_twice(name, iris):
    X, y = iris
    assert np.array_equal(learner(name).fit(X, y).components_, learner(name).fit(X, y).components_)


@pytest.mark.parametrize("name", SUPERVISED)
def test_one_class_is_an_error_that_says_so(name, iris):
    X, _ = iris
    with pytest.raises(ValueError, match="needs at least 2 classes"):
        learner(name).fit(X, np.zeros(len(X), dtype=int))


@pytest.mark.parametrize("name", SUPERVISED)
def test_no_class_with_two_members_is_an_error_that_says_so(name):
    X = np.random.default_rng(0).normal(size=(5, 2))
    with pytest.raises(ValueError, match="class with 2 members"):
        learner(name).fit(X, np.arange(5))


@pytest.mark.parametrize("name", classical.names())
def test_nan_is_an_error_that_says_so(name, iris):
    X, y = iris[0].copy(), iris[1]
    X[3, 1] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        learner(name).fit(X, y)


@pytest.mark.parametrize("name", classical.names())
def test_duplicate_rows_constant_features_and_fewer_rows_than_features(name):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20, 40))
    y = np.arange(20) % 2
    X[y == 1] += 1.0
    X[:, 5] = 3.0
    X[2] = X[0]  # duplicates of one class
    X[3] = X[4]  # and of two
    fitted = learner(name).fit(X, y)
    assert np.isfinite(fitted.components_).all()
    if name != "kernelized":
        assert np.isfinite(fitted.transform(X)).all()


@pytest.mark.parametrize("name", classical.names())
def test_labels_of_any_kind(name, iris):
    X, y = iris
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    assert np.array_equal(learner(name).fit(X, names).components_, learner(name).fit(X, y).components_)


@pytest.mark.parametrize("name", classical.names())
def test_takes_the_embeddings_of_a_network(name, iris):
    X, y = iris
    embeddings, labels = torch.tensor(X, dtype=torch.float32), torch.tensor(y)
    fitted = learner(name).fit(embeddings, labels)
    assert fitted.transform(embeddings).shape[0] == len(X)


def test_pipeline_and_grid_search_choose_hyperparameters():
    X, y = load_wine(return_X_y=True)
    pipeline = make_pipeline(StandardScaler(), classical.LMNN(max_iter=20), KNeighborsClassifier(3))
    search = GridSearchCV(pipeline, {"lmnn__n_neighbors": [1, 3], "lmnn__n_components": [2, None]}, cv=3).fit(
        X, y
    )
    assert search.best_score_ > 0.93
    alone = GridSearchCV(classical.LFDA(), {"n_components": [1, 2]}, cv=3).fit(X, y)
    assert alone.best_score_ > 0.9


def test_feature_names_of_the_result(iris):
    fitted = classical.NCA(2).fit(*iris)
    assert fitted.get_feature_names_out().tolist() == ["nca0", "nca1"]


def test_an_unknown_name_gets_the_nearest_one():
    with pytest.raises(ValueError, match="did you mean itml"):
        classical.build("itlm")
    with pytest.raises(ValueError, match="did you mean n_neighbors"):
        classical.build("lmnn", n_neighbours=3)


@pytest.mark.parametrize("name", ["mahalanobis", "itml", "kwok_tsang", "pola"])
def test_learns_from_pairs_in_both_forms(name):
    X, pairs, similar, _ = weak_supervision()
    by_points = classical.build(name).fit_pairs(X[pairs], np.where(similar, 1, -1))
    by_rows = classical.build(name).fit_pairs(pairs, similar, X)
    assert np.allclose(by_points.components_, by_rows.components_)
    euclidean = classical.Covariance().fit(X)
    euclidean.components_ = np.eye(3)
    assert by_rows.score_pairs(pairs, similar, X) > euclidean.score_pairs(pairs, similar, X)


@pytest.mark.parametrize("name", ["mahalanobis", "schultz_joachims"])
def test_learns_from_triplets_in_both_forms(name):
    X, _, _, triplets = weak_supervision()
    by_points = classical.build(name).fit_triplets(X[triplets])
    by_rows = classical.build(name).fit_triplets(triplets, X)
    assert np.allclose(
        by_points.get_mahalanobis_matrix(), by_rows.get_mahalanobis_matrix(), rtol=0.05, atol=0.02
    )
    assert by_rows.score_triplets(triplets, X) > 0.95


def weak_supervision():
    """Points of which only the first of three features matters."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(80, 3)) * [1.0, 3.0, 3.0]
    pairs = rng.integers(80, size=(150, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    gap = np.abs(X[pairs[:, 0], 0] - X[pairs[:, 1], 0])
    pairs = pairs[(gap < 0.4) | (gap > 1.2)]
    similar = np.abs(X[pairs[:, 0], 0] - X[pairs[:, 1], 0]) < 0.4
    triplets = rng.integers(80, size=(400, 3))
    near, far = (np.abs(X[triplets[:, 0], 0] - X[triplets[:, j], 0]) for j in (1, 2))
    return X, pairs, similar, triplets[(near + 0.5 < far) & (triplets[:, 0] != triplets[:, 1])]


@pytest.mark.parametrize(
    ("pairs", "X", "message"),
    [
        (np.zeros((4, 3, 2)), None, "pairs must be points"),
        (np.zeros((4, 2)), np.zeros((5, 2)), "row numbers"),
        ([[0, 9]], np.zeros((5, 2)), "row 9"),
    ],
)
def test_wrong_pairs_are_errors_that_say_so(pairs, X, message):
    with pytest.raises(ValueError, match=message):
        classical.ITML().fit_pairs(pairs, np.ones(len(pairs)), X)


@pytest.mark.parametrize("similar", [[1, 2], [1]])
def test_wrong_kinds_of_pairs_are_errors_that_say_so(similar):
    with pytest.raises(ValueError, match="similar must"):
        classical.ITML().fit_pairs([[0, 1], [1, 2]], similar, np.eye(3))


@pytest.mark.parametrize("name", classical.names())
def test_every_keyword_survives_a_clone(name):
    original = learner(name)
    assert clone(original).get_params(deep=False).keys() == original.get_params(deep=False).keys()
