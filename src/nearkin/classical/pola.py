"""The Pseudo-metric Online Learning Algorithm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data

from nearkin.classical.arrays import FLOATS, Array
from nearkin.classical.base import LEARNERS, LearnsFromPairs, as_similar, points_and_index
from nearkin.classical.cones import components_of
from nearkin.classical.parameters import AT_LEAST_ONE, PAIRS

if TYPE_CHECKING:
    from typing import Self


@LEARNERS.register("pola")
class POLA(LearnsFromPairs):
    """Learn online, one pair at a time, a metric ``A ⪰ 0`` and a threshold ``b ≥ 1`` on the squared distance.

    A pair with ``y = +1`` (similar) should have ``d_A ≤ b − 1``, one with ``y = −1`` ``d_A ≥ b + 1``:
    ``ℓ = [1 + y(d_A − b)]₊``. Each pair moves ``(A, b)`` to the nearest point where its loss is 0, in closed
    form,

    ``α = ℓ / (‖v‖⁴ + 1)``,  ``A ← A − yα vvᵀ``,  ``b ← b + yα``,  ``v = x − x'``,

    and then back to ``A ⪰ 0`` and ``b ≥ 1``. Only subtracting can leave the cone, and then by one eigenvalue.

    Source: Shalev-Shwartz, Singer, Ng, "Online and Batch Learning of Pseudo-Metrics", ICML 2004.

    Use it for streams: ``partial_fit`` takes labelled batches, ``partial_fit_pairs`` pairs. On a fixed set
    the batch methods do better.

    Args:
        epochs: passes of ``fit`` and ``fit_pairs`` over their pairs.
        n_pairs: pairs to draw from labels; None takes 20 C² for C classes, at most 20,000.
        random_state: seed of the pairs drawn from labels and of their order.

    Attributes:
        components_: ``G (n_features, n_features)``, the symmetric square root of ``A``.
        threshold_: b.
        n_updates_: pairs so far with a loss above 0.
        n_pairs_seen_: pairs so far.

    >>> import numpy as np
    >>> pairs = np.array([[[0.0, 0.0], [0.0, 2.0]], [[0.0, 0.0], [1.0, 0.0]]])
    >>> pola = POLA(epochs=100).fit_pairs(pairs, [1, -1])
    >>> near, far = pola.pair_distances(pairs, squared=True)
    >>> bool(near < pola.threshold_ < far)
    True
    """

    threshold_: float
    n_updates_: int
    n_pairs_seen_: int

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "epochs": [AT_LEAST_ONE],
        "n_pairs": PAIRS,
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        *,
        epochs: int = 5,
        n_pairs: int | None = None,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.epochs = epochs
        self.n_pairs = n_pairs
        self.random_state = random_state

    def partial_fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Go on learning from a labelled batch ``X (n, n_features)``, ``y (n,)``: one pass over its pairs."""
        self._validate_params()
        begun = hasattr(self, "components_")
        points, labels = self._labelled(X, y, reset=not begun)
        return self._go_on(points, *self._drawn_pairs(labels), begun)

    def partial_fit_pairs(self, pairs: ArrayLike, similar: ArrayLike, X: ArrayLike | None = None) -> Self:
        """Go on learning from pairs, in their order; arguments as for ``fit_pairs``."""
        self._validate_params()
        begun = hasattr(self, "components_")
        points, index = points_and_index(pairs, X, size=2)
        points = validate_data(self, points, dtype=FLOATS, reset=not begun)
        return self._go_on(points, index, as_similar(similar, len(index)), begun, shuffle=False)

    def _go_on(self, X: Array, pairs: Array, similar: Array, begun: bool, *, shuffle: bool = True) -> Self:
        A = self.components_.astype(np.float64) if begun else np.zeros((X.shape[1],) * 2)
        if not begun:
            self._start()
        components = self._pass(A.T @ A, X, pairs, similar, epochs=1, shuffle=shuffle)
        self.components_ = components.astype(X.dtype if not begun else self.components_.dtype, copy=False)
        return self

    def _learn_pairs(self, X: Array, pairs: Array, similar: Array) -> Array:
        self._start()
        return self._pass(np.zeros((X.shape[1],) * 2), X, pairs, similar, epochs=self.epochs, shuffle=True)

    def _start(self) -> None:
        self.threshold_ = 1.0
        self.n_updates_ = 0
        self.n_pairs_seen_ = 0

    def _pass(self, A: Array, X: Array, pairs: Array, similar: Array, *, epochs: int, shuffle: bool) -> Array:
        """Show the pairs ``epochs`` times to ``A (d, d)``; the components of what it becomes."""
        rng = check_random_state(self.random_state)
        V = X[pairs[:, 0]].astype(np.float64) - X[pairs[:, 1]]
        signs = np.where(similar, 1.0, -1.0)
        for _ in range(epochs):
            for i in rng.permutation(len(V)) if shuffle else range(len(V)):
                A = self._show(A, V[i], signs[i])
        self.n_pairs_seen_ += epochs * len(V)
        return components_of(A)

    def _show(self, A: Array, v: Array, y: float) -> Array:
        """One pair: both projections."""
        loss = 1 + y * (v @ A @ v - self.threshold_)
        if loss <= 0:
            return A
        self.n_updates_ += 1
        alpha = loss / (np.square(v @ v) + 1)
        self.threshold_ = max(1.0, self.threshold_ + y * alpha)
        A = A - y * alpha * np.outer(v, v)
        if y > 0:
            value, vector = linalg.eigh(A, subset_by_index=[0, 0], check_finite=False)
            if value[0] < 0:
                A = A - value[0] * np.outer(vector, vector)
        return A
