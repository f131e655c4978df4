"""Every registered network, and some of timm, through one set of checks."""

from __future__ import annotations

import pytest
import torch

import nearkin.torchvision_import  # noqa: F401  (must come before torchvision and timm)

# isort: split
import timm
import torchvision

from nearkin import networks

SMALL_TIMM = ["timm:tf_efficientnet_lite0", "timm:vit_tiny_patch16_224", "timm:swin_tiny_patch4_window7_224"]
ALL = [*networks.names(), *SMALL_TIMM]
PUBLISHED_PARAMETERS = {
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "googlenet": 6_624_904,
    "googlenet_published": 6_998_552,
    "bninception": 11_295_240,
    "alexnet": 61_100_840,
}


def images_for(network, count=2):
    size = network.preprocessing.size
    shape = (count, network.preprocessing.channels, size, size)
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", ALL)
def test_images_become_embeddings_and_gradients_reach_every_parameter(name):
    network = networks.build(name, embedding_dim=7)
    embeddings = network(images_for(network))
    assert embeddings.shape == (2, 7)
    embeddings.square().sum().backward()
    without = [key for key, parameter in network.named_parameters() if parameter.grad is None]
    assert not without


@pytest.mark.parametrize("name", ["convnet", "googlenet", "bninception", "timm:tf_efficientnet_lite0"])
def test_the_seed_decides_the_weights_and_nothing_else_is_touched(name):
    before = torch.get_rng_state()
    first, again, other = (
        networks.build(name, embedding_dim=3, seed=seed).state_dict() for seed in (1, 1, 2)
    )
    assert torch.get_rng_state().equal(before)
    assert all(first[key].equal(again[key]) for key in first)
    assert not first["head.weight"].equal(other["head.weight"])


@pytest.mark.parametrize("name", PUBLISHED_PARAMETERS)
def test_parameters_with_a_classifier_for_imagenet_are_the_published_number(name):
    backbone = networks.base.registry.build(name)
    parameters = sum(parameter.numel() for parameter in backbone.module.parameters())
    classifier = 1000 * backbone.num_features + 1000
    assert parameters + classifier == PUBLISHED_PARAMETERS[name]


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "googlenet", "alexnet"])
def test_torchvisions_own_model_gives_the_same_features_from_the_same_file(name, tmp_path):
    keywords = (
        {"init_weights": True, "aux_logits": False, "transform_input": True} if name == "googlenet" else {}
    )
    theirs = torchvision.models.get_model(name, weights=None, **keywords).eval()
    torch.save(theirs.state_dict(), tmp_path / "weights.pth")
    ours = networks.build(name, embedding_dim=2, weights=tmp_path / "weights.pth").eval()
    last = "classifier.6" if name == "alexnet" else "fc"
    *parent, child = last.split(".")
    setattr(theirs.get_submodule(".".join(parent)), child, torch.nn.Identity())
    images = images_for(ours)
    with torch.no_grad():
        torch.testing.assert_close(ours.features(images), theirs(images), rtol=1e-4, atol=1e-5)


def test_timms_own_model_gives_the_same_features_and_preprocessing(tmp_path):
    theirs = timm.create_model("tf_efficientnet_lite0", num_classes=10).eval()
    torch.save(theirs.state_dict(), tmp_path / "weights.pth")
    ours = networks.build(
        "timm:tf_efficientnet_lite0", embedding_dim=2, weights=tmp_path / "weights.pth"
    ).eval()
    images = images_for(ours)
    with torch.no_grad():
        expected = theirs.forward_head(theirs.forward_features(images), pre_logits=True)
        torch.testing.assert_close(ours.features(images), expected)
    assert ours.preprocessing.mean == ours.preprocessing.std == (0.5, 0.5, 0.5)
    assert (ours.preprocessing.size, ours.preprocessing.resize) == (224, 256)


def test_feature_maps_and_feature_vectors():
    shapes = {
        "bninception": (1, 1024, 7, 7),
        "timm:tf_efficientnet_lite0": (1, 1280, 7, 7),
        "timm:vit_tiny_patch16_224": (1, 192),
        "timm:swin_tiny_patch4_window7_224": (1, 768),
    }
    for name, shape in shapes.items():
        network = networks.build(name, embedding_dim=2)
        assert network.backbone(images_for(network, 1)).shape == shape
        assert network.num_features == shape[1]


def test_an_unknown_timm_model_is_named_with_the_nearest():
    with pytest.raises(ValueError, match="timm has no model 'resnet5o': did you mean resnet50"):
        networks.build("timm:resnet5o", embedding_dim=2)


def test_a_timm_backbone_at_another_size():
    network = networks.build("timm:tf_efficientnet_lite0", embedding_dim=2, size=96)
    assert (network.preprocessing.size, network.preprocessing.resize) == (96, 109)
    assert network(images_for(network)).shape == (2, 2)
