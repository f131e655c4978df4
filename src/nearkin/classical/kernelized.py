"""Any linear learner in the feature space of a kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg
from sklearn.base import clone
from sklearn.metrics.pairwise import PAIRWISE_KERNEL_FUNCTIONS, pairwise_kernels
from sklearn.utils import check_random_state, get_tags
from sklearn.utils.validation import check_is_fitted, validate_data

from nearkin.classical.arrays import FLOATS, Array
from nearkin.classical.base import LEARNERS, MetricLearner, points_and_index
from nearkin.classical.lmnn import LMNN
from nearkin.classical.parameters import COMPONENTS, FINITE, NOT_NEGATIVE, POSITIVE, SHARE, StrOptions

if TYPE_CHECKING:
    from typing import Self


@LEARNERS.register("kernelized")
class Kernelized(MetricLearner):
    """Learn ``d(x, y) = ‖Gφ(x) − Gφ(y)‖²`` for a kernel ``κ(x, y) = φ(x)ᵀφ(y)`` (thesis 2.1.2).

    The empirical kernel map gives the training points coordinates with the kernel's own inner products:
    with ``K = UΛUᵀ`` the kernel matrix of the landmarks, ``φ(x) = Λ^(−1/2) Uᵀ κ(landmarks, x)``. Any linear
    learner runs on these unchanged. All training points as landmarks make the map exact; fewer are the
    Nyström approximation, for large n.

    Sources: Schölkopf, Smola, "Learning with Kernels", 2002; Williams, Seeger, "Using the Nyström Method to
    Speed Up Kernel Machines", NeurIPS 2000.

    Use it where no stretching and rotating of the input separates the classes, as with XOR.

    Args:
        learner: the linear learner; None takes ``LMNN()``.
        kernel: ``"rbf"``, ``exp(−γ‖x − y‖²)`` with γ = 1/2σ²; ``"polynomial"``, ``(γxᵀy + c)^degree``;
            ``"linear"`` or another of scikit-learn's kernels; ``"precomputed"`` (``X`` then holds kernel
            values against the training points); or a function of two sets of points, ``(n, d), (m, d) -> (n,
            m)``.
        n_components: landmarks, drawn at random from the training points; None takes all.
        gamma: γ; None takes 1 / n_features.
        degree: the polynomial's degree.
        coef0: the polynomial's c.
        tol: directions with an eigenvalue below this share of the largest are left out.
        random_state: seed of the landmarks.

    Attributes:
        learner_: the learner, fitted on ``φ(X)``.
        components_: its ``G``, over the coordinates of ``φ``.
        landmarks_: points ``(m, n_features)``, or row numbers ``(m,)`` of a precomputed kernel.
        projection_: ``UΛ^(−1/2)`` ``(m, rank)``.

    >>> import numpy as np
    >>> X = np.array([[0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [1.0, 0.0]])  # XOR
    >>> y = [0, 0, 1, 1]
    >>> triplets = [[0, 1, 2], [0, 1, 3], [2, 3, 0], [2, 3, 1]]  # each corner belongs to the opposite one
    >>> LMNN(n_neighbors=1).fit(X, y).score_triplets(triplets, X) < 1
    True
    >>> Kernelized(LMNN(n_neighbors=1), kernel="polynomial", degree=2).fit(X, y).score_triplets(triplets, X)
    1.0
    """

    learner_: MetricLearner

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "learner": [MetricLearner, None],
        "kernel": [StrOptions({"precomputed", *PAIRWISE_KERNEL_FUNCTIONS}), callable],
        "n_components": COMPONENTS,
        "gamma": [POSITIVE, None],
        "degree": [NOT_NEGATIVE],
        "coef0": [FINITE],
        "tol": [SHARE],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        learner: MetricLearner | None = None,
        *,
        kernel: str | Callable[[Array, Array], Array] = "rbf",
        n_components: int | None = None,
        gamma: float | None = None,
        degree: int = 3,
        coef0: float = 1.0,
        tol: float = 1e-8,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.learner = learner
        self.kernel = kernel
        self.n_components = n_components
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.tol = tol
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> Self:
        """Learn from points ``X (n, n_features)`` or kernel values ``(n, n)``, and the labels."""
        self._validate_params()
        if get_tags(self).target_tags.required:
            points, labels = validate_data(self, X, y, dtype=FLOATS)
        else:
            points, labels = self._checked(X), None
        return self._keep(self._linear_learner().fit(self._fit_map(points), labels))

    def fit_pairs(self, pairs: ArrayLike, similar: ArrayLike, X: ArrayLike | None = None) -> Self:
        """Learn from pairs, where the learner can; arguments as for its own ``fit_pairs``."""
        self._validate_params()
        points, index = points_and_index(pairs, X, size=2)
        return self._keep(self._capable("fit_pairs")(index, similar, X=self._fit_map(self._checked(points))))

    def fit_triplets(self, triplets: ArrayLike, X: ArrayLike | None = None) -> Self:
        """Learn from triplets, where the learner can; arguments as for its own ``fit_triplets``."""
        self._validate_params()
        points, index = points_and_index(triplets, X, size=3)
        return self._keep(self._capable("fit_triplets")(index, X=self._fit_map(self._checked(points))))

    def transform(self, X: ArrayLike) -> Array:
        """Map points ``(n, n_features)``, or their kernel values against the training points ``(n, m)``."""
        check_is_fitted(self, "learner_")
        points = validate_data(self, X, dtype=FLOATS, reset=False)
        return self.learner_.transform(self._map(points))

    def _keep(self, learner: MetricLearner) -> Self:
        self.learner_ = learner
        self.components_ = learner.components_
        return self

    def _checked(self, points: ArrayLike) -> Array:
        return np.asarray(validate_data(self, points, dtype=FLOATS))

    def _linear_learner(self) -> MetricLearner:
        learner: MetricLearner = LMNN() if self.learner is None else clone(self.learner)
        return learner

    def _capable(self, method: str) -> Callable[..., MetricLearner]:
        learner = self._linear_learner()
        if not hasattr(learner, method):
            raise ValueError(f"{type(learner).__name__} has no {method}: choose a learner that has")
        bound: Callable[..., MetricLearner] = getattr(learner, method)
        return bound

    def _fit_map(self, X: Array) -> Array:
        """Choose the landmarks, and give the coordinates ``φ(X)`` ``(n, rank)``."""
        n = len(X)
        if self.kernel == "precomputed" and X.shape[1] != n:
            raise ValueError(f"a precomputed kernel must be square to learn from, got {X.shape}")
        count = n if self.n_components is None else min(self.n_components, n)
        chosen = np.sort(check_random_state(self.random_state).permutation(n)[:count])
        self.landmarks_ = chosen if self.kernel == "precomputed" else X[chosen]
        values, vectors = linalg.eigh(self._kernel_values(X[chosen]).astype(np.float64))
        kept = values > self.tol * values[-1]
        if not kept.any():
            raise ValueError(
                "the kernel matrix has no positive eigenvalue: it is not a kernel, or all points are 0"
            )
        self.projection_ = (vectors[:, kept] / np.sqrt(values[kept])).astype(X.dtype)
        return self._map(X)

    def _map(self, X: Array) -> Array:
        return np.asarray(self._kernel_values(X) @ self.projection_)

    def _kernel_values(self, X: Array) -> Array:
        """``κ(x, landmark)`` for the rows of ``X``: ``(n, m)``."""
        if self.kernel == "precomputed":
            return X[:, self.landmarks_]
        if callable(self.kernel):
            return np.asarray(self.kernel(X, self.landmarks_))
        given = {"gamma": self.gamma, "degree": self.degree, "coef0": self.coef0}
        return np.asarray(
            pairwise_kernels(X, self.landmarks_, metric=self.kernel, filter_params=True, **given)
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = isinstance(self.kernel, str) and self.kernel == "precomputed"
        tags.target_tags.required = self.learner is None or get_tags(self.learner).target_tags.required
        return tags
