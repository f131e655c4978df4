"""The Mahalanobis distance itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg
from sklearn.utils.validation import validate_data

from nearkin.classical.arrays import FLOATS, Array
from nearkin.classical.base import LEARNERS, MetricLearner
from nearkin.classical.parameters import SHARE

if TYPE_CHECKING:
    from typing import Self


@LEARNERS.register("covariance")
class Covariance(MetricLearner):
    """Whitening: ``A = Σ⁺``, the (pseudo-)inverse of the covariance of the data.

    ``d_A(x, y) = (x − y)ᵀ Σ⁻¹ (x − y)``: after the map, the data has identity covariance. Directions in
    which the data does not vary (constant features, fewer points than features) get the weight 0.

    Source: P. C. Mahalanobis, "On the generalised distance in statistics", 1936; thesis 2.1.1.

    Use it as the baseline without supervision, when features differ in scale or repeat one another.

    Args:
        tol: directions with a variance below this share of the largest count as constant.

    Attributes:
        components_: ``G = Σ^(−1/2)`` ``(n_features, n_features)``, symmetric.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(100, 3)) * [1, 10, 100]
    >>> bool(np.allclose(np.cov(Covariance().fit_transform(X), rowvar=False), np.eye(3)))
    True
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "tol": [SHARE],
    }

    def __init__(self, *, tol: float = 1e-10) -> None:
        self.tol = tol

    def fit(self, X: ArrayLike, y: object = None) -> Self:
        """Learn from points ``X (n, n_features)``; labels are ignored."""
        self._validate_params()
        points: Array = validate_data(self, X, dtype=FLOATS, ensure_min_samples=2)
        root = inverse_root(np.atleast_2d(np.cov(points.astype(np.float64), rowvar=False)), self.tol)
        self.components_ = root.astype(points.dtype, copy=False)
        return self


def inverse_root(S: Array, tol: float = 1e-10) -> Array:
    """``S^(−1/2)`` of a positive semi-definite ``S``, 0 on the directions below ``tol`` of its largest."""
    values, vectors = linalg.eigh(S)
    solid = values > tol * max(values[-1], np.finfo(float).tiny)
    return np.asarray((vectors[:, solid] / np.sqrt(values[solid])) @ vectors[:, solid].T)


def precision_matrix(X: Array) -> Array:
    """The (pseudo-)inverse of the covariance of ``X (n, d)``."""
    root = inverse_root(np.atleast_2d(np.cov(X, rowvar=False)))
    return root @ root
