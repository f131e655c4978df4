"""The perceptron: where the thesis's story of neural networks begins."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data

from nearkin.classical.arrays import FLOATS, Array
from nearkin.classical.parameters import AT_LEAST_ONE, POSITIVE

if TYPE_CHECKING:
    from typing import Self


class Perceptron(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A line between two classes, moved by one misclassified sample at a time.

    ``y = sgn(wᵀx)`` (thesis 2.11), ``sgn(t) = +1 for t ≥ 0, −1 for t < 0`` (2.12), with a constant
    ``x₀ = 1`` in front of every sample, whose weight is the bias. From ``w = 0`` on, a random sample that is
    misclassified moves the line, ``w ← w + ε s x`` with its target ``s = ±1``, until none is left.

    If a line separates the classes, this ends after at most ``(R/γ)²`` steps, R the length of the longest
    sample and γ the margin of the best line through the origin (Novikoff 1962). If none does, as with XOR,
    it never ends: after ``max_iter`` steps the weights with the fewest errors so far are taken (Gallant's
    pocket, 1990), and a warning says so.

    Source: Rosenblatt, "Principles of Neurodynamics", 1962; the thesis "Metric Learning: A Deep Dive", 2.2.1.

    Args:
        learning_rate: ε; it changes the length of w and no prediction.
        max_iter: most steps.
        random_state: seed of the samples that are chosen.

    Attributes:
        classes_: the two classes; the second one is +1.
        coef_: w without its bias, ``(1, n_features)``.
        intercept_: the bias w₀, ``(1,)``.
        path_: w, bias first, before the first step and after each, ``(n_iter_ + 1, 1 + n_features)``.
        errors_: how many samples each of them misclassifies, ``(n_iter_ + 1,)``.
        converged_: whether no sample is misclassified any more.
        n_iter_: steps.

    >>> import numpy as np
    >>> corners = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    >>> Perceptron().fit(corners, [0, 1, 1, 1]).predict(corners)  # or
    array([0, 1, 1, 1])
    """

    classes_: Array
    coef_: Array
    intercept_: Array
    path_: Array
    errors_: Array
    converged_: bool
    n_iter_: int

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "learning_rate": [POSITIVE],
        "max_iter": [AT_LEAST_ONE],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        *,
        learning_rate: float = 1.0,
        max_iter: int = 1000,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.learning_rate = learning_rate
        self.max_iter = max_iter
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn from points ``X (n, n_features)`` and labels ``y (n,)`` of two classes."""
        self._validate_params()
        points, given = validate_data(self, X, y, dtype=FLOATS)
        check_classification_targets(given)
        kind = type_of_target(given, input_name="y", raise_unknown=True)
        if kind != "binary":
            raise ValueError(f"Only binary classification is supported. The type of the target is {kind}.")
        self.classes_, numbers = np.unique(given, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"Perceptron needs 2 classes, y has one class only: {self.classes_[0]!r}")
        self._walk(_with_constant(points), np.where(numbers == 1, 1, -1))
        best = int(self.errors_.argmin())
        self.intercept_, self.coef_ = self.path_[best, :1], self.path_[best, 1:][None]
        return self

    def _walk(self, points: Array, targets: Array) -> None:
        """Step after step from 0, and what each of them got wrong."""
        rng = check_random_state(self.random_state)
        w = np.zeros(points.shape[1])
        path, errors = [w], []
        while True:
            wrong = np.flatnonzero(sign(points @ w) != targets)
            errors.append(len(wrong))
            if not len(wrong) or len(path) > self.max_iter:
                break
            chosen = wrong[rng.randint(len(wrong))]
            w = w + self.learning_rate * targets[chosen] * points[chosen]
            path.append(w)
        self.path_, self.errors_ = np.stack(path), np.array(errors)
        self.n_iter_ = len(path) - 1
        self.converged_ = errors[-1] == 0
        if not self.converged_:
            warnings.warn(
                f"the perceptron still misclassifies {min(errors)} of {len(points)} samples after "
                f"{self.n_iter_} steps: no line may separate the classes; otherwise raise max_iter",
                ConvergenceWarning,
                stacklevel=3,
            )

    def decision_function(self, X: ArrayLike) -> Array:
        """``wᵀx`` of points ``(n, n_features)``, above 0 for the second class: ``(n,)``."""
        check_is_fitted(self)
        points: Array = validate_data(self, X, dtype=FLOATS, reset=False)
        return np.asarray(points @ self.coef_[0] + self.intercept_[0])

    def predict(self, X: ArrayLike) -> Array:
        """The class of each of points ``(n, n_features)``: ``(n,)``."""
        right = sign(self.decision_function(X)) > 0
        return np.asarray(self.classes_[right.astype(int)])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


def sign(values: Array) -> Array:
    """The step function (2.12): +1 from 0 on, −1 below.

    >>> import numpy as np
    >>> sign(np.array([-0.5, 0.0, 2.0]))
    array([-1,  1,  1])
    """
    return np.where(values >= 0, 1, -1)


def _with_constant(points: Array) -> Array:
    """``x₀ = 1`` in front of each row."""
    return np.hstack([np.ones((len(points), 1)), points.astype(np.float64)])
