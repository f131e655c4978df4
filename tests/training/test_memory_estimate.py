from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch

from nearkin.observer import Observer
from nearkin.recipe import Recipe
from nearkin.training import memory

MEASURED = """
import psutil, torch
from nearkin import losses
from nearkin.recipe.objects import recipe_of
from nearkin.training import memory
images, labels = torch.randint(0, 255, (400, 1, 64, 64), dtype=torch.uint8), torch.arange(400) // 10
task = recipe_of(
    (images, labels),
    network={"name": "convnet", "size": 64, "width": 32},
    sampler={"name": "random", "batch_size": 160},
).build()
told = memory.estimate(task)
network, inputs = task.embedder.network, torch.randn(160, 1, 64, 64)
loss = losses.build("multi_similarity")
labels = torch.arange(160) // 4
optimizer = task.optimizer([{"params": list(network.parameters()), "lr": 0.1}])
def peak():  # of this program; getrusage would count the process that started it
    lines = open("/proc/self/status").read().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))
highest, before = peak(), psutil.Process().memory_info().rss
loss(network.train()(inputs), labels).backward()
optimizer.step()
reached = peak()
assert reached > highest
print(told, reached - before)
"""


class Listener(Observer):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def warning(self, text: str) -> None:
        self.heard.append(text)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts pages as Linux does")
def test_the_estimate_is_within_a_factor_of_two_of_what_was_measured():
    done = subprocess.run([sys.executable, "-c", MEASURED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told, measured = map(int, done.stdout.split())
    assert measured > 5e7
    assert 0.5 < told / measured < 2


def test_estimating_changes_nothing(small_recipe):
    task = Recipe.parse(small_recipe).build()
    before = copy.deepcopy(task.embedder.network.state_dict())
    state, mode = torch.get_rng_state(), task.embedder.network.training
    memory.estimate(task)
    assert torch.equal(torch.get_rng_state(), state)
    assert task.embedder.network.training is mode
    after = task.embedder.network.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(p.grad is None for p in task.embedder.network.parameters())


def test_activations_grow_with_the_batch_and_not_with_the_chunk(small_recipe):
    def told(**changes):
        recipe = Recipe.parse(small_recipe).changed({"network.freeze_batch_norm": True, **changes})
        return memory.detailed_estimate(recipe.build())

    small, large = (told(**{"sampler.batch_size": size}) for size in (10, 40))
    assert large.per_sample == small.per_sample
    assert (small.samples, large.samples) == (10, 40)
    chunked = told(**{"sampler.batch_size": 40, "training.chunk": 5})
    assert chunked.samples == 5
    assert chunked.total < large.total
    assert told(**{"data.views": 2, "sampler.batch_size": 10}).samples == 20


def test_a_training_that_takes_most_of_the_memory_is_warned_about(small_recipe, monkeypatch):
    task = Recipe.parse(small_recipe).changed({"network.freeze_batch_norm": True}).build()
    needed = memory.detailed_estimate(task)
    listener = Listener()
    memory.warn_if_too_large(task, listener)
    assert listener.heard == []
    monkeypatch.setattr(memory, "free_memory", lambda: int(needed.total / 0.9))
    memory.warn_if_too_large(task, listener)
    (line,) = listener.heard
    assert line.startswith("training will take about ")
    assert "training.chunk=" in line
    assert "a smaller sampler.batch_size (it is 40)" in line


def test_chunks_are_not_proposed_where_batch_norm_is_trained(small_recipe, monkeypatch):
    task = Recipe.parse(small_recipe).build()
    monkeypatch.setattr(memory, "free_memory", lambda: 1_000_000)
    listener = Listener()
    memory.warn_if_too_large(task, listener)
    assert "chunk" not in listener.heard[0]


def test_what_cannot_be_told_is_left_to_training(small_recipe, monkeypatch):
    task = Recipe.parse(small_recipe).build()

    def broken(*_: object) -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(task.embedder.network, "forward", broken)
    listener = Listener()
    memory.warn_if_too_large(task, listener)
    assert listener.heard == []
