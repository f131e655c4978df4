from __future__ import annotations

import pytest
from running import execute, new_run

from nearkin.recipe import Recipe, RecipeError, open_data


def test_standard_trains_on_every_class_that_is_not_for_testing(small_recipe, tmp_path):
    values = small_recipe | {"protocol": {"name": "standard"}}
    result = execute(new_run(tmp_path / "run", Recipe.parse(values))).result
    assert (result.rule, result.epoch) == ("last epoch", 2)
    assert (result.data.train.samples, result.data.train.classes) == (240, 30)
    assert result.validation is None
    assert result.data.validation is None


def test_a_training_stops_where_the_recipe_says_on_the_same_schedule(small_recipe, tmp_path):
    values = small_recipe | {"protocol": {"name": "standard"}, "training": {"epochs": 4}}
    whole = new_run(tmp_path / "whole", Recipe.parse(values))
    execute(whole)
    stopped = new_run(tmp_path / "stopped", whole.recipe.changed({"training.stop_after": 2}))
    result = execute(stopped).result
    assert result.epoch == 2
    assert "training.stop_after" in result.rule
    timeless = [[{**row, "seconds": 0} for row in run.metrics()] for run in (stopped, whole)]
    assert timeless[0] == timeless[1][:3]


def test_stopping_after_the_end_is_a_mistake():
    with pytest.raises(RecipeError, match="training: stop_after=5 lies after the last of 4 epochs"):
        Recipe.parse({"training": {"epochs": 4, "stop_after": 5}})


def test_the_two_halves_do_not_meet(small_recipe):
    data_set = open_data(Recipe.parse(small_recipe))
    assert not {*data_set.train.class_names, *data_set.validation.class_names} & {*data_set.test.class_names}
