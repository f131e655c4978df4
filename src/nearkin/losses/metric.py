"""By which measure of nearness a margin is meant."""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.losses.similarity import distance, distance_and_inverse

METRICS = ("cosine", "squared_euclidean", "euclidean")


def nearness(S: Tensor, metric: str) -> Tensor:
    """S itself, ``−D² = 2S − 2`` or ``−D``: larger is nearer; differentiable in S.

    >>> nearness(torch.tensor([1.0, 0.5]), "euclidean")
    tensor([-0., -1.])
    """
    if metric == "cosine":
        return S
    return 2 * S - 2 if metric == "squared_euclidean" else -distance(S)


def nearness_and_slope(S: Tensor, metric: str) -> tuple[Tensor, Tensor | int]:
    """The same, and its derivative by S."""
    if metric == "cosine":
        return S, 1
    if metric == "squared_euclidean":
        return torch.mul(S, 2).sub_(2), 2
    D, inverse = distance_and_inverse(S)
    return D.neg_(), inverse


def of_identical(metric: str) -> int:
    """The nearness of two vectors that are the same."""
    return 1 if metric == "cosine" else 0
