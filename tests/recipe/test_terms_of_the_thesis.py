"""The thesis's terms: every value where its tables have it, and every value with its origin."""

from __future__ import annotations

import itertools
import json
import re

import pytest

from nearkin import data, losses, networks
from nearkin.recipe import Recipe
from nearkin.recipe.searching import searched
from nearkin.recipe.terms import ORIGINS, _files, protocol_of_search, terms_of_thesis
from nearkin.tuning.plan import plan_search

DATA = {"CUB200-2011": "cub200", "CARS196": "cars196", "SOP": "sop"}
NETWORKS = {"ResNet50": "resnet50", "BNInception": "bninception", "GoogLeNet": "googlenet"}
LOSSES = {
    "Contrastive": "contrastive",
    "Triplet": "triplet",
    "LiftedStructure": "lifted_structure",
    "NPair": "npair",
    "ProxyNCA": "proxy_nca",
    "Margin": "margin",
    "ArcFace": "arcface",
    "MultiSimilarity": "multi_similarity",
    "SoftTriple": "soft_triple",
    "ProxyAnchor": "proxy_anchor",
}
# What Table 4 calls a hyperparameter → our keyword.
KEYWORDS = {
    "margin λ": "margin",
    "l_2": "l2",
    "proxy lr": "lr",
    "beta lr": "lr",
    "weights lr": "lr",
    "beta": "beta",
    "scale s": "scale",
    "scale α": "alpha",
    "scale β": "beta",
    "epsilon": "epsilon",
    "gamma": "gamma",
    "tau": "tau",
}
OWN_KEYWORDS = {("arcface", "margin"): "margin_degrees", ("soft_triple", "alpha"): "scale"}
OURS_UNMARKED_BEFORE = [
    ("soft_triple", "loss.proxies_per_class"),
    ("proxy_anchor", "loss.lr_factor"),
    ("contrastive", "sampler.name"),
    ("contrastive", "loss.mining"),
    ("npair", "mining"),
]


def recipe(loss: str, data_set: str = "cub200", network: str = "bninception", **said) -> Recipe:
    values = {"terms": "thesis", "loss": loss, "data": {"name": data_set, "root": "x"}, "network": network}
    return Recipe.parse(values | said)


def rows_of(shared, number: int) -> list[list[str]]:
    """The lines of a table of the thesis, cell by cell."""
    text = (shared / "seeds" / "thesis.txt").read_text(encoding="utf-8")
    body = text[text.index("3. EXPERIMENTAL SETUP\n\nThis") :]
    table = body[body.index(f"\nTable {number}:") :].split("\n\n")[1]
    return [line.split("\t") for line in table.splitlines()[1:]]


def test_table_3(shared):
    rows = rows_of(shared, 3)
    assert len(rows) == 9
    for experiment, lr, step, gamma in rows:
        data_set, network = experiment.split()
        found = recipe("margin", DATA[data_set], NETWORKS[network])
        assert found.optimizer.lr == float(lr)
        assert found.schedule.name == "step"
        assert found.schedule.keywords == {"every": int(step), "factor": float(gamma)}
        for key in ("optimizer.lr", "schedule.every", "schedule.factor"):
            assert found.origins()[key] == "Table 3"


def test_table_4(shared):
    loss, seen = "", 0
    for name, hyperparameter, value in rows_of(shared, 4):
        loss = LOSSES.get(name, loss)
        keyword = KEYWORDS[hyperparameter]
        keyword = OWN_KEYWORDS.get((loss, keyword), keyword)
        expected = 1 / float(value) if (loss, keyword) == ("soft_triple", "gamma") else float(value)
        found = recipe(loss)
        assert found.complete()["loss"][keyword] == pytest.approx(expected), (loss, hyperparameter)
        assert found.origins()[f"loss.{keyword}"].startswith("Table 4"), (loss, keyword)
        seen += 1
    assert seen == 22


