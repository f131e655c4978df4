"""What the test classes say about a network, once they have been opened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from nearkin.data import SampleSet, common_labels
from nearkin.evaluation import RetrievalScores, retrieval_scores
from nearkin.training import Recipe


@dataclass(frozen=True)
class Opened:
    """What the test split says about a network.

    Attributes:
        queries: The images that search.
        query_embeddings: Of all of them ``(Q, D)``.
        gallery: The images that are found; ``None`` where queries search each other.
        gallery_embeddings: Of all of them ``(G, D)``.
        scores: How often kin is found, with the values of every query.
    """

    queries: SampleSet
    query_embeddings: Tensor
    gallery: SampleSet | None
    gallery_embeddings: Tensor | None
    scores: RetrievalScores


def scored(
    recipe: Recipe,
    queries: SampleSet,
    query_embeddings: Tensor,
    gallery: SampleSet | None = None,
    gallery_embeddings: Tensor | None = None,
) -> Opened:
    """Score embeddings ``(Q, D)`` among themselves, or against those of a gallery ``(G, D)``."""
    labels, gallery_labels = queries.labels, None
    if gallery is not None:
        labels, gallery_labels = common_labels(queries, gallery)
    scores = retrieval_scores(
        query_embeddings,
        labels,
        gallery=gallery_embeddings,
        gallery_labels=gallery_labels,
        recall_at=recipe.evaluation.recall_at,
        per_query=True,
    )
    return Opened(queries, query_embeddings, gallery, gallery_embeddings, scores)


def concatenated(recipe: Recipe, opened: Sequence[Opened]) -> Opened:
    """Several networks as one: their embeddings of length 1 in a row, ``(N, K·D)`` for K networks."""
    first = opened[0]
    queries = _row([one.query_embeddings for one in opened])
    if first.gallery is None:
        return scored(recipe, first.queries, queries)
    found = _row([one.gallery_embeddings for one in opened if one.gallery_embeddings is not None])
    return scored(recipe, first.queries, queries, first.gallery, found)


def _row(embeddings: Sequence[Tensor]) -> Tensor:
    return torch.cat([normalize(part, dim=1) for part in embeddings], dim=1)
