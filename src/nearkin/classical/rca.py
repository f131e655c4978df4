"""Relevant Components Analysis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import validate_data

from nearkin.classical.arrays import FLOATS, Array
from nearkin.classical.base import LEARNERS, SupervisedLearner
from nearkin.classical.parameters import COMPONENTS, NOT_NEGATIVE
from nearkin.classical.scatter import fisher_directions

if TYPE_CHECKING:
    from typing import Self


@LEARNERS.register("rca")
class RCA(SupervisedLearner):
    """Whiten what varies inside chunklets: small groups of points known to belong together.

    ``A = Ĉ⁻¹``,  ``Ĉ = (1/n) Σ_chunklets Σ_i (x_i − m)(x_i − m)ᵀ``, m the chunklet's mean.

    With fewer components than features, the directions with the smallest share of within-chunklet in total
    variance are kept (Fisher's), and whitened.

    Source: Bar-Hillel, Hertz, Shental, Weinshall, "Learning a Mahalanobis Metric from Equivalence
        Constraints", JMLR 2005.

    Use it when only groups of similar points are known: it needs no dissimilar ones, and is one eigenproblem.
    ``fit(X, y)`` takes each class as a chunklet; ``fit_chunklets`` takes chunklets.

    Args:
        n_components: dimensions of the result; None keeps all.
        ridge: share of the mean within-chunklet variance added in every direction, so that directions without
            any (n < d, duplicate rows) get a large weight instead of an infinite one. Directions in which
            the data does not vary at all (constant features) get the weight 0.

    Attributes:
        components_: ``G (n_components, n_features)``.

    >>> import numpy as np
    >>> X = np.array([[0.0, 0.0], [0.0, 2.0], [1.0, 0.0], [1.0, 2.0], [5.0, 5.0]])
    >>> rca = RCA(ridge=0.01).fit_chunklets(X, [0, 0, 1, 1, -1])  # the last point's group is unknown
    >>> np.diag(rca.get_mahalanobis_matrix()).round().tolist()
    [200.0, 1.0]
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_components": COMPONENTS,
        "ridge": [NOT_NEGATIVE],
    }

    def __init__(self, n_components: int | None = None, *, ridge: float = 1e-6) -> None:
        self.n_components = n_components
        self.ridge = ridge

    def fit_chunklets(self, X: ArrayLike, chunklets: ArrayLike) -> Self:
        """Learn from points ``X (n, n_features)`` and chunklet numbers ``(n,)``, −1 for a point in none."""
        self._validate_params()
        points, numbers = validate_data(self, X, chunklets, dtype=FLOATS, ensure_min_samples=2)
        known = numbers >= 0
        _, labels, sizes = np.unique(numbers[known], return_inverse=True, return_counts=True)
        if len(sizes) == 0 or sizes.max() < 2:
            raise ValueError("RCA needs a chunklet with 2 points or more")
        self.components_ = self._learn(points[known], labels).astype(points.dtype, copy=False)
        return self

    def _learn(self, X: Array, labels: Array) -> Array:
        return fisher_directions(X, labels, self.n_components, self.ridge)
