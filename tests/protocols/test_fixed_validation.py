from __future__ import annotations

import dataclasses

import pytest
from running import execute, new_run

from nearkin.protocols import FixedValidation, seal
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
