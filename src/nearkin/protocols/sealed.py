"""The test split, sealed: opened once, at the end of a run, through one function."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nearkin.data import DataSet, ImageSet
from nearkin.evaluation import RetrievalScores, retrieval_scores
from nearkin.networks import EmbeddingNetwork
from nearkin.training import embed
from nearkin.training.recipe import Recipe


@dataclass(frozen=True)
class Opened:
    """What the test split says about a network.

    Attributes:
        queries: The images that search.
        query_embeddings: Of all of them ``(Q, D)``.
        gallery: The images that are found; ``None`` where queries search each other.
        gallery_embeddings: Of all of them ``(G, D)``.
        scores: How often kin is found.
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

    def embedded(images: ImageSet) -> Tensor:
        return embed(
            network,
            images,
            transform=recipe.data.transform,
            batch_size=recipe.evaluation.batch_size,
            workers=recipe.data.workers,
        )

    recall_at = recipe.evaluation.recall_at
    if data_set.query is None or data_set.gallery is None:
        embeddings = embedded(data_set.test)
        labels = data_set.test.labels.to(embeddings.device)
        scores = retrieval_scores(embeddings, labels, recall_at=recall_at)
        return Opened(data_set.test, embeddings, None, None, scores)
    queries, gallery = embedded(data_set.query), embedded(data_set.gallery)
    scores = retrieval_scores(
        queries,
        data_set.query.labels.to(queries.device),
        gallery=gallery,
        gallery_labels=labels_as_in(data_set.query, data_set.gallery).to(queries.device),
        recall_at=recall_at,
    )
    return Opened(data_set.query, queries, data_set.gallery, gallery, scores)


def labels_as_in(reference: ImageSet, images: ImageSet) -> Tensor:
    """The labels of ``images`` in the numbering of ``reference``; classes it lacks come after its own."""
    numbers = {name: number for number, name in enumerate(reference.class_names)}
    translation = [numbers.setdefault(name, len(numbers)) for name in images.class_names]
    return torch.tensor(translation)[images.labels]
