from __future__ import annotations

import json
from dataclasses import replace

import pytest
from running import embedder_of, finished

from nearkin.evaluation import (
    Whitening,
    bootstrap_intervals,
    clustering_scores,
    diagnostics,
    reranked_scores,
    retrieval_scores,
)
from nearkin.observer import Observer
from nearkin.protocols import examine
from nearkin.protocols.sealed import side_by_side
from nearkin.recipe import open_data
from nearkin.training import Run


class Heard(Observer):
    def __init__(self) -> None:
        self.stages: list[str] = []

    def stage(self, text: str) -> None:
        self.stages.append(text)


@pytest.fixture
def run(small_recipe, tmp_path) -> Run:
    values = small_recipe | {"training": {"epochs": 1}, "seed": 5, "evaluation": {"recall_at": [1, 3]}}
    return finished(tmp_path / "run", values)


def test_a_finished_run_is_examined_by_its_own_settings(run):
    data, heard = open_data(run.recipe), Heard()
    embedder = embedder_of(run)
    found = examine(run, [embedder], data, heard)
    embeddings, labels = embedder.embed(data.test), data.test.labels
    assert heard.stages == ["embedding the test classes", "looking for what goes wrong"]
    assert found.opened.scores.to_dict() == pytest.approx(run.result.test.to_dict())
    scores = retrieval_scores(embeddings, labels, recall_at=(1, 3), per_query=True)
    expected = bootstrap_intervals(scores, labels, seed=5)
    assert {name: found.intervals[name] for name in expected} == expected
    clusters = clustering_scores(embeddings, labels, seed=5)
    assert found.clustering.to_dict() == clusters.to_dict()
    assert {*clusters.to_dict()} & {*found.intervals} - {*expected}
    details = diagnostics(embeddings, labels, recall_at=(1, 3))
    assert found.diagnostics.to_dict() == details.to_dict()
    assert found.samples is found.opened.queries


def test_what_is_written_names_classes_and_samples(run):
    data = open_data(run.recipe)
    found = examine(run, [embedder_of(run)], data)
    assert found.file == run.path / "evaluation.json"
    written = json.loads(found.file.read_text())
    names = data.test.class_names
    assert written["scores"] == found.opened.scores.to_dict()
    assert {*written["intervals"]} == {*found.intervals}
    assert "retrieval" not in written
    for entry, one in zip(written["classes"], found.diagnostics.classes, strict=True):
        assert entry["label"] == names[one.label]
    for entry, one in zip(written["confusions"], found.diagnostics.confusions, strict=True):
        assert (entry["label"], entry["taken_for"]) == (names[one.label], names[one.taken_for])
    assert written["label_doubts"]
    for entry, one in zip(written["label_doubts"], found.diagnostics.label_doubts, strict=True):
        assert (entry["label"], entry["suggested"]) == (names[one.label], names[one.suggested])
        assert entry["sample"] == data.test.samples.name(one.index)


def test_several_networks_are_examined_side_by_side(run):
    data, embedder = open_data(run.recipe), embedder_of(run)
    found = examine(run, [embedder, replace(embedder)], data)
    assert found.opened.query_embeddings.shape == (240, 32)
    assert found.opened.scores.to_dict() == pytest.approx(run.result.test.to_dict())


@pytest.mark.parametrize("networks", [1, 2])
def test_rerankings_are_measured_on_request(run, networks):
    data, heard = open_data(run.recipe), Heard()
    embedders = [embedder_of(run)] * networks
    methods = ("k_reciprocal", "query_expansion", "whitening")
    found = examine(run, embedders, data, heard, rerank=methods)
    assert heard.stages[-2:] == ["embedding the training classes, to whiten", "re-ranking"]
    embeddings, labels = found.opened.query_embeddings, data.test.labels
    learnt = side_by_side([one.embed(data.all_classes) for one in embedders])
    for name in methods:
        one = found.reranked[name]
        expected = reranked_scores(
            name, embeddings, labels, recall_at=(1, 3), whitening=Whitening.fit(learnt)
        )
        assert one.scores == expected
        change = one.differences["map_at_r"]
        assert change.difference == pytest.approx(expected.map_at_r - found.opened.scores.map_at_r)
        assert change.low <= change.difference <= change.high
    written = json.loads(found.file.read_text())["reranked"]
    assert set(written) == set(methods)
    with pytest.raises(ValueError, match="rerank='best' is unknown"):
        examine(run, embedders, data, rerank=["best"])
