from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from nearkin import losses, networks
from nearkin.recipe.recipe import Recipe, ScheduleRecipe, override
from nearkin.training.optimization import (
    build_optimizer,
    build_scheduler,
    learning_rate_factor,
    refuse_forgotten_parameters,
)


def recipe(*settings: str) -> Recipe:
    return Recipe.parse(override({}, settings))


def small_network() -> networks.EmbeddingNetwork:
    return networks.build("mlp", size=8, hidden=(6,), embedding_dim=4)


def proxy_anchor() -> losses.Loss:
    return losses.build("proxy_anchor", num_classes=3, embedding_dim=4)


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd", "rmsprop"])
def test_every_optimiser_moves_network_and_proxies(name):
    network, loss = small_network(), proxy_anchor()
    before = [p.detach().clone() for p in (*network.parameters(), loss.proxies)]
    optimizer = build_optimizer(recipe(f"optimizer.name={name}", "optimizer.lr=0.1"), network, loss)
    loss(network(torch.randn(6, 1, 8, 8)), torch.arange(6) % 3).backward()
    optimizer.step()
    after = [*network.parameters(), loss.proxies]
    assert all(not torch.equal(b, a) for b, a in zip(before, after, strict=True))


def test_the_loss_has_its_own_learning_rate():
    network, loss = small_network(), proxy_anchor()
    optimizer = build_optimizer(recipe("optimizer.lr=0.1", "loss.lr=0.7"), network, loss)
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.1, 0.7]
    optimizer = build_optimizer(recipe("optimizer.lr=0.1", "network.head_lr_factor=3"), network, loss)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.1, 0.3, 1.0])
    optimizer = build_optimizer(recipe("optimizer.lr=0.1", "loss.lr_factor=100"), network, loss)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.1, 0.1, 10.0])


def test_a_forgotten_parameter_stops_the_training():
    network, loss = small_network(), proxy_anchor()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="loss parameter 'proxies' is not in the optimiser"):
        refuse_forgotten_parameters(optimizer, network=network, loss=loss)


def test_the_shapes_of_the_schedules():
    cosine = ScheduleRecipe(name="cosine", warmup=2)
    assert learning_rate_factor(cosine, 10, 2) == 1
    assert learning_rate_factor(cosine, 10, 6) == pytest.approx(0.5)
    assert learning_rate_factor(cosine, 10, 10) == pytest.approx(0)
    step = ScheduleRecipe(name="step", warmup=0, every=5, factor=0.1)
    assert [learning_rate_factor(step, 100, e) for e in (0, 4.99, 5, 10)] == pytest.approx([1, 1, 0.1, 0.01])
    assert learning_rate_factor(ScheduleRecipe(name="constant", warmup=0), 10, 9) == 1


def test_the_scheduler_counts_steps():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = build_scheduler(recipe("training.epochs=4", "schedule.warmup=1"), optimizer, steps=10)
    rates = []
    for _ in range(40):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates[0] == rates[1] == pytest.approx(0.1)
    assert rates[10] == pytest.approx(1)
    assert rates[25] == pytest.approx(0.5 * (1 + math.cos(math.pi * 0.5)))
    assert rates[11:] == sorted(rates[11:], reverse=True)
