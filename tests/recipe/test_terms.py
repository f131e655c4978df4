from __future__ import annotations

import pytest

from nearkin import losses
from nearkin.recipe import Recipe, RecipeError
from nearkin.recipe.terms import published
from nearkin.training.schedules import MultiStep


@pytest.mark.parametrize("loss", sorted(published()))
def test_published_terms_are_a_whole_recipe_that_may_be_changed(loss):
    recipe = Recipe.parse(
        {"terms": "published", "loss": {"name": loss}, "network": {"weights": None, "embedding_dim": 7}}
    )
    assert recipe.loss.name == loss
    assert recipe.network.name in {"bninception", "resnet50"}
    assert (recipe.network.embedding_dim, recipe.network.weights) == (7, "imagenet")  # None says nothing
    assert Recipe.parse(recipe.complete()).complete() == recipe.complete()  # what a run directory keeps
    assert published()[loss]


def test_losses_differ_in_everything_under_published_terms_and_in_nothing_else_under_equal_ones():
    def apart_from_the_loss(terms, name):
        values = Recipe.parse({"terms": terms, "loss": {"name": name}}).complete()
        return {key: value for key, value in values.items() if key != "loss"}

    names = sorted(published())
    assert len({str(apart_from_the_loss("published", name)) for name in names}) == len(names)
    for proxies in (True, False):
        alike = [name for name in losses.names() if losses.compares_samples(name) != proxies]
        assert len({str(apart_from_the_loss("equal", name)) for name in alike}) == 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"terms": "published", "loss": {"name": "contrastive"}},
            "no published terms are known for contrastive",
        ),
        (
            {"terms": "thesis"},
            "the thesis has no terms for convnet on glyphs, only for resnet50, bninception",
        ),
        ({"terms": "thesis_code", "loss": {"name": "nca"}}, "the thesis has no terms for nca"),
        ({"terms": "thesis", "loss": {"name": "nca"}}, "the thesis has no terms for nca"),
        ({"terms": "fair"}, "terms: input should be"),
        ({"schedule": {"name": "multi_step"}}, "milestones"),
        ({"schedule": {"milestones": [3]}}, "has no keyword 'milestones'"),
        ({"schedule": {"name": "multi_step", "milestones": [3, 2]}}, "must be rising"),
        ({"optimizer": {"name": "sgd", "eps": 0.1}}, "sgd"),
    ],
)
def test_mistakes_are_named(values, message):
    with pytest.raises(RecipeError, match=message):
        Recipe.parse(values)


def test_multi_step_falls_at_its_milestones():
    schedule = Recipe.parse({"terms": "published", "loss": {"name": "soft_triple"}}).schedule
    falls = MultiStep(**schedule.keywords)
    factors = [falls(epoch, 50, 0) for epoch in (0, 18.9, 19, 38.9, 39, 49)]
    assert factors == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])
