"""Learners whose samples are pairs or triplets: for cross-validation and grid search."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_is_fitted

from nearkin.classical.arrays import Array
from nearkin.classical.base import LearnsFromPairs, LearnsFromTriplets, MetricLearner
from nearkin.classical.parameters import HasMethods

if TYPE_CHECKING:
    from typing import Self


class _Weak(BaseEstimator):  # type: ignore[misc]
    """What both have in common: a fitted learner that answers."""

    learner_: MetricLearner

    def transform(self, X: ArrayLike) -> Array:
        """Map points ``(n, n_features)`` to where Euclidean distance is the learned one."""
        check_is_fitted(self, "learner_")
        return self.learner_.transform(X)

    def pair_distances(self, pairs: ArrayLike, X: ArrayLike | None = None, *, squared: bool = False) -> Array:
        """As ``MetricLearner.pair_distances``."""
        check_is_fitted(self, "learner_")
        return self.learner_.pair_distances(pairs, X, squared=squared)

    def get_mahalanobis_matrix(self) -> Array:
        """The learned ``A``."""
        check_is_fitted(self, "learner_")
        return self.learner_.get_mahalanobis_matrix()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = self.X is not None
        tags.input_tags.three_d_array = self.X is None
        return tags


class OnPairs(_Weak):
    """A learner whose samples are pairs: ``fit(pairs, similar)``, ``score(pairs, similar)``.

    Args:
        learner: one that has ``fit_pairs``.
        X: the points ``(n, n_features)``; pairs are then row numbers ``(m, 2)``. Without it they are points
            ``(m, 2, n_features)``.

    Attributes:
        learner_: the fitted learner.

    >>> import numpy as np
    >>> from sklearn.model_selection import GridSearchCV
    >>> from nearkin.classical import ITML
    >>> rng = np.random.default_rng(0)
    >>> pairs = rng.normal(size=(60, 2, 3))
    >>> similar = np.abs(pairs[:, 0, 0] - pairs[:, 1, 0]) < 1
    >>> search = GridSearchCV(OnPairs(ITML()), {"learner__gamma": [0.1, 1.0]}, cv=3).fit(pairs, similar)
    >>> bool(search.best_score_ > 0.8)
    True
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "learner": [HasMethods("fit_pairs")],
        "X": ["array-like", None],
    }

    def __init__(self, learner: LearnsFromPairs, X: ArrayLike | None = None) -> None:
        self.learner = learner
        self.X = X

    def fit(self, pairs: ArrayLike, y: ArrayLike) -> Self:
        """Learn from pairs and whether each is similar (True or +1) or dissimilar (False, 0 or −1)."""
        self._validate_params()
        self.learner_ = clone(self.learner).fit_pairs(pairs, y, self.X)
        return self

    def score(self, pairs: ArrayLike, y: ArrayLike) -> float:
        """Area under the ROC curve of similar against dissimilar."""
        check_is_fitted(self, "learner_")
        return self.learner_.score_pairs(pairs, y, self.X)


class OnTriplets(_Weak):
    """A learner whose samples are triplets (anchor, near, far): ``fit(triplets)``, ``score(triplets)``.

    Args:
        learner: one that has ``fit_triplets``.
        X: the points ``(n, n_features)``; triplets are then row numbers ``(m, 3)``. Without it they are
            points ``(m, 3, n_features)``.

    Attributes:
        learner_: the fitted learner.

    >>> import numpy as np
    >>> from sklearn.model_selection import cross_val_score
    >>> from nearkin.classical import SchultzJoachims
    >>> triplets = np.random.default_rng(0).normal(size=(200, 3, 2))
    >>> nearer = np.abs(triplets[:, 1, 0] - triplets[:, 0, 0]) < np.abs(triplets[:, 2, 0] - triplets[:, 0, 0])
    >>> bool(cross_val_score(OnTriplets(SchultzJoachims()), triplets[nearer], cv=3).mean() > 0.9)
    True
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "learner": [HasMethods("fit_triplets")],
        "X": ["array-like", None],
    }

    def __init__(self, learner: LearnsFromTriplets, X: ArrayLike | None = None) -> None:
        self.learner = learner
        self.X = X

    def fit(self, triplets: ArrayLike, y: object = None) -> Self:
        """Learn from triplets; ``y`` is ignored."""
        self._validate_params()
        self.learner_ = clone(self.learner).fit_triplets(triplets, self.X)
        return self

    def score(self, triplets: ArrayLike, y: object = None) -> float:
        """The share of triplets whose near point is nearer than the far one."""
        check_is_fitted(self, "learner_")
        return self.learner_.score_triplets(triplets, self.X)
