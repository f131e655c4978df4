from __future__ import annotations

import torch
from torch.nn import functional as F

from nearkin import networks
from nearkin.networks.googlenet import GoogLeNet, Inception

# Names and shapes of the public weights, from their Caffe definition, joined by underscores.
PUBLIC = {
    "conv1_7x7_s2.weight": (64, 3, 7, 7),
    "conv1_7x7_s2.bias": (64,),
    "conv2_3x3_reduce.weight": (64, 64, 1, 1),
    "conv2_3x3.weight": (192, 64, 3, 3),
    "inception_3a_1x1.weight": (64, 192, 1, 1),
    "inception_3a_5x5_reduce.bias": (16,),
    "inception_3a_5x5.weight": (32, 16, 5, 5),
    "inception_4c_3x3_reduce.weight": (128, 512, 1, 1),
    "inception_4e_pool_proj.weight": (128, 528, 1, 1),
    "inception_5b_3x3.weight": (384, 192, 3, 3),
    "inception_5b_5x5.weight": (128, 48, 5, 5),
}


def test_the_state_dict_has_the_public_names_and_the_published_number_of_weights():
    network = GoogLeNet()
    state = network.state_dict()
    assert {key: tuple(state[key].shape) for key in PUBLIC} == PUBLIC
    assert all(key.count(".") == 1 for key in state)
    assert sum(parameter.numel() for parameter in network.parameters()) == 5_973_552
    assert not any(isinstance(module, torch.nn.BatchNorm2d) for module in network.modules())


def test_a_state_dict_goes_round_through_the_public_names_without_the_three_classifiers(tmp_path):
    source = GoogLeNet().eval()
    heads = {"loss3_classifier.weight": torch.zeros(1000, 1024), "loss1_conv.bias": torch.zeros(128)}
    torch.save(source.state_dict() | heads, tmp_path / "googlenet.pth")
    weights = tmp_path / "googlenet.pth"
    network = networks.build("googlenet_published", embedding_dim=4, weights=weights).eval()
    images = torch.rand(1, 3, 224, 224) * 255
    with torch.no_grad():
        assert network.backbone(images).equal(source(images))


def test_nine_inception_modules_of_the_published_sizes():
    network = networks.build("googlenet_published", embedding_dim=4).eval()
    sizes = {}
    for name, module in network.backbone.named_children():
        module.register_forward_hook(
            lambda _m, _i, output, name=name: sizes.update({name: tuple(output.shape[1:])})
        )
    with torch.no_grad():
        network(torch.rand(1, 3, 224, 224))
    assert {name: size for name, size in sizes.items() if name.startswith(("inception", "pool"))} == {
        "pool1_3x3_s2": (64, 56, 56),
        "pool1_norm1": (64, 56, 56),
        "pool2_3x3_s2": (192, 28, 28),
        "inception_3a": (256, 28, 28),
        "inception_3b": (480, 28, 28),
        "pool3_3x3_s2": (480, 14, 14),
        "inception_4a": (512, 14, 14),
        "inception_4b": (512, 14, 14),
        "inception_4c": (512, 14, 14),
        "inception_4d": (528, 14, 14),
        "inception_4e": (832, 14, 14),
        "pool4_3x3_s2": (832, 7, 7),
        "inception_5a": (832, 7, 7),
        "inception_5b": (1024, 7, 7),
    }


def test_an_inception_module_is_four_branches_written_out():
    module = Inception(6, 3, (2, 4), (2, 5), 7)
    x = torch.randn(2, 6, 9, 9, generator=torch.Generator().manual_seed(0))
    w = {name.removesuffix(".weight"): p for name, p in module.named_parameters() if "weight" in name}
    b = {name.removesuffix(".bias"): p for name, p in module.named_parameters() if "bias" in name}

    def convolved(x, name, padding=0):
        return F.relu(F.conv2d(x, w[name], b[name], padding=padding))

    expected = torch.cat(
        [
            convolved(x, "1x1"),
            convolved(convolved(x, "3x3_reduce"), "3x3", 1),
            convolved(convolved(x, "5x5_reduce"), "5x5", 2),
            convolved(F.max_pool2d(x, 3, 1, 1), "pool_proj"),
        ],
        dim=1,
    )
    torch.testing.assert_close(module(x), expected)


def test_each_googlenet_says_which_it_is():
    ours, theirs = (networks.base.registry.get(name).__doc__ for name in ("googlenet_published", "googlenet"))
    assert "5 × 5" in ours
    assert "torchvision" in theirs