def test_table_5(shared):
    ours = {"semi-hard": "semi_hard", "distance weighted": "distance_weighted"}
    for name, mining in rows_of(shared, 5):
        found = recipe(LOSSES[name])
        if mining == "-":
            assert found.complete()["loss"].get("mining", "all") == "all"
            continue
        expected = "multi_similarity" if name == "MultiSimilarity" else ours.get(mining, mining)
        assert found.complete()["loss"]["mining"] == expected
        assert found.origins()["loss.mining"].startswith("Table 5")


def test_section_3_4_and_the_protocol():
    found = recipe("multi_similarity", network="resnet50")
    assert (found.optimizer.name, found.training.epochs, found.schedule.warmup) == ("adamw", 100, 0.0)
    assert found.sampler.model_dump() == {"name": "balanced", "batch_size": 100, "images_per_class": 5}
    assert recipe("multi_similarity", network="googlenet").sampler.batch_size == 180
    assert found.protocol.name == "standard_best_on_test"
    assert found.origins()["protocol.name"].startswith("section 3.5.2")
    assert found.data.transform.name == "simple_crop"
    assert "our reading" in found.origins()["data.transform.name"]


def test_equations_where_the_tables_are_silent():
    lifted = recipe("lifted_structure")
    assert (lifted.loss.keywords["positive_scale"], lifted.loss.keywords["negative_scale"]) == (1.0, 1.0)
    assert lifted.origins()["loss.positive_scale"].startswith("equation (2.21)")
    assert recipe("proxy_nca").origins()["loss.scale"].startswith("equation (2.27)")


def test_the_own_loss_and_its_experiments_have_terms():
    for data_set in DATA.values():
        found = recipe("proxy_repulsion", data_set)
        assert found.loss.keywords["through_samples"] is True
        assert found.origins()["loss.through_samples"].startswith("chapter 6")
        assert found.origins()["loss.alpha"].startswith("ours")
    assert recipe("margin", "sop").evaluation.recall_at == (1, 10, 100, 1000)
    assert recipe("margin", "cars196").evaluation.recall_at == (1, 2, 4, 8)


@pytest.mark.parametrize(("loss", "key"), OURS_UNMARKED_BEFORE)
def test_what_is_ours_is_marked(loss, key):
    assert recipe(loss).origins()[key].startswith("ours")


@pytest.mark.parametrize("name", ["thesis", "thesis_code"])
def test_every_block_of_the_files_says_where_it_comes_from(name):
    file = _files()[name]
    known = {"losses": losses.names(), "data_sets": data.names(), "networks": networks.names()}
    for block in file["values"]:
        assert block["origin"].startswith(ORIGINS), block
        assert ("set" in block) != ("about" in block and "reading" in block), block
        for key, names in block.get("where", {}).items():
            assert set(names) <= set(known[key]), block
            assert set(names) <= set(_files()["thesis"][key]), block
    assert file["source"]


def test_every_setting_has_an_origin_for_every_experiment():
    for terms, loss, data_set, network in itertools.product(
        ("thesis", "thesis_code"), [*LOSSES.values(), "proxy_repulsion"], DATA.values(), NETWORKS.values()
    ):
        values = terms_of_thesis(loss, data_set, network, kind=terms)
        assert all(origin.startswith(ORIGINS) for origin in values.origins.values())
        assert values.values["network"]["weights"] == "imagenet"
    found = recipe("margin", terms="thesis_code").origins()
    assert {one.split(":")[0].split()[0] for one in found.values()} <= {
        *("Table", "Tables", "section", "equation", "public", "ours", "said"),
    }


