"""The test split, sealed: opened once, at the end of a run, through one function."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from nearkin.data import DataSet, ImageSet, common_labels
from nearkin.evaluation import RetrievalScores, retrieval_scores
from nearkin.networks import EmbeddingNetwork
from nearkin.training import Recipe
from nearkin.training.engine import embed_as


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

    queries: ImageSet
    query_embeddings: Tensor
    gallery: ImageSet | None
    gallery_embeddings: Tensor | None
    scores: RetrievalScores


class SealedTest:
    """The test split of a data set, for the end of a run.

    Training and selection are given train and validation images only; whoever holds this object can open it
    once.
    """

    def __init__(self, data_set: DataSet) -> None:
        self._data_set: DataSet | None = data_set
        self.num_images = len(data_set.test)
        self.num_classes = data_set.test.num_classes

    def open(self, network: EmbeddingNetwork, recipe: Recipe) -> Opened:
        """Score a network on the test classes; a second call is a ``RuntimeError``."""
        if self._data_set is None:
            raise RuntimeError("the test split of this run has been opened already")
        data_set, self._data_set = self._data_set, None
        return score_test(network, data_set, recipe)


def score_test(network: EmbeddingNetwork, data_set: DataSet, recipe: Recipe) -> Opened:
    """Embed the test classes and score them: queries against the gallery where the data set has one."""
    recall_at = recipe.evaluation.recall_at
    if data_set.query is None or data_set.gallery is None:
        embeddings = embed_as(recipe, network, data_set.test)
        scores = retrieval_scores(embeddings, data_set.test.labels, recall_at=recall_at, per_query=True)
        return Opened(data_set.test, embeddings, None, None, scores)
    queries, gallery = (embed_as(recipe, network, part) for part in (data_set.query, data_set.gallery))
    labels, gallery_labels = common_labels(data_set.query, data_set.gallery)
    scores = retrieval_scores(
        queries,
        labels,
        gallery=gallery,
        gallery_labels=gallery_labels,
        recall_at=recall_at,
        per_query=True,
    )
    return Opened(data_set.query, queries, data_set.gallery, gallery, scores)
