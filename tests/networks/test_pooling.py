from __future__ import annotations

import pytest
import torch
from torch import nn

from nearkin import data, networks
from nearkin.data.preprocessing import Preprocessing
from nearkin.networks.pooling import GeneralizedMeanPooling
from nearkin.recipe import Recipe


@pytest.fixture
def features():
    return torch.rand(3, 5, 4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_average_maximum_and_their_sum(features):
    flat = features.flatten(2)
    pooled = {name: networks.poolings.build(name)(features) for name in ("avg", "max", "avg+max")}
    torch.testing.assert_close(pooled["avg"], flat.mean(2))
    torch.testing.assert_close(pooled["max"], flat.max(2).values)
    torch.testing.assert_close(pooled["avg+max"], pooled["avg"] + pooled["max"])


def test_generalised_mean_lies_between_mean_and_maximum(features):
    features = features.float()
    torch.testing.assert_close(GeneralizedMeanPooling(1.0)(features), features.mean((2, 3)))
    torch.testing.assert_close(GeneralizedMeanPooling(2.0)(features), features.square().mean((2, 3)).sqrt())
    torch.testing.assert_close(
        GeneralizedMeanPooling(300.0)(features), features.amax((2, 3)), rtol=0.02, atol=0
    )
    with pytest.raises(ValueError, match="p=0 must be greater than 0"):
        GeneralizedMeanPooling(0)


def test_generalised_mean_learns_its_exponent_and_survives_half_precision(features):
    pooling = GeneralizedMeanPooling()
    pooling(features.float()).sum().backward()
    assert pooling.p.grad.abs() > 0
    large = (features * 500).to(torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = pooling(large)
    assert result.dtype == torch.bfloat16
    torch.testing.assert_close(result.float(), pooling(large.float()), rtol=0.01, atol=0)


@pytest.mark.parametrize("pooling", networks.poolings.names())
def test_networks_take_every_pooling(pooling):
    network = networks.build("convnet", embedding_dim=4, pooling=pooling)
    images = torch.rand(2, 1, 32, 32)
    assert network.features(images).shape == (2, 128)
    trained = [parameter for group in network.param_groups(0.1) for parameter in group["params"]]
    assert {id(p) for p in trained} == {id(p) for p in network.parameters()}


@pytest.mark.parametrize("name", ["mlp", "lenet", "alexnet", "timm:deit_tiny_patch16_224"])
def test_pooling_that_a_network_would_ignore_is_refused(name):
    message = "pooling='max' would have no effect: the network gives features"
    with pytest.raises(ValueError, match=message):
        networks.build(name, embedding_dim=4, pooling="max")
    assert not networks.build(name, embedding_dim=4).pools


def test_a_backbone_that_did_not_say_that_it_gives_features_is_refused_when_it_does():
    flat = networks.Backbone(
        nn.Sequential(nn.Sequential(nn.Flatten())), 4, Preprocessing(size=2, mean=(0.5,), std=(0.25,))
    )
    images = torch.rand(3, 1, 2, 2)
    assert networks.EmbeddingNetwork(flat, embedding_dim=2)(images).shape == (3, 2)
    with pytest.raises(ValueError, match="pooling='gem' would have no effect"):
        networks.EmbeddingNetwork(flat, embedding_dim=2, pooling="gem")(images)


def test_so_is_that_of_anybodys_module_and_a_run_says_that_there_is_none():
    module = nn.Sequential(nn.Flatten(), nn.Linear(9, 5))
    samples = data.as_data_set((torch.rand(40, 9), torch.arange(8).repeat(5)))
    values = {"network": {"name": "python:Sequential"}, "sampler": {"batch_size": 10}}
    recipe = Recipe.parse(values, objects={"network": module})
    assert recipe.build(data=samples).disclosure["pooling"] == "none: the network gives features"
    with pytest.raises(ValueError, match="pooling='max' would have no effect"):
        recipe.changed({"network.pooling": "max"}).build(data=samples)
