"""Parameters are validated as scikit-learn does it: by name, with what is allowed, before anything runs."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.utils._param_validation import InvalidParameterError

from nearkin import classical
from nearkin.classical.base import LEARNERS

NUMBERS = {"tol", "gamma", "ridge", "trade_off", "margin", "upper", "lower", "C", "C_similar", "C_dissimilar"}
COUNTS = {"n_components", "n_neighbors", "n_impostors", "n_pairs", "max_iter", "epochs"}
SHARES = {"nu", "push"}
CHOICES = {"init", "prior", "embedding", "constraints", "regularizer", "basis", "kernel"}
NOT_A_NUMBER = ["x", None, -1, -0.5, np.nan, np.inf, [1.0], 1j]
BAD = (
    {name: [value for value in NOT_A_NUMBER if value is not None] for name in NUMBERS}
    | {name: [0, -1, 1.5, "x", np.inf, [2]] for name in COUNTS}
    | {name: [-0.1, 1.1, "x", None, np.nan] for name in SHARES}
    | {name: ["x", None, 3] for name in CHOICES}
    | {"random_state": ["x", -1.5], "degree": ["x", -1, None, np.inf], "coef0": ["x", None, np.nan]}
    | {"learner": ["lmnn", 3, classical.RCA]}
)
CASES = [
    (name, parameter, value)
    for name in classical.names()
    for parameter in LEARNERS.keywords(name)
    for value in BAD[parameter]
]
X, Y = load_iris(return_X_y=True)


@pytest.mark.parametrize(("name", "parameter", "value"), CASES)
def test_a_bad_value_is_named_before_anything_is_learned(name, parameter, value):
    learner = classical.build(name, **{parameter: value})
    with pytest.raises(
        InvalidParameterError, match=f"The '{parameter}' parameter of {type(learner).__name__}"
    ):
        learner.fit(X, Y)
    assert not hasattr(learner, "components_")


@pytest.mark.parametrize("name", classical.names())
def test_every_parameter_has_a_constraint(name):
    learner = LEARNERS.get(name)
    assert learner._parameter_constraints.keys() == inspect.signature(learner).parameters.keys()


PAIRS, SIMILAR = np.array([[0, 1], [0, 60], [1, 2], [70, 3]]), [1, 0, 1, 0]
TRIPLETS = np.array([[0, 1, 60], [1, 2, 70]])


@pytest.mark.parametrize(
    ("learner", "fit"),
    [
        (classical.ITML(tol=-1), lambda one: one.fit_pairs(PAIRS, SIMILAR, X)),
        (classical.KwokTsang(nu=0), lambda one: one.fit_pairs(PAIRS, SIMILAR, X)),
        (classical.MahalanobisLearner(margin=-1), lambda one: one.fit_triplets(TRIPLETS, X)),
        (classical.MahalanobisLearner(tol="x"), lambda one: one.fit_constraints(X, None)),
        (classical.SchultzJoachims(C=0), lambda one: one.fit_triplets(TRIPLETS, X)),
        (classical.POLA(epochs=0), lambda one: one.partial_fit(X, Y)),
        (classical.POLA(epochs=0), lambda one: one.partial_fit_pairs(PAIRS, SIMILAR, X)),
        (classical.RCA(ridge=-1), lambda one: one.fit_chunklets(X, Y)),
        (classical.Kernelized(gamma="x"), lambda one: one.fit_pairs(PAIRS, SIMILAR, X)),
        (classical.Kernelized(gamma="x"), lambda one: one.fit_triplets(TRIPLETS, X)),
        (classical.OnPairs(classical.RCA(), X), lambda one: one.fit(PAIRS, SIMILAR)),
        (classical.OnPairs(classical.ITML(), 3), lambda one: one.fit(PAIRS, SIMILAR)),
        (classical.OnTriplets(classical.ITML(), X), lambda one: one.fit(TRIPLETS)),
    ],
    ids=lambda value: type(value).__name__ if hasattr(value, "get_params") else "",
)
def test_every_way_to_learn_checks_the_parameters(learner, fit):
    with pytest.raises(InvalidParameterError, match="parameter of"):
        fit(learner)


@pytest.mark.parametrize("learner", [classical.RCA(ridge=0), classical.LFDA(ridge=0)])
def test_directions_without_variance_and_without_a_ridge_are_an_error(learner):
    points = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 0.0], [2.0, 1.5]])
    with pytest.raises(ValueError, match="ridge=0 is too small"):
        learner.fit(points, [0, 0, 1, 1, 2, 2])


@pytest.mark.parametrize("learner", [classical.RCA(ridge=0), classical.LFDA(ridge=0)])
def test_no_ridge_is_fine_where_classes_vary_everywhere(learner):
    assert learner.fit(X, Y).score(X, Y) > 0.9
