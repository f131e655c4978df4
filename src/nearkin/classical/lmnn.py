"""Large Margin Nearest Neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from nearkin.classical.arrays import Array
from nearkin.classical.base import LEARNERS, SupervisedLearner
from nearkin.classical.constraints import target_neighbours
from nearkin.classical.descent import Whitening, descend, initial_map
from nearkin.classical.neighbourhood import Sorted
from nearkin.classical.pairwise import SquaredDistances, row_blocks
from nearkin.classical.parameters import AT_LEAST_ONE, COMPONENTS, INIT, NOT_NEGATIVE, Interval

SPARSE_SHARE = 0.02  # below this share of all pairs, measuring listed pairs beats one big matrix product
SOFTNESSES = (
    0.3,
    0.03,
    0.003,
)  # L-BFGS gets stuck in the hinge's corners: they are rounded off, less and less
REFRESH = 30  # iterations on one list of candidates before the impostors are sought again
REACHES = (1.3, 1.1, 1.05, 1.02)  # how much further than the margin to look: the widest that stays sparse


@LEARNERS.register("lmnn")
class LMNN(SupervisedLearner):
    """Pull each point's neighbours of its own class near, push others out of a margin around them.

    ``min_G  (1 − μ) Σ_{i, j→i} d(i, j) + μ Σ_{i, j→i} Σ_{l: y_l ≠ y_i} [1 + d(i, j) − d(i, l)]₊``

    with ``d(i, j) = ‖Gx_i − Gx_j‖²`` and ``j→i`` for the target neighbours of i: its ``n_neighbors`` nearest
    points of the same class in the original space (all of them where the class is smaller).

    Every triplet counts: the impostors are sought exactly, by blocked matrix products, and kept as a list
    while they are few. L-BFGS descends over G.

    Source: Weinberger, Saul, "Distance Metric Learning for Large Margin Nearest Neighbor Classification",
        JMLR 2009.

    Use it for nearest-neighbour classification and retrieval on features, such as the embeddings of a trained
    network. The margin is 1 in squared distance: features of a very different scale should be scaled first.
    Time grows with n², memory with n and the number of impostors.

    Args:
        n_neighbors: target neighbours per point.
        push: μ, the weight of the push against 1 − μ for the pull.
        n_components: dimensions of the result; None keeps all.
        init: ``"auto"`` (the identity, or Fisher's directions where ``n_components`` is smaller, scaled so
            that nearest neighbours are at distance 1.5 on average), ``"identity"``, ``"pca"`` or a matrix.
        max_iter: largest number of L-BFGS iterations.
        tol: stop when further descent gains less than this share of the objective.

    Attributes:
        components_: ``G (n_components, n_features)``.
        objective_: the objective at the end.
        n_active_: triplets inside the margin at the end.
        n_iter_: iterations taken.

    >>> from sklearn.datasets import load_wine
    >>> X, y = load_wine(return_X_y=True)
    >>> X = (X - X.mean(axis=0)) / X.std(axis=0)
    >>> lmnn = LMNN().fit(X, y)
    >>> lmnn.score(X, y)
    1.0
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_neighbors": [AT_LEAST_ONE],
        "push": [Interval(Real, 0, 1, closed="both")],
        "n_components": COMPONENTS,
        "init": INIT,
        "max_iter": [AT_LEAST_ONE],
        "tol": [NOT_NEGATIVE],
    }

    def __init__(
        self,
        n_neighbors: int = 3,
        *,
        push: float = 0.5,
        n_components: int | None = None,
        init: str | ArrayLike = "auto",
        max_iter: int = 300,
        tol: float = 1e-6,
    ) -> None:
        self.n_neighbors = n_neighbors
        self.push = push
        self.n_components = n_components
        self.init = init
        self.max_iter = max_iter
        self.tol = tol

    def _learn(self, X: Array, labels: Array) -> Array:
        whitening = Whitening.of(X)
        margins = Margins.of(X, labels, self.n_neighbors, self.push, whitening.points(X))
        start = whitening.inwards(initial_map(X, labels, self.n_components, self.init))
        G = self._descend(margins, start)
        self.objective_ = margins.loss(G)[0]
        self.n_active_ = margins.active_triplets(G)
        return whitening.outwards(G)

    def _descend(self, margins: Margins, G: Array) -> Array:
        """The best map found, softness by softness, on lists of candidates renewed until none is missed."""
        best, lowest = G, margins.loss(G)[0]
        candidates: Array | None = None
        self.n_iter_ = 0
        for softness in SOFTNESSES:
            value = margins.loss(G, softness=softness)[0]
            while self.n_iter_ < self.max_iter:
                candidates = margins.candidates(G, candidates)
                left = self.max_iter - self.n_iter_
                end = descend(
                    partial(margins.loss, candidates=candidates, softness=softness),
                    G,
                    max_iter=left if candidates is None else min(REFRESH, left),
                    tol=self.tol,
                )
                self.n_iter_ += max(1, end.n_iter)
                before, G = value, end.G
                value = margins.loss(G, softness=softness)[0]
                small = self.tol * max(1.0, abs(value))
                if before - value <= small and value - end.objective <= small:
                    break
            exact = margins.loss(G)[0]
            if exact < lowest:
                best, lowest = G, exact
        return best


