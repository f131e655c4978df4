from __future__ import annotations

import pytest
import torch

from nearkin import networks
from nearkin.networks.pooling import GeneralizedMeanPooling


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
