from __future__ import annotations

import pytest
import torch
from running import new_run, train_on

from nearkin.observer import Observer
from nearkin.recipe import Recipe
from nearkin.training.resuming import grouped


@pytest.fixture
def recipe(small_recipe) -> Recipe:
    plain = {"name": "sgd", "momentum": 0.0, "lr": 1.0, "weight_decay": 0.0, "clip_value": 1e-6}
    return Recipe.parse(
        small_recipe
        | {
            "loss": {"name": "proxy_anchor", "lr_factor": 1.0},
            "optimizer": plain,
            "schedule": {"name": "constant", "warmup": 0.0},
            "training": {"epochs": 1},
        }
    )


def test_every_entry_of_a_gradient_is_clipped_in_the_network_and_in_the_loss(recipe, tmp_path):
    task = recipe.build()
    generator = torch.Generator().manual_seed(task.seed)
    loss = task.loss(task.data.train, task.embedder.network.embedding_dim, generator, Observer())
    before = {
        "network": {name: p.detach().clone() for name, p in task.embedder.network.named_parameters()},
        "loss": {name: p.detach().clone() for name, p in loss.named_parameters()},
    }
    run = new_run(tmp_path / "run", recipe)
    train_on(run, task.data.train)
    kept = run.last_checkpoint()
    steps, tensors = kept.state["scheduler"]["last_epoch"], grouped(kept.tensors)
    for part, start in before.items():
        moved = max(float((tensors[part][name] - value).abs().max()) for name, value in start.items())
        # Gradients are larger than what is left of them: 1e-6 an entry and a step, and round-off.
        assert 0.5e-6 < moved <= steps * 1e-6 + 1e-6, part
