from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import parametrize_with_checks

from nearkin.classical import Perceptron
from nearkin.classical.perceptron import sign

XOR = np.array([[0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [1.0, 0.0]])


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks([Perceptron()])
def test_passes_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


def separable(seed, count=40):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(count, 2))
    normal = rng.normal(size=2)
    X = X[np.abs(X @ normal) > 0.2]
    return X, np.where(X @ normal > 0, "right", "left")


@pytest.mark.parametrize("seed", range(5))
def test_every_step_is_the_rule(seed):
    """From 0 on, each step adds ε s x of a sample that was misclassified before; at the end none is."""
    X, y = separable(seed)
    fitted = Perceptron(learning_rate=0.5, random_state=seed).fit(X, y)
    s = np.where(y == "right", 1, -1)
    rows = np.hstack([np.ones((len(X), 1)), X])
    assert np.array_equal(fitted.path_[0], np.zeros(3))
    for before, after in zip(fitted.path_[:-1], fitted.path_[1:], strict=True):
        wrong = [i for i in range(len(X)) if (1 if before @ rows[i] >= 0 else -1) != s[i]]
        assert any(np.allclose(after - before, 0.5 * s[i] * rows[i]) for i in wrong)
    assert fitted.converged_
    assert fitted.errors_[-1] == 0
    assert len(fitted.path_) == fitted.n_iter_ + 1
    assert (fitted.predict(X) == y).all()
    assert np.allclose(fitted.decision_function(X), rows @ fitted.path_[-1])


@pytest.mark.parametrize("seed", range(5))
def test_it_ends_within_novikoffs_bound(seed):
    X, y = separable(seed)
    fitted = Perceptron(max_iter=10**6).fit(X, y)
    rows = np.hstack([np.ones((len(X), 1)), X])
    w = fitted.path_[-1] / np.linalg.norm(fitted.path_[-1])
    margin = (np.where(y == "right", 1, -1) * (rows @ w)).min()  # at most the best line's
    assert fitted.n_iter_ <= (np.linalg.norm(rows, axis=1).max() / margin) ** 2


def test_the_learning_rate_changes_no_prediction():
    X, y = separable(0)
    one, other = (Perceptron(learning_rate=rate).fit(X, y) for rate in (1.0, 0.25))
    assert np.allclose(0.25 * one.path_, other.path_)


def test_xor_is_told_to_be_inseparable_and_the_best_line_is_kept():
    with pytest.warns(ConvergenceWarning, match="still misclassifies 1 of 4 samples after 1000 steps"):
        fitted = Perceptron().fit(XOR, [0, 0, 1, 1])
    assert not fitted.converged_
    assert (fitted.predict(XOR) == [0, 0, 1, 1]).sum() == 3


def test_the_step_function_is_one_at_zero():
    assert sign(np.array([0.0, -0.0, -1e-300, 1e-300])).tolist() == [1, 1, -1, 1]


def test_three_classes_are_refused():
    with pytest.raises(ValueError, match="Only binary classification is supported"):
        Perceptron().fit(np.eye(3), [0, 1, 2])
    with pytest.raises(ValueError, match="one class only"):
        Perceptron().fit(np.eye(3), [1, 1, 1])


def test_the_seed_decides_which_sample_moves_the_line():
    X, y = separable(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        paths = {Perceptron(random_state=seed, max_iter=3).fit(X, y).path_.tobytes() for seed in range(8)}
    assert len(paths) > 1
