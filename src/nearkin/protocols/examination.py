"""A closer look at a finished run: scores with their spread, clusters, and what goes wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nearkin.atomic import write_json
from nearkin.data import DataSet, SampleSet, TwoModalities, common_labels
from nearkin.data.joining import join_samples
from nearkin.evaluation import (
    ClusteringScores,
    Diagnostics,
    Interval,
    PairedDifference,
    PairScores,
    ReidentificationScores,
    RetrievalScores,
    Whitening,
    bootstrap_intervals,
    clustering_intervals,
    clustering_scores,
    diagnostics,
    mean_intervals,
    paired_differences,
    reidentification_scores,
    reranked_scores,
)
from nearkin.evaluation.reranking import Reranking, checked_rerankings
from nearkin.networks import Embedder
from nearkin.observer import Observer
from nearkin.protocols.doubtful_labels import TABLE, DoubtfulLabels, Part, doubtful_labels
from nearkin.protocols.sealed import concatenated, score_test, side_by_side
from nearkin.protocols.verification import verified_with_intervals
from nearkin.training import DataSummary, Run, TestEmbeddings

_FEWEST_CLASSES = 3  # for an interval of clusters, which leaves one out


@dataclass(frozen=True)
class Reranked:
    """What a re-ranking makes of the test scores.

    Attributes:
        scores: After it.
        differences: Of every score, after minus before, with its confidence interval over classes.
    """

    scores: RetrievalScores
    differences: dict[str, PairedDifference]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "scores": self.scores.to_dict(),
            "differences": {name: one.to_dict() for name, one in self.differences.items()},
        }


@dataclass(frozen=True)
class Examination:
    """What :func:`examine` finds.

    Attributes:
        run: The run.
        opened: Its test samples and embeddings.
        intervals: Every retrieval and clustering score with its confidence interval over classes.
        clustering: How well clusters of the query embeddings match their classes.
        diagnostics: Classes, confusions, hubs and doubtful labels among the queries.
        file: Where all of it is written.
        reranked: Every re-ranking that was asked for, with its effect.
        reidentification: The same search across cameras, where the data knows them.
        doubtful_labels: Labels that no neighbour has, of the test classes and (unless they were left out) of
            all others, each with what it looks like.
        verification: Scores of the known pairs, where the data is of pairs; their intervals are among those.
        looked_at: The samples that clusters and diagnostics are of, where these are not the queries: of two
            modalities, the items of both.
    """

    run: Run
    opened: TestEmbeddings
    intervals: dict[str, Interval]
    clustering: ClusteringScores
    diagnostics: Diagnostics
    file: Path
    doubtful_labels: DoubtfulLabels
    reranked: dict[str, Reranked] = field(default_factory=dict)
    reidentification: ReidentificationScores | None = None
    verification: PairScores | None = None
    looked_at: SampleSet | None = None

    @property
    def samples(self) -> SampleSet:
        """The samples that the diagnostics' rows and labels refer to."""
        return self.looked_at or self.opened.queries


def open_again(
    embedders: Sequence[Embedder], data: DataSet, recall_at: Sequence[int], observer: Observer
) -> TestEmbeddings:
    """The test classes through networks that are finished: of several, their embeddings side by side."""
    observer.stage("embedding the test classes")
    opened = [score_test(embedder, data, recall_at, observer) for embedder in embedders]
    return opened[0] if len(opened) == 1 else concatenated(recall_at, opened)


def examine(
    run: Run,
    embedders: Sequence[Embedder],
    data: DataSet,
    observer: Observer | None = None,
    *,
    rerank: Sequence[str] = (),
    test_only: bool = False,
) -> Examination:
    """Score a finished run's networks again, look into its failures, and write ``evaluation.json``.

    Doubtful labels of all splits are written to ``doubtful_labels.csv``.

    Args:
        run: A finished run.
        embedders: Its networks.
        data: Its data set.
        observer: Hears what is being done.
        rerank: Re-rankings to measure: ``k_reciprocal``, ``query_expansion``, ``whitening`` (fitted on the
            classes that are not for testing).
        test_only: Whether doubtful labels are looked for among the test classes alone, so that no training
            sample is embedded.
    """
    observer = observer or Observer()
    methods = checked_rerankings(rerank)
    result = run.result
    recall_at = tuple(result.test.recall_at)
    opened = open_again(embedders, data, recall_at, observer)
    learnt = None
    if "whitening" in methods or (_has_classes(data.train) and not test_only):
        observer.stage("embedding the training classes")
        learnt = side_by_side([one.embed(data.all_classes, progress=observer.progress) for one in embedders])
    observer.stage("looking for what goes wrong")
    seed = int(run.terms.get("seed", 0))
    looked_at, embeddings = _looked_at(opened, data)
    labels = looked_at.labels
    reidentification, across_cameras = _reidentified(opened, recall_at, seed, observer)
    verification, of_pairs = verified_with_intervals(opened, result.threshold, seed)
    clustering = clustering_scores(embeddings, labels, seed=seed, keep_assignment=True)
    several = len(labels.unique()) >= _FEWEST_CLASSES
    found = Examination(
        run,
        opened,
        of_pairs
        | bootstrap_intervals(opened.scores, opened.queries.labels, seed=seed)
        | across_cameras
        | (clustering_intervals(clustering, labels, seed=seed) if several else {}),
        clustering,
        diagnostics(embeddings, labels, recall_at=recall_at),
        run.path / "evaluation.json",
        doubtful_labels(
            _all_parts(
                data,
                None if test_only else learnt,
                result.data,
                Part("test", looked_at, embeddings),
                opened,
            )
        ),
        reidentification=reidentification,
        verification=verification,
        looked_at=looked_at,
    )
    if methods:
        whitening = Whitening.fit(learnt) if learnt is not None and "whitening" in methods else None
        observer.stage("re-ranking")
        effects: dict[str, Reranked] = {name: _reranked(name, opened, whitening, seed) for name in methods}
        found = replace(found, reranked=effects)
    found.doubtful_labels.write_table(run.path / TABLE)
    write_json(found.file, _to_dict(found))
    return found


