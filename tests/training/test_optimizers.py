from __future__ import annotations

import pytest
import torch

from nearkin import losses, networks
from nearkin.data import DataSet, ImageArray, SampleSet
from nearkin.recipe import Recipe, override
from nearkin.training import Task
from nearkin.training.optimizers import find, refuse_forgotten_parameters


def small_network() -> networks.EmbeddingNetwork:
    return networks.build("mlp", size=8, hidden=(6,), embedding_dim=4)


def proxy_anchor() -> losses.Loss:
    return losses.build("proxy_anchor", num_classes=3, embedding_dim=4)


def task(*settings: str) -> Task:
    pixels = torch.zeros(20, 1, 8, 8, dtype=torch.uint8)
    samples = SampleSet(ImageArray(pixels), torch.arange(20) % 5)
    network = {"name": "mlp", "size": 8, "hidden": [6], "embedding_dim": 4}
    values = {"network": network, "sampler": {"batch_size": 10}, "protocol": {"name": "standard"}}
    return Recipe.parse(override(values, settings)).build(data=DataSet("toy", samples))


def groups(built: Task, network: networks.Network, loss: losses.Loss) -> list[dict]:
    rates = built.rates
    return [*network.param_groups(rates.network, rates.head), *loss.param_groups(rates.loss)]


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd", "rmsprop", "torch:RAdam", "timm:lamb"])
def test_every_optimiser_moves_network_and_proxies(name):
    network, loss = small_network(), proxy_anchor()
    before = [p.detach().clone() for p in (*network.parameters(), loss.proxies)]
    built = task(f"optimizer.name={name}", "optimizer.lr=0.1")
    optimizer = built.optimizer(groups(built, network, loss))
    for _ in range(2):  # a rectified optimiser's first step may be tiny
        loss(network(torch.randn(6, 1, 8, 8)), torch.arange(6) % 3).backward()
        optimizer.step()
    after = [*network.parameters(), loss.proxies]
    assert all(not torch.equal(b, a) for b, a in zip(before, after, strict=True))


def test_keywords_of_an_optimiser_reach_it():
    built = task("optimizer.name=adamw", "optimizer.betas=[0.5, 0.9]", "optimizer.eps=0.01")
    optimizer = built.optimizer(groups(built, small_network(), proxy_anchor()))
    assert optimizer.defaults["betas"] == (0.5, 0.9)
    assert optimizer.defaults["eps"] == 0.01


def test_the_loss_has_its_own_learning_rate():
    network, loss = small_network(), proxy_anchor()

    def rates(*settings: str) -> list[float]:
        built = task("optimizer.lr=0.1", *settings)
        return [group["lr"] for group in built.optimizer(groups(built, network, loss)).param_groups]

    assert rates("loss.lr=0.7") == [0.1, 0.1, 0.7]
    assert rates("network.head_lr_factor=3.0") == pytest.approx([0.1, 0.3, 1.0])
    assert rates("loss.lr_factor=100.0") == pytest.approx([0.1, 0.1, 10.0])


def test_a_forgotten_parameter_stops_the_training():
    network, loss = small_network(), proxy_anchor()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="loss parameter 'proxies' is not in the optimiser"):
        refuse_forgotten_parameters(optimizer, network=network, loss=loss)


@pytest.mark.parametrize("name", ["torch:RAdamm", "timm:lambb", "adamx"])
def test_a_misspelt_optimiser_is_told_with_the_nearest(name):
    with pytest.raises(ValueError, match="did you mean"):
        find(name)
