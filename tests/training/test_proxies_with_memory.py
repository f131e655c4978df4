"""The thesis's future work: memory and offline mining for its own loss, in a run that is interrupted."""

from __future__ import annotations

import json

import pytest
from interruptions import Interruption, StopAtBatch
from running import execute, new_run

from nearkin import sampling
from nearkin.recipe import Recipe


def finish(path, values):
    execute(new_run(path, Recipe.parse(values)))
    return json.loads((path / "result.json").read_text())


def test_proxy_repulsion_with_memory_relations_and_offline_mining_resumes(
    small_recipe, tmp_path, monkeypatch
):
    monkeypatch.setattr("nearkin.training.engine._LOOK_EVERY", 2)
    values = small_recipe | {
        "loss": {"name": "proxy_repulsion", "relations": 0.5, "memory": {"size": 60, "warmup_steps": 2}},
        "sampler": {"name": "hard_neighbours", "batch_size": 20},
        "training": {"epochs": 2, "checkpoint_minutes": 1e-9},
    }
    refreshed = []
    maker = sampling.registry.get("hard_neighbours")
    refresh = maker.refresh
    monkeypatch.setattr(maker, "refresh", lambda self, e: (refreshed.append(e.shape), refresh(self, e)))
    whole = finish(tmp_path / "whole", values)
    assert refreshed, "hard negatives were looked for in the whole training set"
    run = new_run(tmp_path / "broken", Recipe.parse(values))
    with pytest.raises(Interruption):
        execute(run, StopAtBatch(5))
    assert finish(run.path, values)["test"] == whole["test"]
    assert whole["disclosure"]["modifiers"]


def test_relations_want_batches_with_pairs(small_recipe):
    plain = {key: value for key, value in small_recipe.items() if key != "sampler"}
    for relations, sampler in ((0.0, "random"), (0.5, "balanced")):
        loss = {"name": "proxy_repulsion", "relations": relations}
        assert Recipe.parse(plain | {"loss": loss}).resolved().sampler.name == sampler