def _looked_at(opened: TestEmbeddings, data: DataSet) -> tuple[SampleSet, Tensor]:
    """What clusters and diagnostics are of: the queries, or the items of both modalities."""
    queries, gallery = opened.queries, opened.gallery
    if data.test is None or not isinstance(data.test.samples, TwoModalities):
        return queries, opened.query_embeddings
    assert gallery is not None
    assert opened.gallery_embeddings is not None
    both = join_samples(gallery.samples, queries.samples)
    labels = torch.cat([gallery.labels, queries.labels])  # in one numbering, that of the pairs
    together = torch.cat([opened.gallery_embeddings, opened.query_embeddings])
    return SampleSet(both, labels, gallery.class_names), together


def _all_parts(
    data: DataSet, learnt: Tensor | None, summary: DataSummary | None, looked_at: Part, opened: TestEmbeddings
) -> list[Part]:
    """What doubtful labels are looked for in: what taught the network, what was held out, and the test."""
    parts = [*_other_parts(data, learnt, summary), looked_at]
    if looked_at.samples is opened.queries and opened.gallery is not None:
        assert opened.gallery_embeddings is not None
        parts.append(Part("test", opened.gallery, opened.gallery_embeddings))
    return parts


def _has_classes(samples: SampleSet) -> bool:
    """Whether samples have labels of their own, and not pairs of them an answer."""
    return samples.pairs is None and not isinstance(samples.samples, TwoModalities)


def _other_parts(data: DataSet, embeddings: Tensor | None, summary: DataSummary | None) -> list[Part]:
    """What taught the network, and the classes that were held out of that, as the result names them."""
    if embeddings is None or not _has_classes(data.train):
        return []
    samples = data.all_classes
    chose = () if summary is None or summary.validation is None else summary.validation.class_names
    held_out = set(chose) - set(() if summary is None else summary.train.class_names)
    by_class = [name in held_out for name in samples.class_names]
    is_held_out = torch.tensor([*by_class, False])[samples.labels]  # the last is for samples without a label
    rows = {"train": (~is_held_out).nonzero().flatten(), "validation": is_held_out.nonzero().flatten()}
    return [Part(split, samples.select(own), embeddings[own]) for split, own in rows.items() if len(own)]


def _reidentified(
    opened: TestEmbeddings, ranks: Sequence[int], seed: int, observer: Observer
) -> tuple[ReidentificationScores | None, dict[str, Interval]]:
    """Scores and intervals of the search across cameras, where every test sample has a camera."""
    queries, gallery = opened.queries, opened.gallery or opened.queries
    if queries.cameras is None or gallery.cameras is None:
        return None, {}
    rows = opened.query_embeddings if opened.gallery_embeddings is None else opened.gallery_embeddings
    labels, gallery_labels = common_labels(queries, gallery)
    try:
        found = reidentification_scores(
            opened.query_embeddings,
            labels,
            queries.cameras,
            gallery=rows,
            gallery_labels=gallery_labels,
            gallery_cameras=gallery.cameras,
            ranks=ranks,
            per_query=True,
        )
    except ValueError as error:  # no class was seen by two cameras
        observer.warning(f"no scores of re-identification: {error}")
        return None, {}
    assert found.per_query is not None
    classes = labels[found.per_query.indices]
    return found, mean_intervals(found.per_query.scores(ranks), classes, seed=seed)


def _reranked(name: Reranking, opened: TestEmbeddings, whitening: Whitening | None, seed: int) -> Reranked:
    labels, gallery_labels = opened.queries.labels, None
    if opened.gallery is not None:
        labels, gallery_labels = common_labels(opened.queries, opened.gallery)
    after = reranked_scores(
        name,
        opened.query_embeddings,
        labels,
        gallery=opened.gallery_embeddings,
        gallery_labels=gallery_labels,
        whitening=whitening,
        recall_at=tuple(opened.scores.recall_at),
        per_query=True,
    )
    return Reranked(after, paired_differences(opened.scores, after, labels, seed=seed))


def _to_dict(found: Examination) -> dict[str, Any]:
    """Plain values, with names for the numbers of classes and samples."""
    details = found.diagnostics.to_dict()
    del details["retrieval"]
    names = found.samples.class_names
    for entry in [*details["classes"], *details["confusions"], *details["label_doubts"]]:
        for key in ("label", "taken_for", "suggested"):
            if key in entry:
                entry[key] = names[entry[key]]
        if "index" in entry:
            entry["sample"] = found.samples.samples.name(entry["index"])
    return {
        "scores": found.opened.scores.to_dict(),
        "intervals": {name: interval.to_dict() for name, interval in found.intervals.items()},
        "clustering": found.clustering.to_dict(),
        "reranked": {name: one.to_dict() for name, one in found.reranked.items()},
        "reidentification": None if found.reidentification is None else found.reidentification.to_dict(),
        "doubtful_labels": {"table": TABLE, "found": found.doubtful_labels.by_split},
        "verification": None if found.verification is None else found.verification.to_dict(),
        **details,
    }
