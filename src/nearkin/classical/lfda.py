"""Local Fisher Discriminant Analysis."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from scipy import linalg

from nearkin.classical.arrays import Array
from nearkin.classical.base import LEARNERS, SupervisedLearner
from nearkin.classical.pairwise import SquaredDistances
from nearkin.classical.parameters import AT_LEAST_ONE, COMPONENTS, NOT_NEGATIVE, StrOptions
from nearkin.classical.scatter import refuse_singular, varying_directions, within_scatter


@LEARNERS.register("lfda")
class LFDA(SupervisedLearner):
    """Fisher's discriminant, with points of one class drawn together only where they are neighbours already.

    ``max_T  tr((Tᵀ S_w T)⁻¹ Tᵀ S_b T)``,  ``S = ½ Σ_ij W_ij (x_i − x_j)(x_i − x_j)ᵀ``,

    with ``W^w_ij = a_ij / n_c`` inside a class and 0 elsewhere, ``W^b_ij = a_ij (1/n − 1/n_c)`` inside a
    class and ``1/n`` elsewhere, and the affinity ``a_ij = exp(−‖x_i − x_j‖² / (σ_i σ_j))``, ``σ_i`` the
    distance from i to its ``n_neighbors``-th neighbour in its class.

    Source: Sugiyama, "Dimensionality Reduction of Multimodal Labeled Data by Local Fisher Discriminant
    Analysis", JMLR 2007.

    Use it for classes with several clusters; one eigenproblem, no iteration.

    Args:
        n_components: dimensions of the result; None keeps all.
        n_neighbors: the neighbour that sets the local scale.
        embedding: ``"weighted"`` (each direction scaled by the root of its eigenvalue), ``"orthonormal"``
            (orthonormal directions) or ``"plain"``.
        ridge: share of the mean local within-class scatter added in every direction, so that n < d is no
            obstacle. Directions in which the data does not vary at all (constant features) get the weight 0.

    Attributes:
        components_: ``Tᵀ (n_components, n_features)``; fewer rows where the data varies in fewer directions.

    >>> from sklearn.datasets import load_wine
    >>> X, y = load_wine(return_X_y=True)
    >>> LFDA(2).fit_transform(X, y).shape
    (178, 2)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_components": COMPONENTS,
        "n_neighbors": [AT_LEAST_ONE],
        "embedding": [StrOptions({"weighted", "orthonormal", "plain"})],
        "ridge": [NOT_NEGATIVE],
    }

    def __init__(
        self,
        n_components: int | None = None,
        *,
        n_neighbors: int = 7,
        embedding: str = "weighted",
        ridge: float = 1e-6,
    ) -> None:
        self.n_components = n_components
        self.n_neighbors = n_neighbors
        self.embedding = embedding
        self.ridge = ridge

    def _learn(self, X: Array, labels: Array) -> Array:
        X = X.astype(np.float64) - X.mean(axis=0, dtype=np.float64)
        directions = varying_directions(X, self.n_components)
        Y = X @ directions
        within, between = self._local_scatters(Y, labels)
        d = Y.shape[1]
        within += self.ridge * max(np.trace(within), np.finfo(float).tiny) / d * np.eye(d)
        refuse_singular(linalg.eigvalsh(within) > np.finfo(float).eps * np.trace(within), self.ridge)
        values, vectors = linalg.eigh(between, within)
        k = min(self.n_components or X.shape[1], d)
        values, vectors = values[::-1][:k], vectors[:, ::-1][:, :k]
        if self.embedding == "weighted":
            vectors = vectors * np.sqrt(np.maximum(values, 0.0))
        elif self.embedding == "orthonormal":
            vectors = linalg.qr(vectors, mode="economic")[0]
        return np.asarray((directions @ vectors).T)

    def _local_scatters(self, X: Array, labels: Array) -> tuple[Array, Array]:
        """The local within-class and between-class scatters ``(d, d)`` of centred ``X``."""
        n, d = X.shape
        within, mixture = np.zeros((d, d)), X.T @ X
        for label in range(int(labels.max()) + 1):
            members = X[labels == label]
            local = _affine_scatter(members, self.n_neighbors)
            within += local / len(members)
            whole_class = within_scatter(members, np.zeros(len(members), dtype=np.intp))
            mixture += (local - len(members) * whole_class) / n
        return within, mixture - within


def _affine_scatter(X: Array, n_neighbors: int) -> Array:
    """``½ Σ a_ij (x_i − x_j)(x_i − x_j)ᵀ`` over the points of one class, locally scaled affinities a."""
    k = min(n_neighbors, len(X) - 1)
    D = np.maximum(SquaredDistances(X).rows(slice(0, len(X))), 0.0)
    np.fill_diagonal(D, 0.0)
    scale = np.sqrt(np.partition(D, k, axis=1)[:, k])
    local = np.outer(scale, scale)
    # A scale of 0 means many equal points: only they are neighbours.
    affinity = np.exp(-np.divide(D, local, out=np.where(D > 0, np.inf, 0.0), where=local > 0))
    return np.asarray((X * affinity.sum(axis=1)[:, None]).T @ X - X.T @ affinity @ X)
