from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin import losses
from nearkin.benchmark.plan import Plan, PlanError, packaged_plans
from nearkin.recipe import Recipe


def names(**values) -> list[str]:
    return [run.name for run in Plan.parse(values).runs()]


def test_every_combination_is_a_run_in_the_order_of_the_lists():
    found = names(losses=["triplet", "nca"], embedding_dims=[8, 16], seeds=[0, 1])
    expected = [
        f"glyphs-convnet-{loss}-{size}-seed{seed}"
        for size, loss, seed in itertools.product([8, 16], ["triplet", "nca"], [0, 1])
    ]
    assert found == expected


def test_a_list_that_is_left_out_is_the_recipes_own():
    (run,) = Plan.parse({"recipe": {"loss": {"name": "nca"}, "seed": 3}}).runs()
    assert run.recipe.complete() == Recipe.parse({"loss": {"name": "nca"}, "seed": 3}).complete()
    assert run.name == "glyphs-convnet-nca-64-seed3"


def test_entries_carry_hyperparameters_labels_and_changes_anywhere():
    plan = Plan.parse(
        {
            "recipe": {"training": {"epochs": 3}, "sampler": {"batch_size": 90}},
            "losses": [
                "margin",
                {"name": "margin", "label": "wide margin", "margin": 0.5, "lr": 0.1},
                {"name": "margin", "label": "large", "recipe": {"sampler": {"batch_size": 180}}},
            ],
        }
    )
    plain, wide, large = plan.runs()
    assert wide.name == "glyphs-convnet-wide_margin-64-seed0"
    assert (wide.recipe.loss.keywords, wide.recipe.loss.lr) == ({"margin": 0.5}, 0.1)
    assert plain.recipe.loss.keywords == {}
    assert (plain.recipe.sampler.batch_size, large.recipe.sampler.batch_size) == (90, 180)
    assert {run.recipe.training.epochs for run in plan.runs()} == {3}
    assert large.labels["loss"] == "large"


def test_exclusions_match_names_labels_and_lists_of_them():
    lists = {"losses": ["triplet", {"name": "nca", "label": "soft"}], "embedding_dims": [8, 16, 32]}
    assert len(names(**lists)) == 6
    found = names(**lists, exclude=[{"loss": "soft", "embedding_dim": [8, 16]}])
    assert found == [name for name in names(**lists) if not ("soft" in name and "32" not in name)]
    assert names(**lists, exclude=[{"loss": "nca"}]) == [name for name in names(**lists) if "triplet" in name]


def test_inclusions_come_last_and_survive_exclusions():
    found = names(
        losses=["triplet", "nca"],
        seeds=[0, 1],
        exclude=[{"loss": "nca"}],
        include=[{"loss": "nca", "seed": 1}, {"loss": {"name": "nca", "temperature": 2.0, "label": "hot"}}],
    )
    assert [name.removeprefix("glyphs-convnet-") for name in found] == [
        "triplet-64-seed0",
        "triplet-64-seed1",
        "nca-64-seed1",
        "hot-64-seed0",
        "hot-64-seed1",
    ]


def test_a_name_in_an_inclusion_means_the_entry_of_the_list():
    plan = Plan.parse(
        {
            "losses": [{"name": "nca", "temperature": 2.0}],
            "include": [{"loss": "nca", "seed": 7, "label": "long", "recipe": {"training": {"epochs": 99}}}],
        }
    )
    extra = plan.runs()[-1]
    assert extra.name == "glyphs-convnet-nca-64-long-seed7"
    assert (extra.recipe.loss.keywords, extra.recipe.training.epochs) == ({"temperature": 2.0}, 99)


def test_an_inclusion_that_is_there_already_adds_nothing():
    assert names(losses=["nca"], include=[{"loss": "nca"}]) == ["glyphs-convnet-nca-64-seed0"]


