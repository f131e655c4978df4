from __future__ import annotations

import json
import statistics

import pytest
import torch
from running import embedder_of, execute, new_run

from nearkin.data import DataSet, SampleSet, Vectors
from nearkin.evaluation import RetrievalScores, retrieval_scores
from nearkin.protocols import CrossValidation, score_test, seal
from nearkin.protocols.cross_validation import of_fold
from nearkin.recipe import Recipe, RecipeError, open_data
from nearkin.training import Description, Observer, Run
from nearkin.training.result import mean_scores, over_networks

# Thesis, Table 13: R@1 on the test set of ten folds; Table 12 says 63.61 ± 0.59.
TABLE_13 = [64.25, 63.67, 63.60, 63.76, 64.28, 64.24, 63.35, 63.33, 63.23, 62.34]


def test_the_thesis_mean_and_deviation():
    rest = {"precision_at_1": 0.0, "mean_reciprocal_rank": 0.0, "map_at_r": 0.0, "r_precision": 0.0}
    counts = {"queries": 10, "queries_without_positive": 0}
    scores = [RetrievalScores(recall_at={1: value}, **rest, **counts) for value in TABLE_13]
    mean, deviation = mean_scores(scores).recall_at[1], over_networks(statistics.stdev, scores)["recall_at_1"]
    assert mean == pytest.approx(63.61, abs=0.006)
    assert deviation == pytest.approx(0.59, abs=0.006)


@pytest.fixture
def recipe(small_recipe):
    return Recipe.parse(small_recipe | {"protocol": {"name": "cross_validation", "folds": 3}})


@pytest.mark.parametrize("folds", [2, 4, 10, 15])
def test_every_class_is_validated_exactly_once(folds, recipe):
    training_data, _ = seal(open_data(recipe))
    everything = {*training_data.all_classes.class_names}
    validated = []
    for fold in range(folds):
        train, validation = CrossValidation(folds=folds).fold_splits(training_data, 0, fold)
        assert {*train.class_names} == everything - {*validation.class_names}
        validated.append(validation.class_names)
    flat = [name for names in validated for name in names]
    assert sorted(flat) == sorted(everything)
    assert max(map(len, validated)) - min(map(len, validated)) <= 1
    assert flat != sorted(flat)  # consecutive classes may be alike: folds are drawn at random
    other = CrossValidation(folds=folds).fold_splits(training_data, 1, 0)
    assert other[1].class_names != validated[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"protocol.folds": 16}, "30 training classes in 16 folds .* set protocol.folds=15"),
        ({"protocol.fold": 3}, "protocol: fold=3 of 3 folds: they are counted from 0"),
    ],
)
def test_folds_that_cannot_be(changes, message, recipe, tmp_path):
    with pytest.raises(ValueError, match=message):
        execute(new_run(tmp_path / "run", recipe.changed(changes)))


def test_one_fold_is_none():
    with pytest.raises(RecipeError, match="protocol: folds=1 must be at least 2"):
        Recipe.parse({"protocol": {"name": "cross_validation", "folds": 1}})


class Heard(Observer):
    def __init__(self) -> None:
        self.stages: list[str] = []

    def stage(self, text: str) -> None:
        self.stages.append(text)


