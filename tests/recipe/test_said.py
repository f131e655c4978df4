"""What a recipe does not say stays unsaid until it is used."""

from __future__ import annotations

import sys

from nearkin.recipe import Recipe

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def test_another_loss_gets_its_own_sampler_in_python():
    recipe = Recipe().changed({"loss.name": "multi_similarity"})
    assert recipe.sampler.name is None
    assert recipe.resolved().sampler.name == "balanced"
    assert recipe.changed({"loss.name": "proxy_anchor"}).resolved().sampler.name == "random"


def test_another_loss_gets_its_own_sampler_from_a_written_recipe(tmp_path):
    file = tmp_path / "my.toml"
    file.write_text(Recipe.parse({}).to_toml())
    changed = Recipe.read(file, ["loss.name=multi_similarity"])
    assert changed.resolved().sampler.name == "balanced"


def test_a_recipe_made_by_its_constructor_remembers_what_it_was_given():
    assert Recipe(seed=3).changed({"training.epochs": 2}).seed == 3


def test_a_written_recipe_says_what_was_chosen_and_why_and_reads_as_it_was_said():
    recipe = Recipe.parse({"loss": {"name": "triplet"}, "seed": 4})
    text = recipe.to_toml()
    assert '# name = "balanced"  # chosen: triplet compares the samples of a batch' in text
    assert "seed = 4\n" in text
    assert "# epochs = 12  # default" in text
    assert "# weights =  # not set" in text
    again = Recipe.parse(tomllib.loads(text))
    assert again == recipe
    assert again.said == {"loss": {"name": "triplet"}, "seed": 4}


def test_complete_settings_do_not_depend_on_whether_a_default_was_said():
    unsaid, said = (
        Recipe.parse({}),
        Recipe.parse({"loss": {"name": "proxy_anchor", "margin": 0.1}, "seed": 0}),
    )
    assert unsaid.complete() == said.complete()


def test_an_empty_table_that_means_something_is_kept():
    recipe = Recipe.parse({"loss": {"name": "contrastive", "language": {}}})
    assert [one.name for one in recipe.loss.modifiers] == ["language"]
    assert Recipe.parse(tomllib.loads(recipe.to_toml())).loss.modifiers == recipe.loss.modifiers
