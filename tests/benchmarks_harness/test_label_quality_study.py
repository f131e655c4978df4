"""The study of wrong labels: its plan, and a table of what runs and their cleaning found."""

from __future__ import annotations

import pytest
from measured import BENCHMARKS  # noqa: F401  (puts the benchmarks on the path)

import label_quality as study


def row(clean, recall, seed=0, quality=None):
    known = {"loss": "triplet", "noise": "uniform", "share": 0.2, "seed": seed}
    return known | {"clean": clean, "recall_at_1": recall, "quality": quality}


def test_the_plan_takes_settings():
    plan = study.plan_of(["recipe.training.epochs=2", "seeds=[0]"])
    assert len(plan.runs()) == 18
    assert {run.recipe.training.epochs for run in plan.runs()} == {2}
    assert {run.recipe.protocol.keywords.get("clean") for run in plan.runs()} == {
        None,
        "neighbours",
        "sub_centres",
    }


def test_the_table_has_means_over_seeds_and_a_dash_for_what_is_not_there():
    found = {"precision": 0.5, "recall": 0.25}
    other = {"precision": 0.7, "recall": 0.25}
    rows = [
        row("none", 0.4),
        row("none", 0.6, 1),
        row("neighbours", 0.7, 0, found),
        row("neighbours", 0.7, 1, other),
    ]
    lines = study.table(rows)
    cells = ["triplet", "20 % uniform", "50.00 ± 14.14", "60.00 ± 14.14", "25.00 ± 0.00", "70.00 ± 0.00"]
    assert lines[2] == f"| {' | '.join([*cells, '–', '–', '–'])} |"
    assert "seeds 0, 1" in study.page(rows)


@pytest.mark.slow
def test_what_a_run_found_is_read_from_its_directory(small_recipe, tmp_path, capsys):
    data, network = small_recipe["data"], small_recipe["network"]
    protocols = [
        {"name": "noisy_labels", "label": "all"},
        {"name": "noisy_labels", "label": "cleaned", "clean": "neighbours"},
    ]
    settings = [
        *(f"recipe.data.{key}={value!r}" for key, value in data.items() if key not in ("name", "root")),
        f'recipe.data.root="{data["root"]}"',
        "recipe.data.transform=none",
        'data_sets=["glyphs"]',
        'networks=["convnet"]',
        f"recipe.network={{ size = {network['size']}, width = {network['width']} }}",
        "embedding_dims=[16]",
        "seeds=[0]",
        'losses=["multi_similarity"]',
        "recipe.training.epochs=1",
        "recipe.sampler.batch_size=40",
        "protocols=[" + ", ".join(
            "{ " + ", ".join(f'{key} = "{value}"' for key, value in one.items()) + " }" for one in protocols
        ) + "]",
    ]  # fmt: skip
    arguments = [part for setting in settings for part in ("--set", setting)]
    study.main([*arguments, "--folder", str(tmp_path), "--jobs", "1"])
    found = {one["clean"]: one for one in study.rows(tmp_path / "runs")}
    assert set(found) == {"none", "neighbours"}
    assert found["none"]["quality"] is None
    assert found["neighbours"]["quality"]["wrong"] == round(0.2 * found["neighbours"]["quality"]["samples"])
    assert "20 % uniform" in capsys.readouterr().out
