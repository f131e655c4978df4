"""What may be averaged: nothing that differs in a setting that can change a number."""

from __future__ import annotations

import copy
import json
import shutil
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearkin.recipe import Recipe
from nearkin.recipe.sections import SECTIONS
from nearkin.tournament.grouping import group_outcomes
from nearkin.tournament.outcomes import Outcome, contender_label, experiment_of, read_outcomes
from nearkin.tournament.ranking import rank_outcomes
from nearkin.tournament.terms import SeenData, Terms, factor_of, flat, relation
from nearkin.training.run import NEUTRAL_KEYS

RECIPES = [
    {},
    {"loss": {"name": "triplet"}},
    {"loss": {"name": "contrastive", "memory": {"size": 64}}, "protocol": {"name": "cross_validation"}},
    {"loss": {"name": "proxy_anchor", "mixup": {}, "distil": {}, "matryoshka": {"sizes": [64, 8]}}},
    {"loss": {"name": "soft_triple"}, "schedule": {"name": "step"}, "optimizer": {"name": "sgd"}},
    {
        "data": {"name": "folder", "root": "photos", "transform": "resized_crop"},
        "network": {"name": "resnet50", "weights": "imagenet", "cached_trunk": "layer3"},
        "training": {"ema": 0.999, "chunk": 32, "trackers": ["tensorboard"]},
        "protocol": {"name": "fixed_validation", "validation_share": 0.3},
    },
]
COMPLETE = [Recipe.parse(values).complete() for values in RECIPES]
KEYS = sorted({(number, key) for number, terms in enumerate(COMPLETE) for key in flat(terms)})
OPTIONAL = [
    f"{section}.{key}"
    for section, model in SECTIONS.items()
    for key, field in model.model_fields.items()
    if field.default is None
]


