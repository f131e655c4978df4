from __future__ import annotations

from nearkin.recipe import Recipe
from nearkin.recipe.building import training_settings
from nearkin.training import TrainingSettings


def test_the_defaults_are_those_of_a_recipe():
    assert training_settings(Recipe.parse({}).resolved()) == TrainingSettings()


def test_training_ends_at_the_last_epoch_or_where_it_is_told_to():
    assert TrainingSettings(epochs=7).last_epoch == 7
    assert TrainingSettings(epochs=7, stop_after=3).last_epoch == 3
