"""Samplers, optimisers, protocols and networks of one's own, given in Python or named."""

from __future__ import annotations

import functools
import sys
import types

import numpy as np
import pytest
import torch
from torch import nn

import nearkin
from nearkin import sampling
from nearkin.training.run import RunError

VECTORS = np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32)
LABELS = np.repeat(np.arange(12), 5)


class Sized(nn.Module):
    """A network that takes the size of an embedding itself."""

    def __init__(self, embedding_dim: int, width: int = 8) -> None:
        super().__init__()
        self.layer = nn.Linear(width, embedding_dim)

    def forward(self, inputs):
        return self.layer(inputs)


@pytest.fixture
def train(tmp_path):
    settings = {"network": nn.Linear(8, 4), "loss": "contrastive", "epochs": 1, "batch_size": 20}
    settings["output"] = tmp_path / "run"

    def run(**own):
        return nearkin.train((VECTORS, LABELS), progress=False, **settings | own)

    return run


def test_a_sampler_and_an_optimizer_that_no_module_names_are_used(train):
    used = []

    class Counted(sampling.BalancedSampler):
        def _planned(self, generator):
            used.append("sampler")
            return super()._planned(generator)

    def optimizer(params, *, lr, weight_decay):
        used.append("optimizer")
        return torch.optim.SGD(params, lr=lr, weight_decay=weight_decay)

    run = train(sampler=Counted, optimizer=optimizer)
    assert set(used) == {"sampler", "optimizer"}
    assert run.result.test.recall_at[1] >= 0


def test_a_partial_function_is_an_optimizer(train):
    run = train(optimizer=functools.partial(torch.optim.SGD, momentum=0.5))
    assert run.finished


class _Odd:
    """Neither a sampler nor a protocol."""

    def __init__(self, *_, **__) -> None:
        pass


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"optimizer": torch.optim.SGD([torch.zeros(1)], lr=1.0)},
            "optimizer must be a class or function .* not an object of the type SGD",
        ),
        (
            {"sampler": sampling.BalancedSampler(LABELS, batch_size=20)},
            "sampler must be a class or function .* not an object of the type BalancedSampler",
        ),
        ({"sampler": _Odd}, "the sampler _Odd is no nearkin.sampling.PlannedSampler"),
        (
            {"protocol": type("Local", (), {})()},
            "the protocol that was given is of the type Local, which is no Protocol",
        ),
    ],
)
def test_what_cannot_be_used_is_said_before_anything_runs(train, settings, message):
    with pytest.raises(ValueError, match=message):
        train(**settings)


def test_a_network_that_takes_the_size_of_an_embedding_is_given_it(train, monkeypatch):
    module = types.ModuleType("sized_networks")
    module.Sized = Sized
    monkeypatch.setitem(sys.modules, "sized_networks", module)
    run = train(network={"name": "sized_networks:Sized", "embedding_dim": 5})
    assert nearkin.load(run.path).embed(VECTORS[:3]).shape == (3, 5)
    with pytest.raises(ValueError, match="needs the size of an embedding: say network.embedding_dim"):
        train(network={"name": "sized_networks:Sized"}, output=run.path.parent / "other")


def test_another_network_for_a_finished_run_is_told_in_words(train):
    train()
    with pytest.raises(RunError, match="the network that was given in Python is another one here"):
        train(network=nn.Linear(8, 6))


def test_samples_that_a_network_cannot_take_are_told(train):
    model = nearkin.load(train().path, network=nn.Linear(8, 4))
    with pytest.raises(
        ValueError, match=r"the network Linear cannot take these samples \(vectors\): Runtime"
    ):
        model.embed(VECTORS[:2, :5])
    with pytest.raises(
        ValueError, match=r"the network Linear cannot take these samples \(texts\): TypeError"
    ):
        model.embed("a text")
