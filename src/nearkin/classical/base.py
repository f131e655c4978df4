"""What every classical learner shares: scikit-learn's interface around one matrix ``G`` with ``A = GᵀG``."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.metrics import roc_auc_score
from sklearn.utils import check_array, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from nearkin.classical.arrays import FLOATS, Array
from nearkin.classical.constraints import default_pair_count, random_pairs
from nearkin.classical.pairwise import nearest_other
from nearkin.registry import Registry

if TYPE_CHECKING:
    from typing import Self


class MetricLearner(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A learned linear map ``x → Gx``: ``d_A(x, y) = (x − y)ᵀA(x − y) = ‖Gx − Gy‖²``, ``A = GᵀG``.

    Attributes:
        components_: the map ``G``, ``(n_components, n_features)``, in the precision of the training data.
    """

    components_: Array

    def transform(self, X: ArrayLike) -> Array:
        """Map ``X (n, n_features)`` to where Euclidean distance is the learned one: ``(n, n_components)``."""
        check_is_fitted(self, "components_")
        points: Array = validate_data(self, X, dtype=FLOATS, reset=False)
        return np.asarray(points @ self.components_.T)

    def get_mahalanobis_matrix(self) -> Array:
        """The positive semi-definite ``A = GᵀG``, ``(n_features, n_features)``."""
        check_is_fitted(self, "components_")
        return self.components_.T @ self.components_

    def pair_distances(self, pairs: ArrayLike, X: ArrayLike | None = None, *, squared: bool = False) -> Array:
        """The learned distance of each pair: ``‖Gx − Gy‖``, or ``d_A``, its square, on request.

        Args:
            pairs: points ``(m, 2, n_features)``, or row numbers ``(m, 2)`` where ``X`` is given.
            X: the points ``(n, n_features)`` that the row numbers speak of.
            squared: give ``d_A`` itself.
        """
        points, index = points_and_index(pairs, X, size=2)
        Z = self.transform(points)
        d = np.square(Z[index[:, 0]] - Z[index[:, 1]]).sum(axis=1)
        return np.asarray(d if squared else np.sqrt(d))

    def score(self, X: ArrayLike, y: ArrayLike) -> float:
        """The share of rows of ``X`` whose nearest other row has the same label (recall at 1)."""
        Z = self.transform(X)
        labels = np.asarray(y)
        if len(labels) != len(Z):
            raise ValueError(f"X has {len(Z)} rows but y has {len(labels)}")
        if len(Z) < 2:
            raise ValueError("recall at 1 needs at least 2 rows, X has 1")
        return float(np.mean(labels[nearest_other(Z)] == labels))

    def score_pairs(self, pairs: ArrayLike, similar: ArrayLike, X: ArrayLike | None = None) -> float:
        """How well the learned distance tells similar from dissimilar pairs: area under the ROC curve."""
        return float(roc_auc_score(as_similar(similar), -self.pair_distances(pairs, X, squared=True)))

    def score_triplets(self, triplets: ArrayLike, X: ArrayLike | None = None) -> float:
        """The share of triplets (anchor, near, far) whose near point is nearer than the far one."""
        points, index = points_and_index(triplets, X, size=3)
        near = self.pair_distances(index[:, [0, 1]], points, squared=True)
        far = self.pair_distances(index[:, [0, 2]], points, squared=True)
        return float(np.mean(near < far))

    @property
    def _n_features_out(self) -> int:
        return int(self.components_.shape[0])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


