from __future__ import annotations

import torch

from nearkin import networks
from nearkin.networks.bninception import BNInception

# Names and shapes of the public BNInception weights, from their Caffe definition.
PUBLIC = {
    "conv1_7x7_s2.weight": (64, 3, 7, 7),
    "conv1_7x7_s2.bias": (64,),
    "conv1_7x7_s2_bn.running_var": (64,),
    "conv2_3x3_reduce.weight": (64, 64, 1, 1),
    "conv2_3x3_bn.weight": (192,),
    "inception_3a_1x1.weight": (64, 192, 1, 1),
    "inception_3a_1x1_bn.running_mean": (64,),
    "inception_3a_double_3x3_2.weight": (96, 96, 3, 3),
    "inception_3b_pool_proj.weight": (64, 256, 1, 1),
    "inception_3c_3x3.weight": (160, 128, 3, 3),
    "inception_4a_1x1.weight": (224, 576, 1, 1),
    "inception_4c_3x3_reduce.weight": (128, 576, 1, 1),
    "inception_4d_double_3x3_1.weight": (192, 160, 3, 3),
    "inception_4e_double_3x3_2_bn.bias": (256,),
    "inception_5a_1x1.weight": (352, 1056, 1, 1),
    "inception_5b_double_3x3_reduce.weight": (192, 1024, 1, 1),
    "inception_5b_pool_proj_bn.weight": (128,),
}


def test_the_state_dict_has_the_public_names_and_no_others():
    state = BNInception().state_dict()
    assert {key: tuple(state[key].shape) for key in PUBLIC} == PUBLIC
    assert len([key for key in state if key.endswith("_bn.running_mean")]) == 69
    assert all(key.count(".") == 1 for key in state)


def test_a_state_dict_goes_round_through_the_public_names(tmp_path):
    source = BNInception().eval()
    with torch.no_grad():
        for index, value in enumerate(source.state_dict().values()):
            if value.dtype == torch.float32:
                value.copy_(
                    torch.rand(value.shape, generator=torch.Generator().manual_seed(index)) / 20 + 0.01
                )
    public = source.state_dict() | {
        "last_linear.weight": torch.zeros(1000, 1024),
        "last_linear.bias": torch.zeros(1000),
    }
    public = {
        key: value for key, value in public.items() if "num_batches_tracked" not in key
    }  # as in the old file
    torch.save(public, tmp_path / "bn_inception.pth")
    network = networks.build("bninception", embedding_dim=4, weights=tmp_path / "bn_inception.pth").eval()
    images = torch.rand(1, 3, 224, 224)
    with torch.no_grad():
        assert network.backbone(images).equal(source(images))
    other = networks.build("bninception", embedding_dim=4, seed=5).eval()
    other.load_state_dict(network.state_dict())
    with torch.no_grad():
        assert other(images).equal(network(images))


def test_ten_inception_modules_of_the_published_sizes():
    network = networks.build("bninception", embedding_dim=4).eval()
    sizes = {}
    for name, module in network.backbone.named_children():
        if name.startswith("inception"):
            module.register_forward_hook(
                lambda _m, _i, output, name=name: sizes.update({name: tuple(output.shape[1:])})
            )
    with torch.no_grad():
        network(torch.rand(1, 3, 224, 224))
    assert sizes == {
        "inception_3a": (256, 28, 28),
        "inception_3b": (320, 28, 28),
        "inception_3c": (576, 14, 14),
        "inception_4a": (576, 14, 14),
        "inception_4b": (576, 14, 14),
        "inception_4c": (608, 14, 14),
        "inception_4d": (608, 14, 14),
        "inception_4e": (1056, 7, 7),
        "inception_5a": (1024, 7, 7),
        "inception_5b": (1024, 7, 7),
    }


def test_preprocessing_is_caffes():
    preprocessing = networks.build("bninception", embedding_dim=4).preprocessing
    assert (preprocessing.channel_order, preprocessing.value_range) == ("bgr", 255)
    white = preprocessing.normalize(torch.full((3, 1, 1), 255, dtype=torch.uint8))
    assert white.flatten().tolist() == [151.0, 138.0, 127.0]
