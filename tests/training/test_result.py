"""What a run found out: means by plain loops, round trips through JSON, and first-edition files."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from nearkin.cli.display import verdict_lines
from nearkin.data import SampleSet, Vectors
from nearkin.evaluation import Interval, RetrievalScores
from nearkin.training import DataSummary, NetworkResult, Result, SplitSummary, TestEmbeddings, result
from nearkin.training.result import Baseline, Start

RECIPE = {"loss": {"name": "nca"}, "seed": 3}


def scores(recall: float, map_at_r: float = 0.25, queries: int = 40) -> RetrievalScores:
    return RetrievalScores(
        recall_at={1: recall, 2: (1 + recall) / 2},
        precision_at_1=recall,
        mean_reciprocal_rank=0.75 * recall,
        queries=queries,
        queries_without_positive=2,
        map_at_r=map_at_r,
        r_precision=map_at_r / 2,
    )


def network(recall: float = 0.5, *, epoch: int = 4, run: str = ".", **changes) -> NetworkResult:
    data = DataSummary(
        SplitSummary(30, 3, ("a", "b", "c"), "1f"),
        SplitSummary(20, 2, ("d", "e"), "2e"),
        SplitSummary(40, 4, ("f", "g", "h", "i"), "3d"),
        ("one image was left out",),
    )
    made = NetworkResult(
        "best epoch on validation classes", epoch, data, scores(recall / 2), scores(recall), (), run
    )
    return replace(made, **changes)


def three_folds() -> list[NetworkResult]:
    return [
        network(0.50, epoch=4, run="fold-00", warnings=("epoch 2: it falls", "epoch 3: it stands still")),
        network(0.75, epoch=5, run="fold-01"),
        network(0.70, epoch=6, run="fold-02", warnings=("epoch 1: it collapses",)),
    ]


def by_hand(values: list[float]) -> tuple[float, float]:
    mean = sum(values) / len(values)
    return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


def through_json(found: Result) -> Result:
    return Result.from_dict(json.loads(json.dumps(found.to_dict(), allow_nan=False)))


def test_means_and_deviations_over_networks():
    folds = three_folds()
    found = Result.of(folds, recipe=RECIPE)
    for which, split in (("test", found.test), ("validation", found.validation)):
        plain = [getattr(fold, which).to_dict() for fold in folds]
        for name, mean in split.to_dict().items():
            expected, deviation = by_hand([one[name] for one in plain])
            assert mean == pytest.approx(expected), name
            if which == "test":
                assert found.test_deviation[name] == pytest.approx(deviation), name
    assert found.test.recall_at == pytest.approx({1: 0.65, 2: 0.825})
    assert (found.test.queries, type(found.test.queries)) == (40, int)


def test_counts_of_queries_stay_whole_numbers():
    found = result.mean_scores([scores(0.5, queries=10), scores(0.5, queries=11), scores(0.5, queries=11)])
    assert (found.queries, found.queries_without_positive) == (11, 2)


def test_one_networks_scores_are_the_runs():
    one = network(0.6, warnings=("epoch 2: it falls",))
    found = Result.of([one], recipe=RECIPE)
    assert (found.test, found.validation, found.test_deviation) == (one.test, one.validation, None)
    assert (found.rule, found.epoch) == ("best epoch on validation classes", 4)
    assert found.warnings == one.warnings
    assert found.data is one.data


def test_several_networks_are_told_apart():
    found = Result.of(three_folds(), recipe=RECIPE)
    assert (found.rule, found.epoch) == ("mean of 3 folds, best epoch on validation classes", None)
    assert found.warnings == (
        "fold-00: epoch 2: it falls",
        "fold-00: epoch 3: it stands still",
        "fold-02: epoch 1: it collapses",
    )
    assert found.data == three_folds()[0].data


def test_a_mean_over_some_of_the_networks_is_none():
    folds = three_folds()
    folds[1] = replace(folds[1], validation=None)
    assert Result.of(folds, recipe=RECIPE).validation is None


def test_values_of_queries_are_not_part_of_a_mean():
    opened = replace(scores(0.5), per_query=object())
    assert result.mean_scores([opened]).per_query is None


BASELINE = Result(
    RECIPE, (), scores(0.3), baseline=Baseline("lmnn", "LMNN of features", {"samples": 90, "classes": 9})
)


@pytest.mark.parametrize(
    "found",
    [
        Result.of([network()], recipe=RECIPE, chosen={"sampler.name": "a reason"}, network={"parameters": 7}),
        Result.of([network(validation=None)], recipe=RECIPE, disclosure={"seed": 3}),
        replace(Result.of(three_folds(), recipe=RECIPE), concatenated=scores(0.9)),
        BASELINE,
        replace(BASELINE, baseline=Baseline("frozen_features", "as they are")),
    ],
    ids=["one", "no validation", "folds", "baseline", "baseline that is not fitted"],
)
def test_a_result_is_read_as_it_was_written(found):
    assert through_json(found) == found


def test_what_is_in_memory_only_is_not_written():
    samples = SampleSet(Vectors(torch.eye(2)), ["a", "b"])
    opened = TestEmbeddings(samples, torch.eye(2), None, None, scores(0.5))
    found = Result.of([network(embedder=object())], recipe=RECIPE).with_opened(opened)
    assert found.opened is opened
    again = through_json(found)
    assert again == found
    assert (again.opened, again.networks[0].embedder) == (None, None)


def first_edition(recall: float, warnings: list[str]) -> dict:
    """``result.json`` of a run with one network, as the first edition wrote it."""
    return {
        "recipe": RECIPE,
        "selection": {"rule": "best epoch on validation classes", "epoch": 2},
        "warnings": warnings,
        "test": scores(recall).to_dict(),
        "validation": scores(recall / 2).to_dict(),
        "data": {
            "train": {"images": 30, "classes": 3},
            "validation": {"images": 20, "classes": 2},
            "test": {"images": 40, "classes": 4},
            "notes": ["one image was left out"],
        },
        "network": {"parameters": 12, "preprocessing": {"size": 16}},
        "disclosure": {"seed": 3},
    }


def test_a_result_of_the_first_edition_is_read():
    found = Result.from_dict(first_edition(0.5, ["epoch 2: it falls"]))
    assert (found.test, found.validation) == (scores(0.5), scores(0.25))
    assert (found.rule, found.epoch) == ("best epoch on validation classes", 2)
    assert found.warnings == ("epoch 2: it falls",)
    assert found.data.train == SplitSummary(30, 3)
    assert (found.data.validation.samples, found.data.test.classes) == (20, 4)
    assert found.data.notes == ("one image was left out",)
    assert (found.network["parameters"], found.disclosure, found.chosen) == (12, {"seed": 3}, {})
    assert [one.run for one in found.networks] == ["."]
    assert through_json(found) == found


def test_a_run_of_the_first_edition_without_validation_is_read():
    old = first_edition(0.5, [])
    old["validation"] = old["data"]["validation"] = None
    found = Result.from_dict(old)
    assert (found.validation, found.data.validation) == (None, None)


def test_folds_of_the_first_edition_are_read_with_their_warnings():
    ones = [first_edition(0.5, []), first_edition(0.7, [])]
    deviation = dict.fromkeys(ones[0]["test"], 0.1)
    old = ones[0] | {
        "selection": {"rule": "mean of 2 folds, best epoch on validation classes", "epoch": None},
        "test": scores(0.6).to_dict(),
        "test_standard_deviation": deviation,
        "concatenated": scores(0.9).to_dict(),
        "warnings": ["fold 1: epoch 2: it falls", "fold 10: nobody's"],
        "folds": [
            {"run": f"fold-0{number}"}
            | {key: one[key] for key in ("selection", "validation", "test", "data")}
            for number, one in enumerate(ones)
        ],
    }
    found = Result.from_dict(old)
    assert [(one.run, one.test.recall_at[1], one.epoch) for one in found.networks] == [
        ("fold-00", 0.5, 2),
        ("fold-01", 0.7, 2),
    ]
    assert (found.rule, found.epoch) == (old["selection"]["rule"], None)
    assert (found.test, found.concatenated) == (scores(0.6), scores(0.9))
    assert found.test_deviation == deviation
    assert found.warnings == ("fold-01: epoch 2: it falls",)
    assert through_json(found) == found


def test_a_baseline_of_the_first_edition_is_read():
    old = {
        "baseline": {"name": "rca", "description": "RCA", "fitted_on": {"images": 90, "classes": 9}},
        "recipe": RECIPE,
        "test": scores(0.3).to_dict(),
        "validation": None,
    }
    found = Result.from_dict(old)
    assert found.baseline == Baseline("rca", "RCA", {"samples": 90, "classes": 9})
    assert (found.rule, found.epoch, found.data, found.networks) == ("not trained", None, None, ())


def test_rows_for_tables():
    (row,) = Result.of([network(0.5)], recipe=RECIPE).rows()
    assert (row["network"], row["epoch"]) == (".", 4)
    assert (row["test_recall_at_1"], row["validation_recall_at_1"]) == (0.5, 0.25)
    assert not [key for key in row if "queries" in key]
    rows = Result.of(three_folds(), recipe=RECIPE).rows()
    assert [row["network"] for row in rows] == ["fold-00", "fold-01", "fold-02", "mean"]
    assert (rows[-1]["test_recall_at_1"], rows[-1]["epoch"]) == (pytest.approx(0.65), None)
    (row,) = BASELINE.rows()
    assert (row["network"], row["test_recall_at_1"]) == ("baseline", 0.3)
    assert "validation_recall_at_1" not in row


def test_what_a_result_says():
    one = Result.of([network(0.5, warnings=("epoch 2: it falls",))], recipe=RECIPE)
    assert str(one) == (
        "Recall@1 50.00 % on 40 test queries, MAP@R 25.00 %\n"
        "selected: best epoch on validation classes, epoch 4\n"
        "warning: epoch 2: it falls"
    )
    _, deviation = by_hand([0.5, 0.75, 0.7])
    folds = str(Result.of([replace(one, warnings=()) for one in three_folds()], recipe=RECIPE))
    assert folds == (
        f"Recall@1 65.00 % on 40 test queries (± {100 * deviation:.2f} over 3 networks), MAP@R 25.00 %\n"
        "selected: mean of 3 folds, best epoch on validation classes"
    )
    page = Result.of([network(0.5, rule="a < b", validation=None)], recipe=RECIPE)._repr_html_()
    assert "<caption>a &lt; b</caption>" in page
    assert "<td>50.00 %</td>" in page
    assert "<td>4</td>" in page
    assert "<td></td>" in BASELINE._repr_html_()


def test_a_run_that_chose_epoch_0_says_that_nothing_was_trained():
    start = Start("frozen features", scores(0.6), Interval(-0.1, -0.2, -0.05, 0.95, 4))
    trained, untrained = (Result.of([network(epoch=epoch)], recipe=RECIPE) for epoch in (4, 0))
    assert trained.verdict == ""
    assert replace(trained, start=start).verdict == "training hurt"
    found = replace(untrained, start=start)
    assert found.verdict == "nothing was trained: epoch 0 was chosen, the network before training"
    assert found.verdict in str(found)
    run = SimpleNamespace(result=found, terms={"network": {"weights": "imagenet"}}, path=Path("run"))
    run.description = None
    told = verdict_lines(run, start)
    assert told[0].startswith("Recall@1  60.00 frozen features, 50.00 with the new head: nothing was trained")
    assert "protocol.name=standard" in told[1]


def test_pandas_is_asked_for_by_name_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match="pip install pandas"):
        BASELINE.to_pandas()


def test_classes_are_listed_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(result, "_LISTED_CLASSES", 3)
    three = SampleSet(Vectors(torch.arange(4.0).unsqueeze(1)), list("abca"))
    four = SampleSet(Vectors(torch.arange(4.0).unsqueeze(1)), list("abcd"))
    assert SplitSummary.of(three) == SplitSummary(4, 3, ("a", "b", "c"), three.fingerprint())
    assert SplitSummary.of(four) == SplitSummary(4, 4, (), four.fingerprint())


@pytest.mark.parametrize(
    "made", [BASELINE, network(), network().data, network().data.train, BASELINE.baseline]
)
def test_results_cannot_be_changed(made):
    with pytest.raises(FrozenInstanceError):
        made.test = None