def test_adjustments_depend_on_several_axes_and_come_last():
    plan = Plan.parse(
        {
            "losses": ["triplet", {"name": "nca", "recipe": {"optimizer": {"lr": 0.1}}}],
            "embedding_dims": [8, 16],
            "adjust": [
                {"where": {"loss": "nca", "embedding_dim": 16}, "recipe": {"optimizer": {"lr": 0.5}}},
            ],
        }
    )
    rates = {run.name.removeprefix("glyphs-convnet-"): run.recipe.optimizer.lr for run in plan.runs()}
    assert rates == {
        "triplet-8-seed0": 2e-3,
        "nca-8-seed0": 0.1,
        "triplet-16-seed0": 2e-3,
        "nca-16-seed0": 0.5,
    }


def test_all_losses_means_every_loss_of_the_library():
    assert [run.recipe.loss.name for run in Plan.parse({"losses": "all"}).runs()] == losses.names()


def test_another_protocol_is_in_the_name():
    assert names(protocols=["fixed_validation", "standard"]) == [
        "glyphs-convnet-proxy_anchor-64-seed0",
        "glyphs-convnet-proxy_anchor-64-standard-seed0",
    ]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"seed": [0]}, "plan: unknown key seed: did you mean seeds?"),
        ({"losses": ["tripet"]}, "seed0: loss: unknown loss 'tripet': did you mean triplet?"),
        ({"losses": [{"name": "nca", "temprature": 1}]}, "'temprature': did you mean temperature?"),
        ({"losses": [{"margin": 1}]}, "losses.0.name: field required"),
        ({"recipe": {"trainin": {}}}, "unknown key trainin: did you mean training?"),
        ({"losses": ["nca", "nca"], "seeds": [0, True]}, "seeds.1"),
        (
            {"losses": ["nca", {"name": "nca", "temperature": 2.0}]},
            "loss.temperature .*give one of them a label",
        ),
        ({"losses": ["nca"], "recipe": {"loss": {"name": "nca"}}}, "both recipe and losses say which loss"),
        ({"losses": ["nca"], "exclude": [{"loss": "mca"}]}, "exclude: no loss is called 'mca': .*nca"),
        ({"losses": ["nca"], "exclude": [{"los": "nca"}]}, "unknown key exclude.0.los: did you mean loss?"),
        ({"adjust": [{"where": {"seed": 1}, "recipe": {}}]}, "adjust.where: no seed is called 1"),
        ({"exclude": [{}]}, "exclude is empty"),
        ({"losses": ["nca"], "exclude": [{"loss": "nca"}]}, "nothing is left to run"),
        ({"embedding_dims": [0]}, "embedding_dim: .*greater than or equal to 1"),
        ({"cpus": 0}, "cpus: .*greater than 0"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(values, message):
    with pytest.raises(PlanError, match=message) as caught:
        Plan.parse(values)
    assert "\n" not in str(caught.value)


labels = st.text(st.sampled_from("ab-_ /:."), max_size=4)
entries = st.builds(
    lambda label, temperature: {"name": "nca", "label": label, "temperature": temperature},
    labels,
    st.sampled_from([0.5, 1.0, 2.0]),
)
networks = st.builds(
    lambda label, width: {"name": "convnet", "label": label, "width": width}, labels, st.integers(4, 5)
)
inclusions = st.builds(
    lambda loss, label, epochs: {"loss": loss, "label": label, "recipe": {"training": {"epochs": epochs}}},
    entries,
    labels,
    st.integers(1, 2),
)


@settings(max_examples=40)
@given(
    st.lists(entries, min_size=1, max_size=3),
    st.lists(networks, min_size=1, max_size=2),
    st.lists(st.integers(0, 2), min_size=1, max_size=2),
    st.lists(inclusions, max_size=2),
)
def test_two_recipes_never_share_a_name_and_none_is_lost(loss_entries, network_entries, seeds, include):
    values = {"losses": loss_entries, "networks": network_entries, "seeds": seeds, "include": include}
    clash = None
    try:
        runs = Plan.parse(values).runs()
    except PlanError as error:
        clash = str(error)
    if clash is not None:
        assert "give one of them a label" in clash
        return
    found = [run.name for run in runs]
    assert len({name.casefold() for name in found}) == len(found)
    assert all(set("/: ").isdisjoint(name) for name in found)
    recipes = {run.recipe.to_toml() for run in runs}
    wanted = {
        (loss["temperature"], network["width"], seed, epochs)
        for network, seed in itertools.product(network_entries, seeds)
        for loss, epochs in [
            *((entry, 12) for entry in loss_entries),
            *((extra["loss"], extra["recipe"]["training"]["epochs"]) for extra in include),
        ]
    }
    assert len(recipes) == len(wanted)


def test_a_plan_is_found_by_file_or_name(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('losses = ["nca", "triplet"]\n[recipe.training]\nepochs = 2\n')
    plan = Plan.find(file, ["recipe.training.epochs=5"])
    assert plan.name == "mine"
    assert {run.recipe.training.epochs for run in plan.runs()} == {5}
    with pytest.raises(PlanError, match=r"there is no plan tournamnt: .*did you mean tournament\?"):
        Plan.find("tournamnt")
    assert Plan.find("tournament").name == "tournament"


def test_modules_to_import_come_from_the_plan_and_from_whoever_reads_it(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('imports = ["json"]\n[recipe]\nimports = ["csv"]\n')
    (run,) = Plan.find(file, imports=["math"]).runs()
    assert run.recipe.imports == ("math", "json", "csv")
    with pytest.raises(PlanError, match="there is no module nowhere_at_all"):
        Plan.find(file, imports=["nowhere_at_all"])


def test_a_folder_that_the_recipe_names_is_the_data_and_nothing_else():
    (run,) = Plan.parse({"recipe": {"data": {"root": "some/birds"}}, "losses": ["nca"]}).runs()
    assert run.recipe.resolved().data.name == "folder"
    assert run.name == "birds-convnet-nca-64-seed0"


@pytest.mark.parametrize("name", sorted(packaged_plans()))
def test_packaged_plans_are_whole(name):
    plan = Plan.find(name)
    assert plan.description
    counts = {
        "tournament": 18,
        "thesis": 360,
        "cub_cached": 60,
        "cub_tuned": 30,
        "modifiers": 60,
        "less_supervision": 54,
        "noisy_labels": 90,
        "sampled_classes": 12,
        "label_quality": 54,
        "split_ratios": 12,
        "embedded": 120,
        "modifiers_cub": 60,
    }
    assert len(plan.runs()) == counts[name]


def test_modifiers_are_another_list():
    plan = Plan.parse(
        {
            "losses": ["proxy_anchor", "triplet"],
            "modifiers": [
                "none",
                "mixup",
                {"matryoshka": {"sizes": [64, 8]}},
                {"mixup": {"weight": 0.1}, "distil": {"sigma": 2.0}, "label": "both"},
            ],
            "exclude": [{"loss": "triplet", "modifier": "both"}],
        }
    )
    runs = {run.name: run for run in plan.runs()}
    assert list(runs) == [
        "glyphs-convnet-proxy_anchor-64-seed0",
        "glyphs-convnet-proxy_anchor+mixup-64-seed0",
        "glyphs-convnet-proxy_anchor+matryoshka-64-seed0",
        "glyphs-convnet-proxy_anchor+both-64-seed0",
        "glyphs-convnet-triplet-64-seed0",
        "glyphs-convnet-triplet+mixup-64-seed0",
        "glyphs-convnet-triplet+matryoshka-64-seed0",
    ]
    both = runs["glyphs-convnet-proxy_anchor+both-64-seed0"].recipe.complete()["loss"]
    assert (both["mixup"], both["distil"]["sigma"]) == ({"weight": 0.1, "alpha": 2.0}, 2.0)
    assert runs["glyphs-convnet-triplet-64-seed0"].recipe.loss.modifiers == ()


def test_modifiers_that_cannot_be_are_said():
    with pytest.raises(PlanError, match="give one of them a label"):
        Plan.parse({"modifiers": [{"mixup": {"weight": 0.1}}, {"mixup": {"weight": 0.2}}]})
    with pytest.raises(PlanError, match="did you mean mixup"):
        Plan.parse({"modifiers": ["mixupp"]})
    with pytest.raises(PlanError, match="both recipe and modifiers say which modifier"):
        Plan.parse({"modifiers": ["none", "mixup"], "recipe": {"loss": {"mixup": {}}}})
    with pytest.raises(PlanError, match="ArcFace cannot take mixup"):
        Plan.parse({"losses": ["arcface"], "modifiers": ["mixup"]})
