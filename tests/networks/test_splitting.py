from __future__ import annotations

import pytest
import torch
from torch import nn

from nearkin import networks
from nearkin.networks.splitting import split_module

STAGES = {
    "convnet": ["0", "2", "1.1", "pooling"],
    "mlp": ["1", "pooling"],
    "resnet18": ["conv1", "layer2", "layer4.0", "pooling"],
    "googlenet": ["transform_input", "inception4b", "inception5b"],
    "googlenet_published": ["pool2_3x3_s2", "inception_4e", "inception_5b"],
    "bninception": ["pool2_3x3_s2", "inception_4e", "inception_5b"],
    "alexnet": ["features.7", "flatten", "classifier.2"],
    "timm:tf_efficientnet_lite0": ["bn1", "blocks.4", "blocks.5.1", "conv_head", "pooling"],
}
GIVE_FEATURES = {"mlp", "alexnet"}  # which no pooling could have an effect on


def images_for(network):
    size = network.preprocessing.size
    shape = (2, network.preprocessing.channels, size, size)
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", STAGES)
def test_the_parts_are_the_whole(name):
    pooling = "avg" if name in GIVE_FEATURES else "avg+max"
    network = networks.build(name, embedding_dim=5, pooling=pooling).eval()
    images = images_for(network)
    expected = network(images)
    for stage in STAGES[name]:
        assert stage in [*network.stages, *dict(network.backbone.named_modules())]
        trunk, rest = network.split(stage)
        activations = trunk(images)
        assert not activations.requires_grad
        torch.testing.assert_close(rest(activations), expected)
        own = {id(p) for p in network.parameters()}
        below, above = ({id(p) for p in part.parameters()} for part in (trunk, rest))
        assert below | above == own
        assert not below & above


def test_training_the_rest_trains_the_network_and_leaves_the_trunk():
    network = networks.build("resnet18", embedding_dim=5)
    trunk, rest = network.split("layer3")
    images = images_for(network)
    before = trunk(images)
    network.train()
    head, layer4 = (
        network.head.weight.detach().clone(),
        network.backbone.layer4[1].conv2.weight.detach().clone(),
    )
    optimiser = torch.optim.SGD(rest.param_groups(0.1))
    rest(before.clone()).square().sum().backward()
    optimiser.step()
    assert not network.head.weight.equal(head)
    assert not network.backbone.layer4[1].conv2.weight.equal(layer4)
    assert trunk(images).equal(before)  # in training mode, too, and its running statistics did not move
    assert network.training
    assert network.backbone.bn1.training


def test_the_rest_keeps_frozen_batch_norms_frozen():
    network = networks.build("resnet18", embedding_dim=5)
    networks.freeze_batch_norm(network)
    trunk, rest = network.split("layer3")
    rest.train()
    mean = network.backbone.layer4[0].bn1.running_mean.clone()
    rest(trunk(images_for(network)))
    assert network.backbone.layer4[0].bn1.running_mean.equal(mean)


def test_stages_come_in_order():
    network = networks.build("timm:tf_efficientnet_lite0", embedding_dim=5)
    stages = network.stages
    assert stages[:3] == ("conv_stem", "bn1", "blocks.0")
    assert stages[8:12] == ("blocks.6", "blocks", "conv_head", "bn2")
    assert stages[-1] == "pooling"


def test_stages_that_do_not_exist_or_cannot_be_cut():
    network = networks.build("resnet18", embedding_dim=5)
    with pytest.raises(ValueError, match="no stage 'layer5': did you mean layer"):
        network.split("layer5")
    with pytest.raises(ValueError, match="cannot split after 'layer2.0.conv1': what follows it needs more"):
        network.split("layer2.0.conv1")
    idle = nn.Module()
    idle.layer, idle.spare = nn.Linear(3, 3), nn.Linear(3, 3)
    idle.forward = idle.layer.forward
    with pytest.raises(ValueError, match="stage 'spare' does not run in a forward pass"):
        split_module(idle, "spare", (1, 3))
