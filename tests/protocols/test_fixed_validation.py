from __future__ import annotations

import dataclasses

import pytest

from nearkin.protocols import execute, open_data, seal
from nearkin.protocols.fixed_validation import fixed_splits
from nearkin.training import Recipe, RecipeError, Run


@pytest.fixture
def glyphs(small_recipe):
    return seal(open_data(Recipe.parse(small_recipe)))[0]


def test_a_data_sets_own_split_is_used(small_recipe, glyphs):
    assert fixed_splits(Recipe.parse(small_recipe), glyphs) == (glyphs.train, glyphs.validation)


def test_without_one_a_tenth_of_the_classes_is_held_out(small_recipe, glyphs):
    bare = dataclasses.replace(glyphs, validation=None, all_classes=glyphs.train)
    train, validation = fixed_splits(Recipe.parse(small_recipe), bare)
    assert (train.num_classes, validation.num_classes) == (24, 3)
    assert {*train.class_names, *validation.class_names} == {*bare.train.class_names}


def test_a_share_that_is_asked_for_is_taken_of_all_training_classes(small_recipe, glyphs):
    recipe = Recipe.parse(small_recipe | {"protocol": {"validation_share": 0.4}})
    train, validation = fixed_splits(recipe, glyphs)
    assert (train.num_classes, validation.num_classes) == (18, 12)
    everything = {*glyphs.train.class_names, *glyphs.validation.class_names}
    assert {*train.class_names, *validation.class_names} == everything
    assert fixed_splits(recipe, glyphs)[1].class_names == validation.class_names
    other = recipe.changed({"seed": 1})
    assert fixed_splits(other, glyphs)[1].class_names != validation.class_names


def test_the_chosen_epoch_is_the_best_on_validation(small_recipe, tmp_path):
    run = Run.open(tmp_path / "run", Recipe.parse(small_recipe | {"training": {"epochs": 5}}))
    result = execute(run).result
    rows = [row for row in run.metrics() if row["epoch"] > 0]
    best = max(row["recall_at_1"] for row in rows)
    first_best = next(row["epoch"] for row in rows if row["recall_at_1"] == best)
    assert result["selection"] == {"rule": "best epoch on validation classes", "epoch": first_best}
    assert result["validation"]["recall_at_1"] == best


def test_a_share_belongs_to_fixed_validation():
    with pytest.raises(RecipeError, match="validation_share belongs to fixed_validation"):
        Recipe.parse({"protocol": {"name": "standard", "validation_share": 0.1}})