def test_the_result_is_made_of_the_folds(recipe, tmp_path):
    run = new_run(tmp_path / "run", recipe)
    heard = Heard()
    finished = execute(run, heard)
    assert [text for text in heard.stages if "fold" in text] == [f"fold {n} of 3" for n in (1, 2, 3)]
    result = finished.result
    folds = [Run.existing(run.path / f"fold-0{fold}") for fold in range(3)]
    data_set = open_data(recipe)
    opened = [score_test(embedder_of(fold), data_set, (1, 2, 4, 8)) for fold in folds]
    recalls = [one.scores.recall_at[1] for one in opened]
    assert [fold.test.recall_at[1] for fold in result.networks] == pytest.approx(recalls)
    assert result.test.recall_at[1] == pytest.approx(sum(recalls) / 3)
    assert result.test_deviation["recall_at_1"] == pytest.approx(statistics.stdev(recalls))
    rows = torch.cat([e / e.norm(dim=1, keepdim=True) for e in (o.query_embeddings for o in opened)], dim=1)
    assert rows.shape == (240, 48)
    expected = retrieval_scores(rows, data_set.test.labels).to_dict()
    assert result.concatenated.to_dict() == pytest.approx(expected)
    for fold, part in zip(folds, result.networks, strict=True):
        assert (run.path / part.run) == fold.path
        assert part.epoch == fold.result.epoch
        assert fold.result.test == part.test
        assert fold.terms["protocol"]["fold"] == int(part.run[-2:])
        assert fold.queries()[0].recall_at[1] == part.test.recall_at[1]
    assert run.cost()["training_seconds"] == pytest.approx(
        sum(fold.cost()["training_seconds"] for fold in folds), abs=0.002
    )
    assert result.opened.query_embeddings.shape == (240, 48)
    parts = Run.existing(run.path).parts()
    assert [scores.recall_at[1] for scores, _ in parts] == recalls
    assert all(labels.equal(data_set.test.labels) for _, labels in parts)
    assert run.cost()["peak_memory_bytes"] == max(fold.cost()["peak_memory_bytes"] for fold in folds)
    alone = execute(new_run(tmp_path / "alone", recipe.changed({"protocol.fold": 2}))).result
    assert (alone.test, alone.validation) == (folds[2].result.test, folds[2].result.validation)


class Interruption(Exception):
    pass


class StopInFold(Observer):
    """Breaks off in the first epoch of a fold."""

    def __init__(self, fold: int) -> None:
        self.fold, self.begun = fold, -1

    def begin(self, **_):
        self.begun += 1

    def step(self, **_):
        if self.begun == self.fold:
            raise Interruption


def test_an_interrupted_cross_validation_ends_with_the_same_result(recipe, tmp_path):
    execute(new_run(tmp_path / "whole", recipe))
    run = new_run(tmp_path / "broken", recipe)
    with pytest.raises(Interruption):
        execute(run, StopInFold(1))
    assert (run.path / "fold-01").is_dir()
    assert not (run.path / "fold-02").exists()
    execute(new_run(run.path, recipe))  # opened anew, as another process would
    whole, broken = (
        json.loads((tmp_path / name / "result.json").read_text()) for name in ("whole", "broken")
    )
    assert whole == broken


def test_two_classes_per_fold_are_enough():
    labels = torch.arange(6).repeat_interleave(2)
    data = DataSet("made up", SampleSet(Vectors(torch.arange(12.0).unsqueeze(1)), labels))
    protocol = CrossValidation(folds=3)
    for fold in range(3):
        train, validation = protocol.fold_splits(data, 0, fold)
        assert (train.num_classes, validation.num_classes) == (4, 2)
    everything, held_out = protocol.split(data, 0)
    assert (everything.num_classes, held_out) == (6, None)
    with pytest.raises(ValueError, match="6 training classes in 4 folds .* set protocol.folds=3 or less"):
        CrossValidation(folds=4).split(data, 0)


def test_folds_are_counted_from_nought():
    assert CrossValidation().folds == 10
    assert CrossValidation(folds=2, fold=0).fold == 0
    assert CrossValidation(folds=2, fold=1).fold == 1
    for fold in (-1, 2):
        with pytest.raises(ValueError, match=f"fold={fold} of 2 folds: they are counted from 0"):
            CrossValidation(folds=2, fold=fold)


def test_a_fold_says_whose_it_is():
    told = of_fold(Description("seed = 3\n", {"seed": 3, "protocol": {"folds": 4}}, {"a": "b"}), 2)
    assert told.terms == {"seed": 3, "protocol": {"folds": 4, "fold": 2}}
    assert told.text.startswith("# Fold 2 of the run in the directory above")
    assert told.text.endswith("\nseed = 3\n")
    assert told.chosen == {"a": "b"}


@pytest.mark.parametrize(("folds", "fold"), [(2, None), (3, None), (3, 2)])
def test_the_smallest_fold_is_the_one_with_the_fewest_classes(folds, fold):
    """Eleven classes in three folds leave seven, seven and eight to learn from."""
    protocol = CrossValidation(folds, fold)
    data = DataSet("given", SampleSet(Vectors(torch.zeros(22, 2)), torch.arange(22) // 2))
    counts = [protocol.fold_splits(data, 0, one)[0].num_classes for one in range(folds)]
    assert protocol.fewest(data, 0).num_classes == (min(counts) if fold is None else counts[fold])