@dataclass(frozen=True)
class Impostors:
    """Pairs (row, column) of different classes, sorted by row, with their distances ``(p,)``."""

    rows: Array
    columns: Array
    distances: Array


@dataclass(frozen=True)
class Margins:
    """The objective over a map of given points with given target neighbours.

    Attributes:
        points: sorted by class, ``(n, d)``.
        targets: row numbers ``(n, k)``; where a class is too small, the point itself.
        real: which of the targets are others ``(n, k)``.
        push: μ.
    """

    points: Sorted
    targets: Array
    real: Array
    push: float

    @classmethod
    def of(
        cls, X: Array, labels: Array, n_neighbors: int, push: float, whitened: Array | None = None
    ) -> Margins:
        """Choose the target neighbours in ``X (n, d)``; the maps may act on these points whitened."""
        sorted_labels = np.sort(labels)
        pairs = target_neighbours(Sorted.of(X, labels).X, sorted_labels, n_neighbors)
        rank = np.arange(len(pairs)) - np.searchsorted(pairs[:, 0], pairs[:, 0])
        own = np.arange(len(X))[:, None]
        targets = np.tile(own, (1, int(rank.max()) + 1))
        targets[pairs[:, 0], rank] = pairs[:, 1]
        return cls(Sorted.of(X if whitened is None else whitened, labels), targets, targets != own, push)

    def loss(self, G: Array, candidates: Array | None = None, softness: float = 0.0) -> tuple[float, Array]:
        """The objective and its gradient ``(k, d)``, impostors sought among ``candidates (p, 2)`` or all.

        ``softness`` rounds the corner of the hinge off over that width.
        """
        Z = self._map(G)
        near = self._target_distances(Z)
        impostors = self._search(Z, near) if candidates is None else self._among(Z, near, candidates)
        hinge, per_target, per_impostor = self._hinges(near, impostors, softness)
        pull = 1 - self.push
        value = pull * float(near.sum(dtype=np.float64)) + self.push * hinge
        gradient = self._weighted_sum(
            pull * self.real + self.push * per_target, impostors, self.push * per_impostor
        )
        return value, 2 * G @ gradient

    def active_triplets(self, G: Array) -> int:
        """How many triplets are inside the margin."""
        Z = self._map(G)
        near = self._target_distances(Z)
        return int(self._hinges(near, self._search(Z, near))[1].sum())

    def candidates(self, G: Array, known: Array | None) -> Array | None:
        """Pairs ``(p, 2)`` to watch around ``G``, with those known already; None where they are too many."""
        Z = self._map(G)
        near = self._target_distances(Z)
        n = len(Z)
        close = self._search(Z, near, REACHES[0])
        relative = close.distances / self._radii(near)[close.rows]
        for reach in REACHES:
            inside = relative < reach
            keys = close.rows[inside] * n + close.columns[inside]
            if known is not None:
                keys = np.sort(np.concatenate([keys, known[:, 0] * n + known[:, 1]]), kind="stable")
                keys = keys[np.diff(keys, prepend=-1) > 0]
            if len(keys) <= SPARSE_SHARE * n * n:
                return np.stack([keys // n, keys % n], axis=1)
        return None

    def _map(self, G: Array) -> Array:
        X = self.points.X
        return np.asarray(X @ G.T.astype(X.dtype))

    def _target_distances(self, Z: Array) -> Array:
        """``d(i, j)`` to each target neighbour ``(n, k)``."""
        return np.stack([np.square(Z - Z[t]).sum(axis=1) for t in self.targets.T], axis=1)

    def _radii(self, near: Array) -> Array:
        """How far each point's margin reaches: ``1 + max_j d(i, j)``, −1 where it has no target ``(n,)``."""
        return np.asarray(1 + np.where(self.real, near, -2.0).max(axis=1))

    def _search(self, Z: Array, near: Array, reach: float = 1.0) -> Impostors:
        """Every point of another class within ``reach`` times the margin."""
        radii = reach * self._radii(near)
        distances = SquaredDistances(Z)
        n = len(Z)
        rows, columns, found = [], [], []
        for block, parts in self.points.blocks():
            D = distances.rows(block)
            inside = radii[block, None] > D
            for own, members in parts:
                inside[own, members] = False
            flat = np.flatnonzero(inside)
            row_in_block = flat // n
            rows.append(row_in_block + block.start)
            columns.append(flat - row_in_block * n)
            found.append(D.ravel()[flat])
        return Impostors(np.concatenate(rows), np.concatenate(columns), np.concatenate(found))

    def _among(self, Z: Array, near: Array, candidates: Array) -> Impostors:
        """The candidates that are within the margin."""
        squares = np.einsum("ij,ij->i", Z, Z)
        rows, columns = candidates.T
        d = np.empty(len(rows), dtype=Z.dtype)
        for part in row_blocks(len(rows), Z.shape[1]):
            i, j = rows[part], columns[part]
            d[part] = squares[i] + squares[j] - 2 * np.einsum("ij,ij->i", Z[i], Z[j])
        inside = d < self._radii(near)[rows]
        return Impostors(rows[inside], columns[inside], d[inside])

    def _hinges(self, near: Array, impostors: Impostors, softness: float = 0.0) -> tuple[float, Array, Array]:
        """The sum of hinges, and its slope by each target ``(n, k)`` and each impostor ``(p,)``."""
        total = 0.0
        per_target = np.zeros_like(near)
        per_impostor = np.zeros_like(impostors.distances)
        for j in range(near.shape[1]):
            margin = np.where(self.real[:, j], 1 + near[:, j], -np.inf)
            hinge = np.maximum(margin[impostors.rows] - impostors.distances, 0.0)
            slope = np.minimum(hinge / softness, 1.0) if softness else (hinge > 0).astype(hinge.dtype)
            total += float(np.sum(slope * (hinge - 0.5 * softness * slope), dtype=np.float64))
            per_target[:, j] = np.bincount(impostors.rows, slope, minlength=len(near))
            per_impostor += slope
        return total, per_target, per_impostor

    def _weighted_sum(self, pull: Array, impostors: Impostors, push: Array) -> Array:
        """``Σ W_ij (x_i − x_j)(x_i − x_j)ᵀ``, W the pull on targets ``(n, k)`` less the push ``(p,)``.

        It is ``Xᵀ(diag(r + c) − W − Wᵀ)X`` with the row and column sums r and c of W, which is sparse.
        """
        X = self.points.X
        n, k = pull.shape
        first = np.concatenate([[0], np.cumsum(np.bincount(impostors.rows, minlength=n))])
        pulls = sparse.csr_array(
            (pull.ravel(), self.targets.ravel(), np.arange(0, n * k + 1, k)), shape=(n, n)
        )
        pushes = sparse.csr_array((push, impostors.columns, first), shape=(n, n))
        degree = pull.sum(axis=1) + np.bincount(self.targets.ravel(), pull.ravel(), minlength=n)
        degree -= np.bincount(impostors.rows, push, minlength=n) + np.bincount(
            impostors.columns, push, minlength=n
        )
        cross = X.T @ (pulls @ X - pushes @ X)
        return np.asarray((X * degree[:, None]).T @ X - cross - cross.T, dtype=np.float64)
