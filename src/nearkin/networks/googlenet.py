"""GoogLeNet in its published form: 5 × 5 convolutions and no batch norm.

torchvision's ``googlenet`` is another network: it has batch norm after every convolution, and 3 × 3
convolutions where the paper has 5 × 5.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from nearkin.data.preprocessing import Preprocessing
from nearkin.networks.base import Backbone, registry
from nearkin.networks.bninception import read_published_names, write_published_names

CAFFE = Preprocessing(
    size=224,
    mean=(104.0, 117.0, 123.0),
    std=(1.0, 1.0, 1.0),
    channel_order="bgr",
    value_range=255,
    resize=256,
)

_FIRST_BIAS = 0.2


@registry.register("googlenet_published")
def googlenet_published() -> Backbone:
    """GoogLeNet as printed (Szegedy et al. 2015, CVPR, Table 1): 1,024 features of 7 × 7 places at 224.

    5,973,552 weights without classifiers: 5 × 5 convolutions, local response normalisation, biases and no
    batch norm. The network of that name in Caffe's model zoo, whose weights (translated to PyTorch, their
    names joined by underscores: ``inception_3a_5x5.weight``) want images in BGR, from 0 to 255, less the
    means 104, 117 and 123. ``googlenet`` is torchvision's, which differs.
    """
    left_out = ("loss1_", "loss2_", "loss3_")
    return Backbone(GoogLeNet(), 1024, CAFFE, left_out=left_out)


class GoogLeNet(nn.Sequential):
    """Three convolutions and nine inception modules: ``(B, 3, 224, 224)`` to ``(B, 1024, 7, 7)``."""

    def __init__(self) -> None:
        super().__init__(
            OrderedDict(
                conv1_7x7_s2=_convolution(3, 64, 7, stride=2),
                conv1_relu=nn.ReLU(inplace=True),
                pool1_3x3_s2=_shrinking_pool(),
                pool1_norm1=_normalisation(),
                conv2_3x3_reduce=_convolution(64, 64, 1),
                conv2_reduce_relu=nn.ReLU(inplace=True),
                conv2_3x3=_convolution(64, 192, 3),
                conv2_relu=nn.ReLU(inplace=True),
                conv2_norm2=_normalisation(),
                pool2_3x3_s2=_shrinking_pool(),
                inception_3a=Inception(192, 64, (96, 128), (16, 32), 32),
                inception_3b=Inception(256, 128, (128, 192), (32, 96), 64),
                pool3_3x3_s2=_shrinking_pool(),
                inception_4a=Inception(480, 192, (96, 208), (16, 48), 64),
                inception_4b=Inception(512, 160, (112, 224), (24, 64), 64),
                inception_4c=Inception(512, 128, (128, 256), (24, 64), 64),
                inception_4d=Inception(512, 112, (144, 288), (32, 64), 64),
                inception_4e=Inception(528, 256, (160, 320), (32, 128), 128),
                pool4_3x3_s2=_shrinking_pool(),
                inception_5a=Inception(832, 256, (160, 320), (32, 128), 128),
                inception_5b=Inception(832, 384, (192, 384), (48, 128), 128),
            )
        )
        self.register_state_dict_post_hook(write_published_names)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(read_published_names)  # type: ignore[no-untyped-call]


class Inception(nn.Module):
    """Four branches side by side: 1 × 1, 3 × 3, 5 × 5, and a maximum pooling.

    Args:
        inputs: Channels that come in.
        single: Channels of the 1 × 1 branch.
        three: Channels of the 3 × 3 branch: after its reduction, and at its end.
        five: The same of the 5 × 5 branch.
        projected: Channels that the pooling is projected to.
    """

    def __init__(
        self, inputs: int, single: int, three: tuple[int, int], five: tuple[int, int], projected: int
    ) -> None:
        super().__init__()
        parts = {
            "1x1": _convolution(inputs, single, 1),
            "3x3_reduce": _convolution(inputs, three[0], 1),
            "3x3": _convolution(*three, 3),
            "5x5_reduce": _convolution(inputs, five[0], 1),
            "5x5": _convolution(*five, 5),
            "pool_proj": _convolution(inputs, projected, 1),
        }
        for name, part in parts.items():
            self.add_module(name, part)
        self.pool = nn.MaxPool2d(kernel_size=3, stride=1, padding=1)

    def forward(self, features: Tensor) -> Tensor:
        """``(B, F, h, w)`` to ``(B, F', h, w)``, the branches in the order of the constructor."""

        def through(features: Tensor, *names: str) -> Tensor:
            for name in names:
                features = self.get_submodule(name)(features).relu_()
            return features

        branches = [
            through(features, "1x1"),
            through(features, "3x3_reduce", "3x3"),
            through(features, "5x5_reduce", "5x5"),
            through(self.pool(features), "pool_proj"),
        ]
        return torch.cat(branches, dim=1)


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """A convolution that starts as Caffe's does: uniform by fan-in, and biases of 0.2."""
    layer = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2)
    bound = (3 / (inputs * kernel**2)) ** 0.5
    nn.init.uniform_(layer.weight, -bound, bound)
    assert layer.bias is not None
    nn.init.constant_(layer.bias, _FIRST_BIAS)
    return layer


def _shrinking_pool() -> nn.MaxPool2d:
    return nn.MaxPool2d(kernel_size=3, stride=2, ceil_mode=True)


def _normalisation() -> nn.LocalResponseNorm:
    return nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75)
