from __future__ import annotations

import pytest
import torch
from interruptions import Interruption, StopAfterEpoch
from running import execute, finished, load_network, new_run
from safetensors.torch import save_file

import nearkin
from nearkin.data import DataSet, SampleSet, Vectors
from nearkin.protocols import FixedValidation, Retrained
from nearkin.recipe import Recipe


def retrained(values: dict, **training) -> dict:
    return values | {
        "protocol": {"name": "retrained", "validation_share": 0.4},
        "training": {"epochs": 4} | training,
    }


def test_all_classes_teach_for_as_many_epochs_as_were_chosen(small_recipe, tmp_path):
    run = finished(tmp_path / "run", retrained(small_recipe))
    result = run.result
    rows = [row for row in run.selection_metrics() if row["epoch"] > 0]
    best = max(rows, key=lambda row: (row["recall_at_1"], row["map_at_r"], row["epoch"]))
    assert result.epoch == best["epoch"] == run.metrics()[-1]["epoch"]
    assert result.validation.recall_at[1] == best["recall_at_1"]
    assert result.rule == "trained on all classes, for as many epochs as validation classes chose"
    data = result.data
    assert (data.train.classes, data.validation.classes) == (30, 12)
    assert set(data.validation.class_names) < set(data.train.class_names)
    assert all("recall_at_1" not in row for row in run.metrics()), "nothing is scored on classes that teach"


def test_the_network_is_that_of_a_training_on_all_classes_alone(small_recipe, tmp_path):
    run = finished(tmp_path / "run", retrained(small_recipe))
    alone = small_recipe | {
        "protocol": {"name": "standard"},
        "training": {"epochs": 4, "stop_after": run.result.epoch},
    }
    other = execute(new_run(tmp_path / "alone", alone))
    for name, weights in load_network(other).state_dict().items():
        assert torch.equal(weights, load_network(run).state_dict()[name]), name
    assert run.result.test == other.result.test


def test_the_choice_is_that_of_fixed_validation(small_recipe, tmp_path):
    run = finished(tmp_path / "run", retrained(small_recipe))
    fixed = retrained(small_recipe) | {"protocol": {"name": "fixed_validation", "validation_share": 0.4}}
    chosen = execute(new_run(tmp_path / "fixed", fixed)).result
    assert (run.result.epoch, run.result.validation) == (chosen.epoch, chosen.validation)
    assert run.result.threshold == chosen.threshold


@pytest.mark.parametrize("epoch", [1, 3, 5])
def test_it_goes_on_where_it_was_stopped(small_recipe, tmp_path, epoch):
    values = retrained(small_recipe)
    whole = finished(tmp_path / "whole", values).result
    with pytest.raises(Interruption):
        execute(new_run(tmp_path / "run", values), StopInAll(epoch))
    again = execute(new_run(tmp_path / "run", values)).result
    assert again.to_dict() == whole.to_dict()


class StopInAll(StopAfterEpoch):
    """Stops after so many epochs of both trainings together."""

    def __init__(self, epochs: int) -> None:
        super().__init__(10**6)
        self._left = epochs

    def epoch_end(self, row) -> None:
        if row["epoch"] > 0:
            self._left -= 1
        if self._left == 0:
            raise Interruption


def test_what_is_left_can_be_loaded_and_keeps_no_first_network(small_recipe, tmp_path):
    run = finished(tmp_path / "run", retrained(small_recipe))
    kept = {file.name for file in run.path.rglob("*.safetensors")}
    assert kept == {"network.safetensors", "test_queries.safetensors"}
    assert not list(run.selection_path.rglob("*.safetensors"))
    model = nearkin.load(run.path)
    assert model.threshold == run.result.threshold
    assert run.cost()["training_seconds"] > 0


def of_classes(classes: int) -> DataSet:
    labels = torch.arange(classes).repeat_interleave(2)
    return DataSet("made up", SampleSet(Vectors(torch.arange(2.0 * classes).unsqueeze(1)), labels))


@pytest.mark.parametrize("classes", [4, 6, 20, 45, 100, 1000])
def test_more_classes_choose_than_where_they_are_lost_to_training(classes):
    held_out = Retrained().split(of_classes(classes), seed=0)[1].num_classes
    fixed = FixedValidation().split(of_classes(classes), seed=0)[1].num_classes
    assert held_out == max(round(0.3 * classes), fixed)


def test_a_pretrained_network_that_no_epoch_improves_is_kept_as_it_was(small_recipe, tmp_path):
    first = execute(new_run(tmp_path / "first", small_recipe | {"protocol": {"name": "standard"}}))
    save_file(load_network(first).backbone.state_dict(), tmp_path / "weights.safetensors")
    values = retrained(small_recipe, epochs=2) | {
        "network": small_recipe["network"] | {"weights": str(tmp_path / "weights.safetensors")},
        "optimizer": {"lr": 1.0, "clip": 1.0},
        "schedule": {"name": "constant", "warmup": 0.0},
    }
    run = new_run(tmp_path / "run", Recipe.parse(values))
    result = execute(run).result
    rows = run.selection_metrics()
    best = max(rows, key=lambda row: (row["recall_at_1"], row["map_at_r"], row["epoch"]))
    assert result.epoch == best["epoch"] == 0, rows
    assert [row["epoch"] for row in run.metrics()] == [0]
