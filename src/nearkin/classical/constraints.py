"""Supervision as inequalities that are linear in the pair distances, thesis (2.2), (2.3), (2.6) and (2.7)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from nearkin.classical.arrays import Array
from nearkin.classical.pairwise import SquaredDistances, row_blocks


@dataclass(frozen=True)
class Constraints:
    """``m`` inequalities ``Σ_p mixing[i, p] · d_A(pair p) ≥ bounds[i]`` over ``p`` pairs of rows.

    ``d_A ≤ u`` is ``−d_A ≥ −u``; ``d_A ≥ l`` is itself; ``d_A(i, k) − d_A(i, j) ≥ m`` mixes two pairs. A sum
    of two sets of constraints holds both.

    Args:
        pairs: row numbers ``(p, 2)``.
        mixing: sparse ``(m, p)``, the coefficients of the distances.
        bounds: ``(m,)``.

    >>> both = Constraints.similar([[0, 1]], 1.0) + Constraints.relative([[0, 1, 2]], margin=0.5)
    >>> len(both)
    2
    >>> both.violations(np.array([1.5, 1.5, 1.75])).tolist()
    [0.5, 0.25]
    """

    pairs: Array
    mixing: sparse.csr_array
    bounds: Array

    def __post_init__(self) -> None:
        if self.mixing.shape != (len(self.bounds), len(self.pairs)):
            raise ValueError(
                f"mixing is {self.mixing.shape}, but there are {len(self.bounds)} bounds "
                f"and {len(self.pairs)} pairs"
            )

    @classmethod
    def similar(cls, pairs: ArrayLike, upper: ArrayLike) -> Constraints:
        """``d_A(i, j) ≤ u`` (2.2), one ``u`` for all pairs or one for each."""
        pairs = np.asarray(pairs)
        bounds = -np.broadcast_to(np.asarray(upper, dtype=float), len(pairs))
        return cls(pairs, -sparse.eye_array(len(pairs), format="csr"), bounds)

    @classmethod
    def dissimilar(cls, pairs: ArrayLike, lower: ArrayLike) -> Constraints:
        """``d_A(i, j) ≥ l`` (2.3), one ``l`` for all pairs or one for each."""
        pairs = np.asarray(pairs)
        bounds = np.broadcast_to(np.asarray(lower, dtype=float), len(pairs)).copy()
        return cls(pairs, sparse.eye_array(len(pairs), format="csr"), bounds)

    @classmethod
    def relative(cls, triplets: ArrayLike, margin: ArrayLike = 1.0) -> Constraints:
        """``d_A(i, j) ≤ d_A(i, k) − m`` for triplets ``(i, j, k)`` (2.7); the anchor is ``i`` both times.

        A pair that many triplets share is measured once.
        """
        triplets = np.asarray(triplets)
        m = len(triplets)
        pairs, place = np.unique(
            np.concatenate([triplets[:, [0, 1]], triplets[:, [0, 2]]]), axis=0, return_inverse=True
        )
        place = place.reshape(2, m)
        coefficients = np.repeat([-1.0, 1.0], m)
        rows = np.tile(np.arange(m), 2)
        mixing = sparse.csr_array((coefficients, (rows, place.ravel())), shape=(m, len(pairs)))
        return cls(pairs, mixing, np.broadcast_to(np.asarray(margin, dtype=float), m).copy())

    def __add__(self, other: Constraints) -> Constraints:
        return Constraints(
            np.concatenate([self.pairs, other.pairs]),
            sparse.block_diag([self.mixing, other.mixing], format="csr"),
            np.concatenate([self.bounds, other.bounds]),
        )

    def __len__(self) -> int:
        return len(self.bounds)

    def violations(self, distances: Array) -> Array:
        """By how much each inequality fails ``(m,)`` at these distances of the pairs ``(p,)``."""
        return np.asarray(np.maximum(self.bounds - self.mixing @ distances, 0.0))


def random_pairs(labels: Array, count: int, rng: np.random.RandomState) -> tuple[Array, Array]:
    """At most ``count`` distinct pairs ``(m, 2)``, half of one class and half of two, and which are which.

    Where the data has fewer of a kind, all of that kind are taken.
    """
    half = max(1, count // 2)
    similar = _distinct_pairs(labels, half, rng, same_class=True)
    dissimilar = _distinct_pairs(labels, half, rng, same_class=False)
    kinds = np.repeat([True, False], [len(similar), len(dissimilar)])
    return np.concatenate([similar, dissimilar]), kinds


def _distinct_pairs(labels: Array, count: int, rng: np.random.RandomState, *, same_class: bool) -> Array:
    """Up to ``count`` distinct pairs ``i < j`` of one class, or of two."""
    n = len(labels)
    if n * (n - 1) // 2 <= 8 * count:  # few pairs in all: list them, draw without replacement
        first, second = np.triu_indices(n, k=1)
        wanted = (labels[first] == labels[second]) == same_class
        pairs = np.stack([first[wanted], second[wanted]], axis=1)
        return pairs if len(pairs) <= count else pairs[rng.permutation(len(pairs))[:count]]
    first = rng.randint(n, size=8 * count)
    if same_class:  # the partner is drawn inside the class: a random one would rarely be in it
        order = np.argsort(labels, kind="stable")
        sizes = np.bincount(labels)
        starts = np.cumsum(sizes) - sizes
        own = labels[first]
        second = order[starts[own] + (rng.random_sample(len(first)) * sizes[own]).astype(int)]
    else:
        second = rng.randint(n, size=8 * count)
    wanted = (first != second) & ((labels[first] == labels[second]) == same_class)
    drawn = np.stack([np.minimum(first, second)[wanted], np.maximum(first, second)[wanted]], axis=1)
    _, earliest = np.unique(drawn, axis=0, return_index=True)
    return drawn[np.sort(earliest)[:count]]


def target_neighbours(X: Array, labels: Array, k: int) -> Array:
    """Pairs ``(p, 2)`` of a row and each of its ``k`` nearest rows of the same class, sorted by row.

    A class with ``k`` members or fewer gives each member all the others.
    """
    found = []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        near = _nearest(X[members], min(k, len(members) - 1))
        found.append(np.stack([np.repeat(members, near.shape[1]), members[near].ravel()], axis=1))
    pairs = np.concatenate(found)
    return pairs[np.argsort(pairs[:, 0], kind="stable")]


def _nearest(X: Array, k: int) -> Array:
    """The ``k`` nearest other rows of each row, nearest first: ``(n, k)``."""
    distances = SquaredDistances(X)
    near = np.empty((len(X), k), dtype=np.intp)
    for block in row_blocks(len(X), len(X)):
        near[block] = np.argsort(distances.rows_without_self(block), axis=1, kind="stable")[:, :k]
    return near


def neighbour_triplets(X: Array, labels: Array, n_neighbors: int, n_impostors: int) -> Array:
    """Triplets ``(m, 3)``: each row, its target neighbours, and its nearest rows of other classes."""
    impostors = np.empty((len(X), min(n_impostors, len(X) - np.bincount(labels).max())), dtype=np.intp)
    distances = SquaredDistances(X)
    for block in row_blocks(len(X), len(X)):
        D = distances.rows(block)
        D[labels[block, None] == labels] = np.inf
        impostors[block] = np.argsort(D, axis=1, kind="stable")[:, : impostors.shape[1]]
    targets = target_neighbours(X, labels, n_neighbors)
    far = impostors[targets[:, 0]]
    return np.column_stack([np.repeat(targets, far.shape[1], axis=0), far.ravel()])


def distance_bounds(
    X: Array, pairs: Array, upper: float | None = None, lower: float | None = None
) -> tuple[float, float]:
    """The bounds ``(u, l)`` on squared distances: those given, else read off the data.

    What is not given is the 5th or 95th percentile of the pairs' squared Euclidean distances, as Davis et
    al. (2007) choose them; pairs of equal points do not count.
    """
    if upper is None or lower is None:
        d = np.square(X[pairs[:, 0]] - X[pairs[:, 1]]).sum(axis=1)
        if not d.any():
            raise ValueError("every pair is a pair of equal points: no distance to learn from")
        low, high = np.percentile(d[d > 0], (5, 95))
        upper, lower = low if upper is None else upper, high if lower is None else lower
    if not (upper > 0 and lower > 0):
        raise ValueError(f"upper and lower are squared distances above 0, got {upper} and {lower}")
    return float(upper), float(lower)


def default_pair_count(labels: Array) -> int:
    """20 pairs for each pair of classes, as Davis et al. (2007) draw them, but no more than 20,000."""
    return int(min(20 * (labels.max() + 1) ** 2, 20_000))
