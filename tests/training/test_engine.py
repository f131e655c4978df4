from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from interruptions import Interruption, StopAtBatch
from running import execute, load_network, new_run

from nearkin import losses
from nearkin.protocols import score_test
from nearkin.recipe import Recipe, open_data
from nearkin.sampling import base as sampling
from nearkin.training import Run, TrainingError

HERE = Path(__file__).parent


def finish(path: Path, values: dict) -> str:
    execute(new_run(path, Recipe.parse(values)))
    return (path / "result.json").read_text()


def test_the_same_seed_gives_the_same_result_twice(small_recipe, tmp_path):
    first, second = (finish(tmp_path / name, small_recipe) for name in "ab")
    assert first == second
    other = finish(tmp_path / "c", small_recipe | {"seed": 1})
    assert json.loads(other)["test"] != json.loads(first)["test"]


@pytest.mark.parametrize("loss", ["proxy_anchor", "multi_similarity", "contrastive"])
def test_training_learns(loss, small_recipe, tmp_path):
    values = small_recipe | {
        "data": small_recipe["data"] | {"num_classes": 300, "images_per_class": 12, "size": 24},
        "network": {"size": 24, "width": 8, "embedding_dim": 32},
        "sampler": {"batch_size": 90},
        "loss": {"name": loss},
        "training": {"epochs": 6},
    }
    run = new_run(tmp_path / "run", Recipe.parse(values))
    finished = execute(run)
    rows = run.metrics()
    assert [row["epoch"] for row in rows] == list(range(7))
    assert rows[-1]["loss"] < rows[1]["loss"]
    untrained = score_test(run.recipe.build().embedder, open_data(run.recipe), (1,))
    assert finished.result.test.recall_at[1] > untrained.scores.recall_at[1] + 0.1


# Six batches make an epoch: in mid-epoch, at its last batch, at the first of the second.
@pytest.mark.parametrize("step", [3, 6, 7, 11])
def test_an_interrupted_run_ends_with_the_same_result(step, small_recipe, tmp_path):
    whole = finish(tmp_path / "whole", small_recipe)
    run = new_run(tmp_path / "broken", Recipe.parse(small_recipe))
    with pytest.raises(Interruption):
        execute(run, StopAtBatch(step))
    assert not run.finished
    assert finish(run.path, small_recipe) == whole
    assert run.metrics()[-1]["recall_at_1"] == Run.existing(tmp_path / "whole").metrics()[-1]["recall_at_1"]


def test_a_checkpoint_in_mid_epoch_is_gone_on_from(small_recipe, tmp_path, monkeypatch):
    monkeypatch.setattr("nearkin.training.engine._LOOK_EVERY", 2)
    values = small_recipe | {"training": {"epochs": 2, "checkpoint_minutes": 1e-9}}
    whole = finish(tmp_path / "whole", values)
    run = new_run(tmp_path / "broken", Recipe.parse(values))
    with pytest.raises(Interruption):
        execute(run, StopAtBatch(5))
    assert run.last_checkpoint().state["batch"] == 4
    assert finish(run.path, values) == whole


@pytest.mark.parametrize("sampler", ["hard_classes", "hard_neighbours"])
def test_samplers_that_look_at_embeddings_are_refreshed_and_resumed(
    sampler, small_recipe, tmp_path, monkeypatch
):
    monkeypatch.setattr("nearkin.training.engine._LOOK_EVERY", 2)
    values = small_recipe | {
        "sampler": {"name": sampler, "batch_size": 20},
        "training": {"epochs": 2, "checkpoint_minutes": 1e-9},
    }
    refreshed = []
    maker = sampling.registry.get(sampler)
    refresh = maker.refresh
    monkeypatch.setattr(maker, "refresh", lambda self, e: (refreshed.append(e.shape), refresh(self, e)))
    whole = finish(tmp_path / "whole", values)
    assert refreshed[0] == (216, 16)
    run = new_run(tmp_path / "broken", Recipe.parse(values))
    with pytest.raises(Interruption):
        execute(run, StopAtBatch(5))
    assert run.last_checkpoint().state["batch"] == 4
    assert finish(run.path, values) == whole


def test_a_broken_loss_stops_with_a_clear_message_and_keeps_the_checkpoint(small_recipe, tmp_path):
    @losses.register("explodes_in_epoch_two")
    class Explodes(losses.Loss):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, embeddings: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return embeddings.sum() * (float("nan") if self.calls > 8 else 0.0)

    try:
        values = small_recipe | {"loss": {"name": "explodes_in_epoch_two"}}
        run = new_run(tmp_path / "run", Recipe.parse(values))
        with pytest.raises(TrainingError, match=r"epoch 2, batch \d+: .*finite"):
            execute(run)
    finally:
        losses.unregister("explodes_in_epoch_two")
    assert run.last_checkpoint().state["epoch"] == 1
    assert not run.finished


def test_bf16_trains(small_recipe, tmp_path):
    values = small_recipe | {"training": {"epochs": 1, "precision": "bf16"}}
    run = new_run(tmp_path / "run", Recipe.parse(values))
    finished = execute(run)
    assert 0 < finished.result.test.recall_at[1] <= 1
    assert next(load_network(run).parameters()).dtype == torch.float32


def test_scores_of_a_bf16_training_are_those_of_the_network_that_is_kept(small_recipe, tmp_path):
    values = small_recipe | {"training": {"epochs": 1, "precision": "bf16"}}
    run = new_run(tmp_path / "run", Recipe.parse(values))
    opened = execute(run).result.opened
    network = load_network(run)
    images = network.preprocessing.normalize(opened.queries.samples.pixels[:5])
    with torch.no_grad():
        assert torch.allclose(network(images), opened.query_embeddings[:5], atol=1e-5)


def test_the_trained_network_is_loaded_as_it_was(small_recipe, tmp_path):
    run = new_run(tmp_path / "run", Recipe.parse(small_recipe))
    opened = execute(run).result.opened
    network = load_network(run)
    images = network.preprocessing.normalize(opened.queries.samples.pixels[:5])
    with torch.no_grad():
        assert torch.allclose(network(images), opened.query_embeddings[:5], atol=1e-5)


def test_global_randomness_is_left_alone(small_recipe, tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    finish(tmp_path / "run", small_recipe)
    assert torch.equal(torch.rand(3), expected)
