"""A closer look at a finished run: scores with their spread, clusters, and what goes wrong."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearkin.atomic import write_json
from nearkin.data import SampleSet
from nearkin.evaluation import (
    ClusteringScores,
    Diagnostics,
    Interval,
    bootstrap_intervals,
    clustering_intervals,
    clustering_scores,
    diagnostics,
)
from nearkin.protocols.execution import Finished
from nearkin.protocols.sealed import score_test
from nearkin.protocols.training_data import open_data
from nearkin.training import Observer, Run, RunError, load_network


@dataclass(frozen=True)
class Examination:
    """What :func:`examine` finds.

    Attributes:
        finished: The run, with its test images and embeddings.
        intervals: Every retrieval and clustering score with its confidence interval over classes.
        clustering: How well clusters of the query embeddings match their classes.
        diagnostics: Classes, confusions, hubs and doubtful labels among the queries.
        file: Where all of it is written.
    """

    finished: Finished
    intervals: dict[str, Interval]
    clustering: ClusteringScores
    diagnostics: Diagnostics
    file: Path

    @property
    def images(self) -> SampleSet:
        """The images that the diagnostics' rows and labels speak of."""
        assert self.finished.opened is not None
        return self.finished.opened.queries


def examine(run: Run, observer: Observer | None = None) -> Examination:
    """Score a finished run's network again, look into its failures, and write ``evaluation.json``."""
    observer = observer or Observer()
    result = run.result()
    if result is None:
        raise RunError(
            f"{run.path} is not finished: run nearkin train with the same recipe and output to go on"
        )
    if "folds" in result:
        raise RunError(f"{run.path} has a network per fold: look into one of them, {run.path / 'fold-00'}")
    observer.stage("scoring the test classes")
    opened = score_test(load_network(run), open_data(run.recipe), run.recipe)
    observer.stage("looking for what goes wrong")
    labels, seed = opened.queries.labels, run.recipe.seed
    clustering = clustering_scores(opened.query_embeddings, labels, seed=seed, keep_assignment=True)
    found = Examination(
        Finished(run, result, opened),
        bootstrap_intervals(opened.scores, labels, seed=seed)
        | clustering_intervals(clustering, labels, seed=seed),
        clustering,
        diagnostics(opened.query_embeddings, labels, recall_at=run.recipe.evaluation.recall_at),
        run.path / "evaluation.json",
    )
    write_json(found.file, _to_dict(found))
    return found


def _to_dict(found: Examination) -> dict[str, Any]:
    """Plain values, with names for the numbers of classes and images."""
    assert found.finished.opened is not None
    details = found.diagnostics.to_dict()
    del details["retrieval"]
    names = found.images.class_names
    for entry in [*details["classes"], *details["confusions"], *details["label_doubts"]]:
        for key in ("label", "taken_for", "suggested"):
            if key in entry:
                entry[key] = names[entry[key]]
        if "index" in entry:
            entry["image"] = found.images.samples.name(entry["index"])
    return {
        "scores": found.finished.opened.scores.to_dict(),
        "intervals": {name: interval.to_dict() for name, interval in found.intervals.items()},
        "clustering": found.clustering.to_dict(),
        **details,
    }
