from __future__ import annotations

import pytest

from nearkin.losses import Choices, Range, Softmax
from nearkin.recipe import Recipe
from nearkin.recipe.searching import parse_range, searched
from nearkin.training import RunError
from nearkin.tuning.plan import SearchPlan, plan_search


def test_the_loss_brings_its_own_ranges_and_the_user_adds_some():
    plan = plan_search(searched(Recipe.parse({"loss": {"name": "triplet"}}), ["optimizer.lr=1e-4:1e-2:log"]))
    assert plan.space == {
        "loss.margin": Range(0.0, 1.0, step=0.1),
        "optimizer.lr": Range(1e-4, 1e-2, log=True),
    }


def test_a_user_can_look_elsewhere_and_hold_a_value_still():
    plan = plan_search(searched(Recipe.parse({}), ["loss.alpha=16:64:16", "loss.margin=0.2"]))
    assert plan.space == {"loss.alpha": Range(16.0, 64.0, step=16.0), "loss.margin": Choices(0.2)}
    assert plan.grid_size == 4


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("loss.margin=0:1", Range(0.0, 1.0)),
        ("network.embedding_dim=32:128", Range(32.0, 128.0, whole=True)),
        ("training.epochs=2:8:2", Range(2.0, 8.0, step=2.0, whole=True)),
        ("optimizer.name=adam,sgd", Choices("adam", "sgd")),
        ("network.layer_norm=true,false", Choices(True, False)),
        ("schedule.warmup=0,0.5", Choices(0, 0.5)),
    ],
)
def test_ranges(text, where):
    assert parse_range(Recipe.parse({}), text) == (text.split("=")[0], where)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("loss.margin", "--range loss.margin: write KEY=LOW:HIGH"),
        ("loss.margin=0:1:2:3", "write KEY=LOW:HIGH"),
        ("loss.margin=a:b", "--range loss.margin=a:b: could not convert"),
        ("loss.margin=1:0", "low < high"),
        ("loss.margn=0:1", "did you mean margin"),
        ("optimzer.lr=0.1:1", "unknown key optimzer: did you mean optimizer"),
        ("loss.margin=-1:1", "margin=-1 must be"),
        ("seed.x=1:2", "seed: input should be a valid integer"),
        ("network.pooling=avg,median", "unknown pooling 'median'"),
    ],
)
def test_ranges_that_cannot_be(text, message):
    with pytest.raises(ValueError, match=message):
        parse_range(Recipe.parse({}), text)


@pytest.mark.parametrize(
    ("values", "keywords", "message"),
    [
        ({"protocol": {"name": "standard"}}, {}, "a search selects on validation classes"),
        ({"protocol": {"name": "standard_best_on_test"}}, {}, "a search selects on validation classes"),
        ({}, {"sampler": "gird"}, "sampler='gird' must be one of: tpe, random, grid"),
        ({}, {"pruner": "mean"}, "pruner='mean' must be one of"),
        (
            {"loss": {"name": "multi_similarity"}},
            {"sampler": "grid", "ranges": ["optimizer.lr=0.1:1"]},
            "points",
        ),
    ],
)
def test_plans_that_cannot_be(values, keywords, message):
    with pytest.raises(ValueError, match=message):
        plan_search(searched(Recipe.parse(values), keywords.pop("ranges", ())), **keywords)


def test_a_loss_without_a_search_space_has_nothing_to_search(monkeypatch):
    monkeypatch.setattr(Softmax, "searches_rate", False)
    with pytest.raises(ValueError, match="softmax has nothing to search: say what, with --range"):
        plan_search(searched(Recipe.parse({"loss": {"name": "softmax"}})))


def test_more_classes_validate_than_in_a_single_run_unless_the_recipe_says_otherwise():
    assert plan_search(searched(Recipe.parse({}))).recipe.protocol.validation_share == 0.3
    said = Recipe.parse({"protocol": {"validation_share": 0.15}})
    assert plan_search(searched(said)).recipe.protocol.validation_share == 0.15


def test_the_grid_has_every_point_once_in_an_order_of_the_seed():
    ranges = ["loss.alpha=16:64:16", "loss.margin=0:1:0.5", "network.pooling=avg,max"]
    plans = [plan_search(searched(Recipe(seed=seed), ranges), sampler="grid") for seed in (0, 0, 1)]
    orders = [[tuple(plan.grid_point(i).values()) for i in range(plan.grid_size)] for plan in plans]
    every = {(a, m, p) for a in (16.0, 32.0, 48.0, 64.0) for m in (0.0, 0.5, 1.0) for p in ("avg", "max")}
    assert len(orders[0]) == 24
    assert set(orders[0]) == every
    assert orders[0] == orders[1] != orders[2]


def test_the_recipes_own_values():
    assert plan_search(searched(Recipe.parse({}))).searched.own_values() == {
        "loss.alpha": 32.0,
        "loss.margin": 0.1,
    }
    said = Recipe.parse({"loss": {"margin": 0.4}})
    assert plan_search(searched(said, ["optimizer.lr=1e-4:1e-2:log"])).searched.own_values() == {
        "loss.alpha": 32.0,
        "loss.margin": 0.4,
        "optimizer.lr": 2e-3,
    }
    assert plan_search(searched(Recipe.parse({}), ["loss.margin=0.5:1"])).searched.own_values() is None
    assert plan_search(searched(Recipe.parse({}), ["loss.lr=0.1:1"])).searched.own_values() is None


def test_the_retraining_has_all_classes_and_the_chosen_epoch():
    plan = plan_search(searched(Recipe.parse({})))
    final = plan.searched.of_retraining({"loss.margin": 0.4}, epoch=7)
    assert final.loss.keywords == {"margin": 0.4}
    assert (final.protocol.name, final.protocol.keywords) == ("standard", {})
    assert (final.training.epochs, final.training.stop_after) == (12, 7)
    assert plan.searched.of_retraining({}, epoch=12).training.stop_after is None


def test_a_plan_is_written_once_and_another_is_refused(tmp_path):
    plan = plan_search(
        searched(Recipe.parse({}), ["optimizer.lr=1e-4:1e-2:log", "network.pooling=avg,max"]),
        sampler="random",
    )
    file = tmp_path / "search.json"
    plan.write(file)
    plan.write(file)
    assert SearchPlan.read(file) == plan
    with pytest.raises(RunError, match="another search .*sampler is 'random' there, 'tpe' here"):
        plan_search(
            searched(Recipe.parse({}), ["optimizer.lr=1e-4:1e-2:log", "network.pooling=avg,max"])
        ).write(file)


def test_modifiers_say_where_to_look_as_well():
    recipe = Recipe.parse({"loss": {"name": "triplet", "mixup": {}, "matryoshka": {"sizes": [64]}}})
    plan = plan_search(searched(recipe))
    assert list(plan.space) == ["loss.margin", "loss.mixup.weight"]
    values = {"loss.margin": 0.3, "loss.mixup.weight": 0.1}
    (modifier,) = [one for one in plan.searched.of_trial(values).loss.modifiers if one.name == "mixup"]
    assert modifier.keywords == {"weight": 0.1}
    assert plan.searched.own_values() == {"loss.margin": 0.1, "loss.mixup.weight": 0.4}
