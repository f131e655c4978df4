from __future__ import annotations

import dataclasses

import pytest
import torch
from running import execute, new_run

from nearkin.data import DataSet, SampleSet, Vectors
from nearkin.protocols import FixedValidation, seal
from nearkin.protocols.fixed_validation import default_share
from nearkin.recipe import Recipe, RecipeError, open_data


@pytest.fixture
def glyphs(small_recipe):
    return seal(open_data(Recipe.parse(small_recipe)))[0]


def test_a_data_sets_own_split_is_used(glyphs):
    assert FixedValidation().split(glyphs, 0) == (glyphs.train, glyphs.validation)


def test_without_one_as_many_classes_as_are_needed_are_held_out(glyphs):
    bare = dataclasses.replace(glyphs, validation=None)
    train, validation = FixedValidation().split(bare, 0)
    assert (train.num_classes, validation.num_classes) == (18, 9)
    assert {*train.class_names, *validation.class_names} == {*bare.train.class_names}


def test_a_share_that_is_asked_for_is_taken_of_all_training_classes(glyphs):
    protocol = FixedValidation(validation_share=0.4)
    train, validation = protocol.split(glyphs, 0)
    assert (train.num_classes, validation.num_classes) == (18, 12)
    everything = {*glyphs.train.class_names, *glyphs.validation.class_names}
    assert {*train.class_names, *validation.class_names} == everything
    assert protocol.split(glyphs, 0)[1].class_names == validation.class_names
    assert protocol.split(glyphs, 1)[1].class_names != validation.class_names


def test_the_chosen_epoch_is_the_best_on_validation(small_recipe, tmp_path):
    run = new_run(tmp_path / "run", Recipe.parse(small_recipe | {"training": {"epochs": 5}}))
    result = execute(run).result
    rows = [row for row in run.metrics() if row["epoch"] > 0]
    best = max(rows, key=lambda row: (row["recall_at_1"], row["map_at_r"], row["epoch"]))
    assert (result.rule, result.epoch) == ("best epoch on validation classes", best["epoch"])
    assert result.validation.recall_at[1] == best["recall_at_1"]


def test_a_share_belongs_to_fixed_validation():
    with pytest.raises(RecipeError, match="protocol 'standard' has no keyword 'validation_share'"):
        Recipe.parse({"protocol": {"name": "standard", "validation_share": 0.1}})


def of_classes(classes: int) -> DataSet:
    labels = torch.arange(classes).repeat_interleave(2)
    return DataSet("made up", SampleSet(Vectors(torch.arange(2.0 * classes).unsqueeze(1)), labels))


@pytest.mark.parametrize("classes", [4, 5, 6, 7, 29, 30, 44, 45, 46, 100, 149, 150, 151, 155, 1000, 11318])
def test_a_tenth_is_held_out_but_at_least_fifteen_where_there_are_enough(classes):
    train, validation = FixedValidation().split(of_classes(classes), seed=0)
    assert validation.num_classes == max(round(classes / 10), min(15, round(classes / 3)), 2)
    assert train.num_classes + validation.num_classes == classes
    if classes >= 30:
        assert validation.num_classes >= 10
    if classes >= 45:
        assert validation.num_classes >= 15


def test_the_default_share_is_never_more_than_half():
    assert all(0 < default_share(classes) <= 0.5 for classes in range(1, 500))
    assert [default_share(classes) for classes in (2, 3, 4)] == [0.5, 0.5, 0.5]
    assert default_share(1000) == 0.1


@pytest.mark.parametrize(
    ("share", "classes", "held_out"),
    [(0.5, 3, "2 would"), (0.1, 14, "1 would"), (0.9, 10, "9 would"), (None, 2, "1 would")],
)
def test_both_sides_need_two_classes(share, classes, held_out):
    with pytest.raises(ValueError, match=rf"{classes} training classes are too few .*{held_out} be held out"):
        FixedValidation(share).split(of_classes(classes), seed=0)


def test_two_classes_on_each_side_are_enough():
    assert FixedValidation(0.5).split(of_classes(4), seed=0)[1].num_classes == 2
    assert FixedValidation(0.8).split(of_classes(10), seed=0)[0].num_classes == 2


@pytest.mark.parametrize("share", [0, 1, -0.1, 1.1])
def test_a_share_lies_between_nothing_and_all(share):
    with pytest.raises(ValueError, match=f"validation_share={share} must lie between 0 and 1"):
        FixedValidation(share)
