from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from nearkin import networks


@pytest.fixture
def network():
    return networks.build("resnet18", embedding_dim=4)


def batch_norms(network):
    return {name: module for name, module in network.named_modules() if isinstance(module, nn.BatchNorm2d)}


def train_a_step(network):
    network.train()
    optimiser = torch.optim.SGD(network.param_groups(0.1))
    network(torch.rand(4, 3, 64, 64, generator=torch.Generator().manual_seed(0))).square().sum().backward()
    optimiser.step()


def test_frozen_batch_norm_keeps_statistics_and_affine_parameters_through_a_warm_up(network):
    count = networks.freeze_batch_norm(network)
    assert count == len(batch_norms(network)) == 20
    before = {name: copy.deepcopy(module.state_dict()) for name, module in batch_norms(network).items()}
    first_layer = network.backbone.conv1.weight.detach().clone()
    networks.train_head_only(network)
    train_a_step(network)
    assert network.backbone.conv1.weight.equal(first_layer)
    networks.train_head_only(network, False)
    train_a_step(network)
    assert not network.backbone.conv1.weight.equal(first_layer)
    for name, module in batch_norms(network).items():
        assert not any(parameter.requires_grad for parameter in module.parameters())
        assert all(value.equal(before[name][key]) for key, value in module.state_dict().items()), name


def test_without_freezing_all_of_it_moves(network):
    before = copy.deepcopy(network.backbone.bn1.state_dict())
    train_a_step(network)
    after = network.backbone.bn1.state_dict()
    assert not any(after[key].equal(before[key]) for key in ("weight", "bias", "running_mean", "running_var"))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda network: pickle.loads(pickle.dumps(network))])
def test_copies_stay_frozen(network, duplicate):
    networks.freeze_batch_norm(network)
    networks.freeze_batch_norm(network)
    replica = duplicate(network)
    mean = replica.backbone.bn1.running_mean.clone()
    replica.train()
    replica(torch.rand(2, 3, 64, 64))
    assert replica.backbone.bn1.running_mean.equal(mean)
    assert len(replica.backbone.bn1._forward_pre_hooks) == 1


def test_param_groups_leave_out_frozen_batch_norms_and_nothing_else(network):
    networks.freeze_batch_norm(network)
    networks.train_head_only(network)
    groups = network.param_groups(1e-4, head_lr=1e-3)
    assert [(group["name"], group["lr"]) for group in groups] == [("backbone", 1e-4), ("head", 1e-3)]
    held = {id(p) for group in groups for p in group["params"]}
    frozen = {id(p) for module in batch_norms(network).values() for p in module.parameters()}
    assert held == {id(p) for p in network.parameters()} - frozen
    assert [tuple(p.shape) for p in groups[1]["params"]] == [(4, 512), (4,)]


def test_a_network_without_batch_norm_says_so():
    with pytest.raises(ValueError, match="no batch norm"):
        networks.freeze_batch_norm(networks.build("lenet", embedding_dim=4))
