"""Searches stage by stage: the thesis's, one hyperparameter after the other, and successive halving."""

from __future__ import annotations

import pytest
from poison import poison_test_splits

from nearkin.losses import Range
from nearkin.recipe import Recipe
from nearkin.recipe.building import batches_per_epoch
from nearkin.recipe.searching import rates_space, searched
from nearkin.training import Run
from nearkin.tuning.budget import trials_within
from nearkin.tuning.plan import SearchPlan, plan_search
from nearkin.tuning.search import Search, SearchObserver
from nearkin.tuning.stages import Rung, coordinates, epochs_of, rungs


@pytest.fixture
def recipe(small_recipe):
    return Recipe.parse(small_recipe | {"training": {"epochs": 4}})


class Heard(SearchObserver):
    def __init__(self) -> None:
        self.steps = 0

    def step(self, **_):
        self.steps += 1


class Killed(BaseException):
    pass


class KillAfter(SearchObserver):
    """Breaks off after so many batches, as a kill would: nobody is told."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def step(self, **_):
        self.left -= 1
        if not self.left:
            raise Killed


@pytest.mark.parametrize("trials", range(1, 40))
@pytest.mark.parametrize("epochs", [1, 2, 3, 8, 12])
def test_rungs_end_with_all_epochs_and_never_grow(trials, epochs):
    found = rungs(trials, epochs)
    assert found[-1].epochs == epochs
    assert found[0].trials == trials
    assert [one.epochs for one in found] == sorted({one.epochs for one in found})
    assert all(after.trials == max(1, found[0].trials // 2**i) for i, after in enumerate(found))
    assert found[0].epochs * 4 >= epochs
    loop = sum(
        1
        for epoch in range(1, epochs + 1)
        for number in range(trials)
        if number < next(one.trials for one in found if one.epochs >= epoch)
    )
    assert epochs_of(found) == loop


def test_the_thesis_tries_122_values_for_multi_similarity():
    plan = plan_search(searched(Recipe.parse({"loss": {"name": "multi_similarity"}})), sampler="coordinate")
    by_key = {one.key: one for one in plan.coordinates()}
    assert {key: len(one.points) for key, one in by_key.items()} == {
        "loss.alpha": 50,
        "loss.beta": 50,
        "loss.margin": 11,
        "loss.epsilon": 11,
    }
    assert plan.coordinates()[-1].until == 122
    assert by_key["loss.margin"].points == [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
    assert plan.pruner == "none"


def test_soft_triple_searches_one_over_gamma_in_tens_and_the_rate_of_its_centres_as_table_15_does():
    rates = {"optimizer": {"lr": 1e-4}, "loss": {"name": "soft_triple", "lr": 1e-4}}
    space = plan_search(searched(Recipe.parse(rates)), sampler="coordinate").space
    assert list(space) == ["loss.margin", "loss.scale", "loss.gamma", "loss.tau", "loss.lr"]
    assert [round(1 / gamma) for gamma in space["loss.gamma"].points()] == list(range(10, 101, 10))
    assert space["loss.lr"].points() == pytest.approx([i * 1e-5 for i in range(1, 11)])


def test_softmax_has_something_to_search_the_scale_where_it_has_one():
    assert list(plan_search(searched(Recipe.parse({"loss": {"name": "softmax"}}))).space) == ["loss.lr"]
    normalized = Recipe.parse({"loss": {"name": "softmax", "normalized": True}})
    assert list(plan_search(searched(normalized)).space) == ["loss.scale", "loss.lr"]


def test_fewer_trials_than_points_are_shared_evenly():
    grids = {"a": list(range(50)), "b": list(range(50)), "c": list(range(11)), "d": [1, 2]}
    found = coordinates(grids, 16)
    assert [len(one.points) for one in found] == [5, 5, 4, 2]
    assert [one.points[0] for one in found] == [0, 0, 0, 1]
    assert [one.points[-1] for one in found] == [49, 49, 10, 2]
    with pytest.raises(ValueError, match="too few to try 4 hyperparameters"):
        coordinates(grids, 3)


def test_coordinates_keep_the_best_of_every_hyperparameter(recipe, tmp_path, monkeypatch):
    vault = poison_test_splits(monkeypatch)
    ranges = ["loss.alpha=8:32:12", "loss.margin=0:0.4:0.2"]
    plan = plan_search(searched(recipe, ranges), sampler="coordinate", epochs=1)
    search = Search.open(tmp_path / "search", plan)
    records = search.run(99)
    assert vault.opened == 0
    assert [record.values["loss.alpha"] for record in records[:3]] == [8.0, 20.0, 32.0]
    assert {record.values["loss.margin"] for record in records[:3]} == {0.1}  # the recipe's own
    kept = max(records[:3], key=lambda record: record.order).values["loss.alpha"]
    assert [record.values for record in records[3:]] == [
        {"loss.alpha": kept, "loss.margin": margin} for margin in (0.0, 0.2, 0.4)
    ]
    assert {record.epochs for record in records} == {1}
    assert all(len(Run.existing(search.trial_path(i)).metrics()) == 2 for i in range(6))


def test_what_was_searched_early_is_trained_in_full_to_find_the_epoch(recipe, tmp_path, monkeypatch):
    vault = poison_test_splits(monkeypatch)
    plan = plan_search(
        searched(recipe, ["loss.alpha=8,32", "loss.margin=0.1"]), sampler="coordinate", epochs=1
    )
    search = Search.open(tmp_path / "search", plan)
    search.run(3)
    validated, everything = search.finish_as("both")
    assert vault.opened == 2
    best = search.best().values
    for run, classes in ((validated, 21), (everything, 30)):
        assert run.result.data.train.classes == classes
        assert run.result.recipe["loss"]["alpha"] == best["loss.alpha"]
    assert validated.result.data.validation.classes == 9
    metrics = validated.metrics()[1:]
    chosen = max(metrics, key=lambda row: (row["recall_at_1"], row["map_at_r"], row["epoch"]))["epoch"]
    assert everything.result.epoch == validated.result.epoch == chosen
    search.finish_as("both")
    assert vault.opened == 2


@pytest.mark.parametrize("said", [{}, {"name": "retrained", "validation_share": 0.25}])
def test_what_leaves_the_validation_classes_out_is_not_retrained_on_them(said, recipe):
    """Photographs are retrained on all classes unless their protocol is said."""
    what = searched(Recipe.parse(recipe.said | {"protocol": said}))
    protocol = what.of_validated({"loss.margin": 0.2}).protocol
    assert protocol.name == "fixed_validation"
    assert "name" in what.of_validated({}).said["protocol"]
    assert protocol.keywords["validation_share"] == said.get("validation_share", 0.3)
    assert what.of_validated({"loss.margin": 0.2}).complete()["loss"]["margin"] == 0.2


def test_halving_trains_the_better_half_on(recipe, tmp_path, monkeypatch):
    vault = poison_test_splits(monkeypatch)
    plan = plan_search(searched(recipe), sampler="halving", trials=4)
    assert plan.rungs() == [Rung(1, 4), Rung(2, 2), Rung(4, 1)]
    search = Search.open(tmp_path / "search", plan)
    heard = Heard()
    records = search.run(4, observer=heard)
    assert vault.opened == 0
    assert [record.number for record in records] == [0, 1, 2, 3]
    assert records[0].values == {"loss.alpha": 32.0, "loss.margin": 0.1}
    assert sorted(record.epochs for record in records) == [1, 1, 2, 4]
    first = [Run.existing(search.trial_path(i)).metrics()[1]["recall_at_1"] for i in range(4)]
    went_on = {record.number for record in records if record.epochs > 1}
    assert min(first[i] for i in went_on) >= max(first[i] for i in range(4) if i not in went_on)
    assert search.best().epochs == 4
    assert [record.state for record in records].count("done") == 1
    # No batch was trained twice: a trial goes on where it was.
    assert sum(record.steps for record in records) == heard.steps
    assert not list((tmp_path / "search" / "trials").glob("*/checkpoint"))


def test_a_killed_halving_search_goes_on_without_repeating_a_trial(recipe, tmp_path):
    plan = plan_search(searched(recipe), sampler="halving", trials=4)
    heard = Heard()
    whole = Search.open(tmp_path / "whole", plan).run(4, observer=heard)
    per_epoch = whole[0].steps // whole[0].epochs
    search, left = Search.open(tmp_path / "killed", plan), heard.steps
    for steps in (3 * per_epoch + 1, 2 * per_epoch + 1):  # in the first rung, and in the second
        with pytest.raises(Killed):
            search.run(4, observer=KillAfter(steps))
        left -= per_epoch * (steps // per_epoch)  # of a broken epoch nothing is left
        search = Search.open(search.path, SearchPlan.read(search.path / "search.json"))
    again = Heard()
    assert search.run(4, observer=again) == whole
    assert again.steps == left


def test_budgets_in_steps(recipe):
    plan = plan_search(searched(recipe), sampler="halving", trials=4)
    data = plan.recipe.build().data.without_test()
    batches = batches_per_epoch(plan.recipe, data)
    assert batches in {4, 5}  # 21 classes of 8 pictures, 40 in a batch
    assert trials_within(1000, batches=batches, epochs=4, sampler="tpe") == 1000 // (4 * batches)
    n = trials_within(1000, batches=batches, epochs=4, sampler="halving")
    assert batches * epochs_of(rungs(n, 4)) <= 1000 < batches * epochs_of(rungs(n + 1, 4))
    with pytest.raises(ValueError, match="less than one trial"):
        trials_within(10, batches=batches, epochs=4, sampler="tpe")


def test_rates_are_searched_around_the_recipes_own():
    space = rates_space(Recipe.parse({"optimizer": {"lr": 1e-3}, "training": {"epochs": 20}}))
    assert space == {
        "optimizer.lr": Range(0.00025, 0.004, log=True),
        "schedule.warmup": Range(0.0, 5.0),
        "loss.lr": Range(0.001, 0.1, log=True),
    }
    assert plan_search(searched(Recipe.parse({}), rates=True)).searched.own_values()[
        "loss.lr"
    ] == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"sampler": "halving"}, "needs to know how many trials"),
        ({"epochs": 99}, "trials of 99 epochs: a training has between 1 and 12"),
    ],
)
def test_plans_that_cannot_be(keywords, message):
    with pytest.raises(ValueError, match=message):
        plan_search(searched(Recipe.parse({})), **keywords)
