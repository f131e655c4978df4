"""A closer look at a finished run: scores with their spread, clusters, and what goes wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearkin.atomic import write_json
from nearkin.data import DataSet, SampleSet
from nearkin.evaluation import (
    ClusteringScores,
    Diagnostics,
    Interval,
    bootstrap_intervals,
    clustering_intervals,
    clustering_scores,
    diagnostics,
)
from nearkin.networks import Embedder
from nearkin.observer import Observer
from nearkin.protocols.sealed import concatenated, score_test
from nearkin.training import Run, TestEmbeddings


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
    """

    run: Run
    opened: TestEmbeddings
    intervals: dict[str, Interval]
    clustering: ClusteringScores
    diagnostics: Diagnostics
    file: Path

    @property
    def samples(self) -> SampleSet:
        """The samples that the diagnostics' rows and labels refer to."""
        return self.opened.queries


def open_again(
    embedders: Sequence[Embedder], data: DataSet, recall_at: Sequence[int], observer: Observer
) -> TestEmbeddings:
    """The test classes through networks that are finished: of several, their embeddings side by side."""
    observer.stage("embedding the test classes")
    opened = [score_test(embedder, data, recall_at, observer) for embedder in embedders]
    return opened[0] if len(opened) == 1 else concatenated(recall_at, opened)


def examine(
    run: Run, embedders: Sequence[Embedder], data: DataSet, observer: Observer | None = None
) -> Examination:
    """Score a finished run's networks again, look into its failures, and write ``evaluation.json``.

    Args:
        run: A finished run.
        embedders: Its networks.
        data: Its data set.
        observer: Hears what is being done.
    """
    observer = observer or Observer()
    result = run.result
    recall_at = tuple(result.test.recall_at)
    opened = open_again(embedders, data, recall_at, observer)
    observer.stage("looking for what goes wrong")
    labels, seed = opened.queries.labels, int(run.terms.get("seed", 0))
    clustering = clustering_scores(opened.query_embeddings, labels, seed=seed, keep_assignment=True)
    found = Examination(
        run,
        opened,
        bootstrap_intervals(opened.scores, labels, seed=seed)
        | clustering_intervals(clustering, labels, seed=seed),
        clustering,
        diagnostics(opened.query_embeddings, labels, recall_at=recall_at),
        run.path / "evaluation.json",
    )
    write_json(found.file, _to_dict(found))
    return found


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
        **details,
    }