def test_the_public_codes_habits_are_a_set_of_their_own():
    def changes(loss: str) -> dict[str, object]:
        text, code = (
            terms_of_thesis(loss, "cub200", "bninception", kind=kind) for kind in ("thesis", "thesis_code")
        )
        changed = {key for key, origin in code.origins.items() if origin != text.origins.get(key)}
        assert all(code.origins[key].startswith("public code") for key in changed)
        # Where the text speaks, it counts.
        assert not any(text.origins.get(key, "ours").startswith(("Table", "section")) for key in changed)
        return {key: code.values[key.split(".")[0]][key.split(".")[1]] for key in changed}

    everybody = {
        "network.pooling": "avg+max",
        "network.freeze_batch_norm": True,
        "training.head_only": 1,
        "optimizer.clip_value": 10.0,
    }
    assert changes("margin") == changes("arcface") == everybody
    assert changes("proxy_anchor") == everybody | {"loss.lr_factor": 100.0}
    assert changes("soft_triple") == everybody | {"loss.proxies_per_class": 2}
    assert changes("proxy_nca") == everybody | {"loss.scale": 32.0}
    assert recipe("margin", terms="thesis_code").optimizer.clip_value == 10.0


def test_a_written_recipe_says_where_its_values_come_from():
    text = recipe("lifted_structure", seed=3).to_toml()
    assert "# lr = 0.0001  # Table 3" in text
    assert "# positive_scale = 1.0  # equation (2.21), which has no scales" in text
    assert "# weight_decay = 0.0001  # ours: the thesis does not say" in text
    assert recipe("margin", seed=3).origins()["seed"] == "said"


def test_a_result_discloses_origins(monkeypatch, small_recipe):
    monkeypatch.setattr(networks, "load_imagenet", lambda backbone, name: None)
    glyphs = Recipe.parse(small_recipe).build().data
    task = recipe("npair", network="googlenet", seed=1, sampler={"batch_size": 20}).build(data=glyphs)
    origins = json.loads(json.dumps(task.disclosure))["origins"]
    assert origins["optimizer.lr"] == "Table 3"
    assert origins["sampler.batch_size"] == origins["seed"] == "said"
    assert origins["inner products"].startswith("ours: (2.22) has cosines")
    assert origins["network.embedding_dim"].startswith("ours")
    assert task.disclosure["terms"].startswith("thesis: Psomas.")
    assert Recipe.parse(small_recipe).build().disclosure["origins"] == {}


def test_what_a_recipe_says_is_not_the_terms():
    found = recipe("margin", data={"name": "cub200", "root": "x", "transform": "resized_crop"})
    assert found.data.transform.name == "resized_crop"
    assert found.origins()["data.transform.name"] == "said"
    assert found.origins()["loss.name"] == found.origins()["network.name"] == "said"


def test_another_name_does_not_inherit_keywords():
    assert recipe("margin", schedule={"name": "cosine"}).schedule.keywords == {}
    found = recipe("margin", sampler={"name": "random"}).sampler
    assert found.model_dump() == {"name": "random", "batch_size": 180}
    assert recipe("margin", schedule={"every": 7}).schedule.keywords == {"every": 7, "factor": 0.1}


def test_a_search_takes_the_terms_with_the_thesiss_validation_classes():
    assert protocol_of_search("thesis") == protocol_of_search("thesis_code")
    plan = plan_search(searched(recipe("multi_similarity")))
    assert plan.recipe.protocol.name == "fixed_validation"
    assert plan.recipe.protocol.keywords == {"validation_share": 0.1}
    assert plan.recipe.training.epochs == 100
    final = plan.searched.of_retraining({"loss.margin": 0.8}, epoch=7)
    assert (final.protocol.name, final.training.stop_after) == ("standard", 7)
    with pytest.raises(ValueError, match=r"protocol\.name=standard_best_on_test has none"):
        plan_search(searched(recipe("margin", protocol={"name": "standard_best_on_test"})))


def test_bninceptions_weights_are_named_where_they_are_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("NEARKIN_WEIGHTS", str(tmp_path))
    with pytest.raises(ValueError, match=re.escape(str(tmp_path / "bn_inception-52deb4733.pth"))):
        networks.build("bninception", embedding_dim=8, weights="imagenet")
