from __future__ import annotations

import json
import statistics

import pytest
import torch

from nearkin.evaluation import retrieval_scores
from nearkin.protocols import execute, open_data, score_test, seal
from nearkin.protocols.cross_validation import fold_splits, over_folds
from nearkin.training import Observer, Recipe, RecipeError, Run, load_network

# Thesis, Table 13: R@1 on the test set of ten folds; Table 12 says 63.61 ± 0.59.
TABLE_13 = [64.25, 63.67, 63.60, 63.76, 64.28, 64.24, 63.35, 63.33, 63.23, 62.34]


def test_the_thesis_mean_and_deviation():
    scores = [{"recall_at_1": value} for value in TABLE_13]
    mean, deviation = (over_folds(of, scores)["recall_at_1"] for of in (statistics.fmean, statistics.stdev))
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
        one = recipe.changed({"protocol.folds": folds, "protocol.fold": fold})
        train, validation = fold_splits(one, training_data)
        assert {*train.class_names} == everything - {*validation.class_names}
        validated.append(validation.class_names)
    flat = [name for names in validated for name in names]
    assert sorted(flat) == sorted(everything)
    assert max(map(len, validated)) - min(map(len, validated)) <= 1
    assert flat != sorted(flat)  # consecutive classes may be alike: folds are drawn at random
    other = recipe.changed({"seed": 1, "protocol.folds": folds, "protocol.fold": 0})
    assert fold_splits(other, training_data)[1].class_names != validated[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"protocol.folds": 16}, "30 classes in 16 folds .* lower protocol.folds"),
        ({"protocol.fold": 3}, "protocol.fold=3 of 3 folds: they are counted from 0"),
    ],
)
def test_folds_that_cannot_be(changes, message, recipe, tmp_path):
    with pytest.raises(ValueError, match=message):
        execute(Run.open(tmp_path / "run", recipe.changed(changes)))


def test_one_fold_is_none():
    with pytest.raises(RecipeError, match="protocol.folds: input should be greater than or equal to 2"):
        Recipe.parse({"protocol": {"name": "cross_validation", "folds": 1}})


def test_the_result_is_made_of_the_folds(recipe, tmp_path):
    run = Run.open(tmp_path / "run", recipe)
    finished = execute(run)
    result = finished.result
    folds = [Run.existing(run.path / f"fold-0{fold}") for fold in range(3)]
    data_set = open_data(recipe)
    opened = [score_test(load_network(fold), data_set, recipe) for fold in folds]
    recalls = [one.scores.recall_at[1] for one in opened]
    assert [fold["test"]["recall_at_1"] for fold in result["folds"]] == recalls
    assert result["test"]["recall_at_1"] == pytest.approx(sum(recalls) / 3)
    assert result["test_standard_deviation"]["recall_at_1"] == pytest.approx(statistics.stdev(recalls))
    rows = torch.cat([e / e.norm(dim=1, keepdim=True) for e in (o.query_embeddings for o in opened)], dim=1)
    assert rows.shape == (240, 48)
    expected = retrieval_scores(rows, data_set.test.labels).to_dict()
    assert result["concatenated"] == pytest.approx(expected)
    for fold, part in zip(folds, result["folds"], strict=True):
        assert (run.path / part["run"]) == fold.path
        assert part["selection"]["epoch"] == fold.result()["selection"]["epoch"]
        assert fold.result()["test"] == part["test"]
        assert fold.result()["recipe"]["protocol"]["fold"] == int(part["run"][-2:])
        assert fold.queries()[0].recall_at[1] == part["test"]["recall_at_1"]
    assert run.cost()["training_seconds"] == pytest.approx(
        sum(fold.cost()["training_seconds"] for fold in folds), abs=0.002
    )
    assert finished.opened.query_embeddings.shape == (240, 48)
    alone = execute(Run.open(tmp_path / "alone", recipe.changed({"protocol.fold": 2}))).result
    assert alone == folds[2].result()


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
    execute(Run.open(tmp_path / "whole", recipe))
    run = Run.open(tmp_path / "broken", recipe)
    with pytest.raises(Interruption):
        execute(run, StopInFold(1))
    assert (run.path / "fold-01").is_dir()
    assert not (run.path / "fold-02").exists()
    execute(run)
    whole, broken = (
        json.loads((tmp_path / name / "result.json").read_text()) for name in ("whole", "broken")
    )
    assert whole == broken
