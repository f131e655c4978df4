"""The test split, sealed: opened once, at the end of a run, through one function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import normalize

from nearkin.data import DataSet, SampleSet, TwoModalities, common_labels
from nearkin.data.two_modalities import modality
from nearkin.evaluation import RetrievalScores, retrieval_scores
from nearkin.networks import Embedder
from nearkin.observer import Observer
from nearkin.training import Scorer, TestEmbeddings


class SealedTest:
    """The test split of a data set, for the end of a run.

    It holds the only way to the test samples. Training, selection and search are given a data set without a
    test split; this object opens it, once.
    """

    def __init__(self, data_set: DataSet) -> None:
        if data_set.test is None:
            raise ValueError(f"{data_set.name} has no test split")
        self._data_set: DataSet | None = data_set
        self._opened: DataSet | None = None

    def open(
        self, embedders: Sequence[Embedder], recall_at: Sequence[int], observer: Observer | None = None
    ) -> list[TestEmbeddings]:
        """Score networks on the test classes; a second call is a ``RuntimeError``."""
        data_set = self._intact()
        self._data_set, self._opened = None, data_set
        return [score_test(embedder, data_set, recall_at, observer) for embedder in embedders]

    def open_with_start(
        self,
        start: Embedder,
        embedders: Sequence[Embedder],
        recall_at: Sequence[int],
        observer: Observer | None = None,
    ) -> tuple[TestEmbeddings | None, list[TestEmbeddings]]:
        """The same, and the scores of what training started from: ``None`` where that cannot be scored.

        An untrained network may map everything to zero; that is no reason to lose a run.
        """
        data_set = self._intact()
        opened = self.open(embedders, recall_at, observer)
        try:
            return score_test(start, data_set, recall_at, observer), opened
        except ValueError:
            return None, opened

    def score_opened(self, embedder: Embedder, recall_at: Sequence[int]) -> RetrievalScores:
        """The test scores of another network, once the test split has been opened for those selected.

        Raises:
            RuntimeError: It is still sealed.
        """
        if self._opened is None:
            raise RuntimeError("the test split is still sealed: networks are audited after the selection")
        return replace(score_test(embedder, self._opened, recall_at).scores, per_query=None)

    def unsealed_scores(self, recall_at: Sequence[int]) -> Scorer:
        """Break the seal: a function that tells the test scores of any network, any number of times.

        For ``standard_best_on_test``, whose results say that the test classes chose the epoch, and for
        nothing else.
        """
        data_set = self._intact()
        return lambda embedder: replace(score_test(embedder, data_set, recall_at).scores, per_query=None)

    def _intact(self) -> DataSet:
        if self._data_set is None:
            raise RuntimeError("the test split of this run has been opened already")
        return self._data_set


def seal(data_set: DataSet) -> tuple[DataSet, SealedTest]:
    """A data set in two parts: what may be learnt from, and the test split, sealed."""
    return data_set.without_test(), SealedTest(data_set)


def prepared(embedder: Embedder, data_set: DataSet, observer: Observer) -> DataSet:
    """The samples, or the activations of the embedder's trunk: of all at once, however they will be split."""
    if embedder.trunk is None:
        return data_set
    everything = data_set.all_classes
    observer.stage(f"computing what {embedder.trunk} makes of {len(everything):,} samples, once")
    seen = embedder.prepared(everything, flips=True, progress=observer.progress)
    learnt = len(data_set.train)
    return replace(
        data_set,
        train=seen.select(range(learnt)),
        validation=seen.select(range(learnt, len(seen))) if data_set.validation else None,
    )


def score_test(
    embedder: Embedder, data_set: DataSet, recall_at: Sequence[int], observer: Observer | None = None
) -> TestEmbeddings:
    """Embed the test classes and score them: queries against the gallery where the data set has one.

    Of two modalities, the second searches in the first.
    """
    assert data_set.test is not None
    progress = None if observer is None else observer.progress
    if isinstance(data_set.test.samples, TwoModalities):
        embeddings = embedder.embed(data_set.test, progress=progress)
        searching, found = (modality(data_set.test, embeddings, number) for number in (1, 0))
        return scored(recall_at, *searching, *found)
    if data_set.query is None or data_set.gallery is None:
        return scored(recall_at, data_set.test, embedder.embed(data_set.test, progress=progress))
    queries, gallery = (
        embedder.embed(part, progress=progress) for part in (data_set.query, data_set.gallery)
    )
    return scored(recall_at, data_set.query, queries, data_set.gallery, gallery)


def scored(
    recall_at: Sequence[int],
    queries: SampleSet,
    query_embeddings: Tensor,
    gallery: SampleSet | None = None,
    gallery_embeddings: Tensor | None = None,
) -> TestEmbeddings:
    """Score embeddings ``(Q, D)`` among themselves, or against those of a gallery ``(G, D)``."""
    labels, gallery_labels = queries.labels, None
    if gallery is not None:
        labels, gallery_labels = common_labels(queries, gallery)
    scores = retrieval_scores(
        query_embeddings,
        labels,
        gallery=gallery_embeddings,
        gallery_labels=gallery_labels,
        recall_at=recall_at,
        per_query=True,
    )
    return TestEmbeddings(queries, query_embeddings, gallery, gallery_embeddings, scores)


def by_size(
    recall_at: Sequence[int], opened: TestEmbeddings, sizes: Sequence[int]
) -> dict[int, RetrievalScores]:
    """The scores of the first dimensions of test embeddings alone, by their number."""

    def first(size: int) -> RetrievalScores:
        gallery = opened.gallery_embeddings
        cut = None if gallery is None else gallery[:, :size]
        found = scored(recall_at, opened.queries, opened.query_embeddings[:, :size], opened.gallery, cut)
        return replace(found.scores, per_query=None)

    return {size: first(size) for size in sizes}


def concatenated(recall_at: Sequence[int], opened: Sequence[TestEmbeddings]) -> TestEmbeddings:
    """Several networks as one: their embeddings of length 1 in a row, ``(N, K·D)`` for K networks."""
    first = opened[0]
    queries = _row([one.query_embeddings for one in opened])
    if first.gallery is None:
        return scored(recall_at, first.queries, queries)
    found = _row([one.gallery_embeddings for one in opened if one.gallery_embeddings is not None])
    return scored(recall_at, first.queries, queries, first.gallery, found)


def side_by_side(embeddings: Sequence[Tensor]) -> Tensor:
    """Several networks' embeddings of length 1 in a row, ``(N, K·D)``; of one network as they are."""
    return embeddings[0] if len(embeddings) == 1 else _row(embeddings)


def _row(embeddings: Sequence[Tensor]) -> Tensor:
    return torch.cat([normalize(part, dim=1) for part in embeddings], dim=1)