def changed(terms: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    copied = copy.deepcopy(terms)
    *path, last = key.split(".")
    table = copied
    for part in path:
        table = table.setdefault(part, {})
    table[last] = value
    return copied


def another(value: Any) -> Any:
    """Some other value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return [*value, 99] if isinstance(value, list) else f"{value}_other"


def outcome(terms: dict[str, Any], seed: int) -> Outcome:
    settings = {**terms, "seed": seed}
    loss = settings["loss"]["name"]
    name = f"{seed} {id(terms)}"
    return Outcome(
        experiment_of(settings), loss, "run", {"recall_at_1": 0.5}, name, seed, terms=Terms(settings)
    )


def rows_of(*outcomes: Outcome) -> list[int]:
    return sorted(len(row) for board in group_outcomes(outcomes) for row in board.rows.values())


def check_one_key(terms: dict[str, Any], key: str, value: Any) -> None:
    other = changed(terms, key, value)
    found = relation(Terms({**terms, "seed": 0}), Terms({**other, "seed": 1}))
    if key in NEUTRAL_KEYS or key == "seed":
        assert found == "seeds"
        assert rows_of(outcome(terms, 0), outcome(other, 1)) == [2]
    else:
        assert found in {"contenders", "experiments"}, key
        assert found == f"{factor_of(key)}s"
        assert rows_of(outcome(terms, 0), outcome(other, 1)) == [1, 1]
        assert rows_of(outcome(terms, 0), outcome(other, 0)) == [1, 1]


@pytest.mark.parametrize("number", range(len(COMPLETE)))
def test_no_key_of_a_complete_recipe_is_averaged_over(number):
    terms = COMPLETE[number]
    for key, value in flat(terms).items():
        check_one_key(terms, key, another(value))


@pytest.mark.parametrize("key", OPTIONAL)
def test_what_is_set_on_one_side_only_is_not_averaged_over(key):
    if key not in flat(COMPLETE[1]):
        check_one_key(COMPLETE[1], key, "something")


values = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2) | st.text(max_size=3)


@given(st.sampled_from(KEYS), values, values, st.integers(0, 2), st.integers(0, 2))
def test_two_runs_are_averaged_only_if_all_that_counts_is_equal(place, one, other, first_seed, second_seed):
    number, key = place
    if key == "seed":
        return
    first, second = (changed(COMPLETE[number], key, value) for value in (one, other))
    found = relation(Terms({**first, "seed": first_seed}), Terms({**second, "seed": second_seed}))
    alike = key in NEUTRAL_KEYS or (one == other and isinstance(one, bool) == isinstance(other, bool))
    expected = {"repetition"} if first_seed == second_seed else {"seeds"}
    assert found in (expected if alike else {"contenders", "experiments"})


def ranked(tmp_path, **options):
    return rank_outcomes(read_outcomes([tmp_path]).outcomes, **options)


def test_random_and_balanced_batches_are_two_contenders(make_run, tmp_path):
    make_run("triplet", noise=0.5)
    make_run("triplet", noise=1.5, **{"sampler.name": "random"})
    (board,) = ranked(tmp_path).leaderboards
    assert [(place.contender, place.seeds, place.spread) for place in board.places] == [
        ("triplet (sampler.name=balanced)", 1, {}),
        ("triplet (sampler.name=random)", 1, {}),
    ]


def test_two_splits_are_two_experiments(make_run, tmp_path):
    for share in (0.3, 0.1):
        for seed in (0, 1):
            make_run("triplet", noise=1.0, seed=seed, **{"protocol.validation_share": share})
    boards = ranked(tmp_path).leaderboards
    assert [board.experiment.detail for board in boards] == [
        "protocol.validation_share=0.1",
        "protocol.validation_share=0.3",
    ]
    assert [[(place.contender, place.seeds) for place in board.places] for board in boards] == [
        [("triplet", 2)],
        [("triplet", 2)],
    ]
    assert "validation_share=0.3" in str(boards[1].experiment)


def test_one_epoch_and_two_are_two_contenders(make_run, tmp_path):
    make_run("npair", noise=1.2)
    for epochs in (1, 2):
        make_run("triplet", noise=1.0, **{"training.epochs": epochs})
    (board,) = ranked(tmp_path).leaderboards
    assert {place.contender for place in board.places} == {
        "npair",
        "triplet (training.epochs=1)",
        "triplet (training.epochs=2)",
    }


def test_two_tables_are_two_experiments(make_run, tmp_path):
    for name in ("faces", "letters"):
        make_run(
            "triplet", noise=1.0, folder=name, data=name, **{"data.name": "csv", "data.root": f"{name}.csv"}
        )
    boards = ranked(tmp_path).leaderboards
    assert [board.experiment.dataset for board in boards] == ["csv faces.csv", "csv letters.csv"]


@pytest.mark.parametrize("prints", [("", ""), ("1111", "2222"), ("", "2222")])
def test_two_folders_of_one_basename_are_two_experiments(make_run, tmp_path, prints):
    for seed, (parent, data) in enumerate(zip(("mine", "yours"), prints, strict=True)):
        place = {"data.name": "folder", "data.root": f"{parent}/birds"}
        make_run("triplet", noise=1.0, seed=seed, folder=parent, data=data, **place)
    boards = ranked(tmp_path).leaderboards
    assert [board.experiment.detail for board in boards] == ["mine/birds", "yours/birds"]


def test_a_folder_that_moved_is_the_same_data(make_run, tmp_path):
    for seed, parent in enumerate(("old", "new")):
        place = {"data.name": "folder", "data.root": f"{parent}/birds"}
        make_run("triplet", noise=1.0, seed=seed, folder=parent, data="1111", **place)
    (board,) = ranked(tmp_path).leaderboards
    assert [place.seeds for place in board.places] == [2]


def test_data_that_changed_in_its_place_is_another_experiment(make_run, tmp_path):
    for seed, data in enumerate(("1111aaaabbbb", "2222aaaabbbb")):
        make_run("triplet", noise=1.0, seed=seed, data=data)
    boards = ranked(tmp_path).leaderboards
    assert [board.experiment.detail for board in boards] == ["test samples 1111aaaa", "test samples 2222aaaa"]


@pytest.mark.parametrize(
    ("one", "other", "same_seed", "alike"),
    [
        (SeenData("t", "a"), SeenData("t", "b"), False, True),  # a protocol draws validation by the seed
        (SeenData("t", "a"), SeenData("t", "b"), True, False),  # the same draw of other samples
        (SeenData("t", samples=10), SeenData("t", samples=11), False, False),
        (SeenData("t", classes=3), SeenData("t", classes=4), False, False),
        (SeenData("t", "a", 10, 3), SeenData(), True, True),  # an old run kept nothing
        (SeenData("t"), SeenData("u"), False, False),
    ],
)
def test_fingerprints_tell_data_apart(one, other, same_seed, alike):
    assert one.may_be(other, same_seed=same_seed) == other.may_be(one, same_seed=same_seed) == alike


def test_a_seed_counts_once_and_that_is_said(make_run, tmp_path):
    path = make_run("triplet", noise=1.0)
    make_run("triplet", noise=1.0, seed=1)
    shutil.copytree(path, tmp_path / "runs" / "zz a copy")
    (board,) = ranked(tmp_path).leaderboards
    assert board.places[0].seeds == 2
    (note,) = [note for note in board.notes if "repeat a seed" in note]
    assert "zz a copy" in note


def test_pooling_is_done_on_request_and_said(make_run, tmp_path):
    make_run("triplet", noise=0.5)
    make_run("triplet", noise=1.5, **{"sampler.name": "random"})
    (board,) = ranked(tmp_path, pool=["sampler"]).leaderboards
    assert [(place.contender, place.seeds) for place in board.places] == [("triplet", 2)]
    assert any("--pool sampler" in note and "sampler.name=random" in note for note in board.notes)
    with pytest.raises(ValueError, match="--pool samplr: .*did you mean sampler"):
        ranked(tmp_path, pool=["samplr"])


def test_what_tells_a_loss_apart_on_one_board_is_said_on_all(make_run, tmp_path):
    for size in (16, 32):
        make_run("npair", noise=1.0, **{"network.embedding_dim": size})
        make_run("triplet", noise=1.0, **{"network.embedding_dim": size, "sampler.name": "random"})
    make_run("triplet", noise=1.0, **{"network.embedding_dim": 16})
    standings = ranked(tmp_path)
    assert {row.contender for row in standings.ranking.rows} == {"npair", "triplet (sampler.name=random)"}


def test_plan_labels_name_the_rows(make_run, tmp_path):
    first = make_run("triplet", noise=1.0)
    second = make_run("triplet", noise=0.5, **{"loss.margin": 0.3})
    runs = [{"name": first.name, "loss": "narrow"}, {"name": second.name, "loss": "wide", "extra": "long"}]
    (tmp_path / "runs" / "plan.json").write_text(json.dumps({"plan": "mine", "runs": runs}))
    (board,) = ranked(tmp_path).leaderboards
    assert [place.contender for place in board.places] == ["wide long", "narrow"]


def test_two_objects_of_one_name_are_not_one_contender():
    """An object given in Python is known by its name only, and one seed cannot have two scores."""
    terms = {**COMPLETE[1], "loss": {"name": "python:Circle"}}
    first, second = outcome(terms, 0), outcome(terms, 0)
    second = replace(second, scores={"recall_at_1": 0.6}, source="other")
    (board,) = group_outcomes([first, second])
    assert list(board.rows) == ["python:Circle", "python:Circle (other)"]
    (board,) = group_outcomes([first, outcome(terms, 0), outcome(terms, 1)])
    assert [len(row) for row in board.rows.values()] == [2]
    assert any("taken on trust" in note for note in board.notes)


def test_runs_that_differ_in_a_modifier_are_never_averaged():
    bare = {"name": "proxy_anchor"}
    variants = [
        bare,
        bare | {"mixup": {}},
        bare | {"mixup": {"weight": 0.1}},
        bare | {"distil": {}},
        bare | {"mixup": {}, "distil": {}},
        bare | {"matryoshka": {"sizes": [64, 8]}},
        bare | {"matryoshka": {"sizes": [64, 16]}},
    ]
    complete = [Recipe.parse({"loss": loss}).complete() for loss in variants]
    outcomes = [outcome(terms, seed) for terms in complete for seed in (0, 1)]
    assert rows_of(*outcomes) == [2] * len(variants)
    for number, one in enumerate(complete):
        for other in complete[:number]:
            assert relation(Terms(one), Terms(other)) == "contenders"


def test_an_empty_table_of_a_modifier_without_keywords_counts():
    plain = Recipe.parse({}).complete()
    with_own = changed(plain, "loss.own_modifier", {})
    assert relation(Terms(plain), Terms(with_own)) == "contenders"


def test_a_run_is_called_by_its_loss_and_modifiers():
    labels = {"name": "run", "loss": "proxy_anchor", "modifier": "mixup"}
    assert contender_label(labels) == "proxy_anchor + mixup"
    assert contender_label(labels | {"modifier": "none", "extra": "long"}) == "proxy_anchor long"