class SupervisedLearner(MetricLearner):
    """A learner that is taught by class labels."""

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn from points ``X (n, n_features)`` and labels ``y (n,)`` of two classes or more.

        A class with one member has no positives; it only serves as negatives of the others.
        """
        self._validate_params()
        points, labels = self._labelled(X, y)
        self.components_ = self._learn(points, labels).astype(points.dtype, copy=False)
        return self

    @abstractmethod
    def _learn(self, X: Array, labels: Array) -> Array:
        """The components ``(n_components, n_features)`` for points ``(n, n_features)``, labels 0, 1, …."""

    def _labelled(self, X: ArrayLike, y: ArrayLike, *, reset: bool = True) -> tuple[Array, Array]:
        """Points and labels, checked; the labels numbered from 0."""
        points, given = validate_data(self, X, y, dtype=FLOATS, ensure_min_samples=2, reset=reset)
        check_classification_targets(given)
        classes, labels = np.unique(given, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(f"{type(self).__name__} needs at least 2 classes, y has only {classes[0]!r}")
        if len(classes) == len(labels):
            raise ValueError(f"{type(self).__name__} needs a class with 2 members or more, y has none")
        return points, labels

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags


class LearnsFromPairs(SupervisedLearner):
    """A learner that also takes pairs known to be similar or dissimilar; labels become random pairs."""

    n_pairs: int | None
    random_state: int | np.random.RandomState | None

    def fit_pairs(self, pairs: ArrayLike, similar: ArrayLike, X: ArrayLike | None = None) -> Self:
        """Learn from pairs.

        Args:
            pairs: points ``(m, 2, n_features)``, or row numbers ``(m, 2)`` where ``X`` is given.
            similar: ``(m,)``, True or +1 for a similar pair, False, 0 or −1 for a dissimilar one.
            X: the points ``(n, n_features)`` that the row numbers speak of.
        """
        self._validate_params()
        points, index = points_and_index(pairs, X, size=2)
        points = validate_data(self, points, dtype=FLOATS)
        components = self._learn_pairs(points, index, as_similar(similar, len(index)))
        self.components_ = components.astype(points.dtype, copy=False)
        return self

    def _learn(self, X: Array, labels: Array) -> Array:
        return self._learn_pairs(X, *self._drawn_pairs(labels))

    def _drawn_pairs(self, labels: Array) -> tuple[Array, Array]:
        """Random pairs ``(m, 2)`` of labelled points, and whether each is similar."""
        count = self.n_pairs or default_pair_count(labels)
        return random_pairs(labels, count, check_random_state(self.random_state))

    @abstractmethod
    def _learn_pairs(self, X: Array, pairs: Array, similar: Array) -> Array:
        """The components for points ``(n, n_features)``, row numbers ``(m, 2)`` and booleans ``(m,)``."""


class LearnsFromTriplets(SupervisedLearner):
    """A learner that also takes relative comparisons, in place of labels."""

    def fit_triplets(self, triplets: ArrayLike, X: ArrayLike | None = None) -> Self:
        """Learn from triplets (anchor, near, far): the anchor belongs nearer to the second than to the third.

        Args:
            triplets: points ``(m, 3, n_features)``, or row numbers ``(m, 3)`` where ``X`` is given.
            X: the points ``(n, n_features)`` that the row numbers speak of.
        """
        self._validate_params()
        points, index = points_and_index(triplets, X, size=3)
        points = validate_data(self, points, dtype=FLOATS)
        self.components_ = self._learn_triplets(points, index).astype(points.dtype, copy=False)
        return self

    @abstractmethod
    def _learn_triplets(self, X: Array, triplets: Array) -> Array:
        """The components for points ``(n, n_features)`` and row numbers ``(m, 3)``."""


LEARNERS = Registry[MetricLearner]("classical learner")


def points_and_index(tuples: ArrayLike, X: ArrayLike | None, *, size: int) -> tuple[Array, Array]:
    """Pairs or triplets in either form as points ``(n, n_features)`` and row numbers ``(m, size)``."""
    what = {2: "pairs", 3: "triplets"}[size]
    if X is None:
        points = check_array(tuples, dtype=FLOATS, allow_nd=True, input_name=what)
        if points.ndim != 3 or points.shape[1] != size:
            raise ValueError(
                f"{what} must be points (m, {size}, n_features), or row numbers (m, {size}) together with X; "
                f"got shape {points.shape}"
            )
        index = np.arange(points.shape[0] * size).reshape(-1, size)
        return points.reshape(-1, points.shape[2]), index
    points = check_array(X, dtype=FLOATS, input_name="X")
    index = np.asarray(tuples)
    if index.ndim != 2 or index.shape[1] != size or index.dtype.kind not in "iu" or len(index) == 0:
        raise ValueError(f"{what} must be row numbers of X, integers of shape (m, {size}); got {index.shape}")
    if index.min() < 0 or index.max() >= len(points):
        raise ValueError(f"{what} speak of row {index.max()} (or a negative one), X has {len(points)} rows")
    return points, index


def as_similar(similar: ArrayLike, count: int | None = None) -> Array:
    """Booleans from booleans, 0/1 or ±1, one for each of ``count`` pairs."""
    given = np.asarray(similar)
    if given.ndim != 1 or (count is not None and len(given) != count):
        raise ValueError(f"similar must have one entry per pair ({count}), got shape {given.shape}")
    if not np.isin(given, (-1, 0, 1)).all():
        raise ValueError("similar must hold True/False, 1/0 or +1/−1")
    return np.asarray(given > 0)
