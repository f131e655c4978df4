"""The same recipes give the same numbers as before objects could be given.

``first_edition/numbers.json`` was recorded with commit 15b19f3, the last one before that change, on one
thread. On the same machine all scores, and the losses of the first four recipes, are equal to the last digit.
SoftTriple's losses differ by 3e-7 of their size: its own backward pass went, and that of all losses adds up
in another order. The tolerances are for other processors and versions of torch.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from running import execute, new_run

from nearkin.recipe import Recipe

RECORD = json.loads((Path(__file__).parent / "first_edition" / "numbers.json").read_text())

RECIPES: dict[str, dict[str, Any]] = {
    "pair": {"loss": {"name": "multi_similarity"}},
    "proxy": {"loss": {"name": "proxy_anchor"}},
    "memory": {"loss": {"name": "contrastive", "memory": {"size": 100, "warmup_steps": 2}}},
    "trunk": {"loss": {"name": "triplet"}, "network": {"cached_trunk": "1", "pca_head": True}},
    "folds": {"loss": {"name": "soft_triple"}, "protocol": {"name": "cross_validation", "folds": 2}},
}


def recipe_of(name: str, tmp_path: Path, glyphs_root: Path) -> Recipe:
    values = RECIPES[name]
    small = {
        "name": "convnet",
        "embedding_dim": 8,
        "size": 16,
        "width": 4,
        "trunk_cache": str(tmp_path / "cache"),
    }
    return Recipe.parse(
        {
            "seed": 3,
            "data": {
                "name": "glyphs",
                "root": str(glyphs_root),
                "num_classes": 40,
                "images_per_class": 6,
                "size": 16,
            },
            "network": small | values.get("network", {}),
            "sampler": {"name": "balanced", "batch_size": 24, "images_per_class": 3},
            "optimizer": {"name": "adamw", "lr": 0.002},
            "training": {"epochs": 2},
            "protocol": values.get("protocol", {"name": "fixed_validation"}),
            "loss": values["loss"],
        }
    )


def assert_same_scores(found: dict[str, Any], expected: dict[str, float], queries: int) -> None:
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, abs=1.01 / queries), key


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_gives_the_numbers_of_the_first_edition(name, tmp_path, glyphs_root):
    run = execute(new_run(tmp_path / "run", recipe_of(name, tmp_path, glyphs_root)))
    expected = RECORD[name]
    validated = 60 if name == "folds" else 12
    assert_same_scores(run.result.test.to_dict(), expected["test"], 120)
    assert_same_scores(run.result.validation.to_dict(), expected["validation"], validated)
    for folder, rows in expected["epochs"].items():
        found = [json.loads(line) for line in (run.path / folder / "metrics.jsonl").read_text().splitlines()]
        assert len(found) == len(rows)
        for one, row in zip(found, rows, strict=True):
            assert (one["epoch"], one["lr"]) == (row["epoch"], pytest.approx(row["lr"]))
            assert (
                one.get("loss") == pytest.approx(row["loss"], rel=1e-5)
                if "loss" in row
                else "loss" not in one
            )
            scores = {key: value for key, value in row.items() if key not in {"epoch", "lr", "loss"}}
            assert_same_scores(one, scores, validated)


def test_folds_have_the_deviation_and_the_joint_score_of_the_first_edition(tmp_path, glyphs_root):
    result = execute(new_run(tmp_path / "run", recipe_of("folds", tmp_path, glyphs_root))).result
    assert_same_scores(result.concatenated.to_dict(), RECORD["folds"]["concatenated"], 120)
    assert_same_scores(result.test_deviation, RECORD["folds"]["test_deviation"], 120)
