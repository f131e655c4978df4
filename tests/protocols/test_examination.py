from __future__ import annotations

import csv
import json
from dataclasses import replace

import pytest
import torch
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
    assert heard.stages == [
        "embedding the test classes",
        "embedding the training classes",
        "looking for what goes wrong",
    ]
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


def test_doubtful_labels_are_those_of_every_split_by_the_runs_own_network(run):
    data, embedder = open_data(run.recipe), embedder_of(run)
    heard = Heard()
    found = examine(run, [embedder], data, heard)
    chose = set(run.result.data.validation.class_names)
    learnt = data.all_classes
    assert learnt.num_classes > len(chose)
    by_name = [learnt.class_names[label] in chose for label in learnt.labels.tolist()]
    splits = ["validation" if held_out else "train" for held_out in by_name] + ["test"] * len(data.test)
    names = [part.samples.name(i) for part in (learnt, data.test) for i in range(len(part))]
    points = torch.cat([embedder.embed(learnt), embedder.embed(data.test)])
    classes = [part.class_names[int(n)] for part in (learnt, data.test) for n in part.labels]
    similarities = torch.nn.functional.normalize(points) @ torch.nn.functional.normalize(points).T
    near = similarities.fill_diagonal_(-2).topk(10).indices.tolist()
    doubted = [i for i, row in enumerate(near) if all(classes[j] != classes[i] for j in row)]
    expected = sorted((names[i], splits[i], classes[i]) for i in doubted)
    table = list(csv.DictReader((run.path / "doubtful_labels.csv").read_text().splitlines()))
    assert sorted((row["sample"], row["split"], row["label"]) for row in table) == expected
    written = json.loads(found.file.read_text())["doubtful_labels"]
    assert written["table"] == "doubtful_labels.csv"
    assert written["found"] == {one: [row[1] for row in expected].count(one) for one in written["found"]}
    assert list(written["found"]) == ["train", "validation", "test"]
    heard.stages.clear()
    alone = examine(run, [embedder], data, heard, test_only=True)
    assert "embedding the training classes" not in heard.stages
    assert set(alone.doubtful_labels.by_split) == {"test"}


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
    assert heard.stages[-2:] == ["looking for what goes wrong", "re-ranking"]
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
