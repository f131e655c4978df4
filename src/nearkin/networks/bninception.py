"""BNInception, GoogLeNet with batch norm (Ioffe and Szegedy 2015, ICML), in the form the papers used.

The published weights come from Caffe by way of the pretrained-models collection for PyTorch, where every
convolution is an attribute of the network itself (``inception_3a_1x1``). Here an inception module is a
module, and names are translated when a state dict is read or written, so that files have the published ones.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nearkin.data.preprocessing import Preprocessing
from nearkin.networks.base import Backbone, registry

CAFFE = Preprocessing(
    size=224,
    mean=(104.0, 117.0, 128.0),
    std=(1.0, 1.0, 1.0),
    channel_order="bgr",
    value_range=255,
    resize=256,
)


@registry.register("bninception")
def bninception() -> Backbone:
    """BNInception: 1,024 features of 7 × 7 places at 224 pixels.

    Published weights: ``bn_inception-52deb4733.pth`` of the pretrained-models collection. They want images in
    BGR, from 0 to 255, less the means 104, 117 and 128.
    """
    return Backbone(BNInception(), 1024, CAFFE, left_out=("last_linear.", "fc."))


class BNInception(nn.Sequential):
    """A stem of three convolutions and ten inception modules: ``(B, 3, 224, 224)`` to ``(B, 1024, 7, 7)``."""

    def __init__(self) -> None:
        stem = _convolution("conv1_7x7_s2", 3, 64, kernel=7, stride=2)
        stem |= {"pool1_3x3_s2": _shrinking_pool()}
        stem |= _convolution("conv2_3x3_reduce", 64, 64, kernel=1)
        stem |= _convolution("conv2_3x3", 64, 192, kernel=3)
        stem |= {"pool2_3x3_s2": _shrinking_pool()}
        super().__init__(
            OrderedDict(
                **stem,
                inception_3a=Inception(192, 64, (64, 64), (64, 96), ("avg", 32)),
                inception_3b=Inception(256, 64, (64, 96), (64, 96), ("avg", 64)),
                inception_3c=ShrinkingInception(320, (128, 160), (64, 96)),
                inception_4a=Inception(576, 224, (64, 96), (96, 128), ("avg", 128)),
                inception_4b=Inception(576, 192, (96, 128), (96, 128), ("avg", 128)),
                inception_4c=Inception(576, 160, (128, 160), (128, 160), ("avg", 128)),
                inception_4d=Inception(608, 96, (128, 192), (160, 192), ("avg", 128)),
                inception_4e=ShrinkingInception(608, (128, 192), (192, 256)),
                inception_5a=Inception(1056, 352, (192, 320), (160, 224), ("avg", 128)),
                inception_5b=Inception(1024, 352, (192, 320), (192, 224), ("max", 128)),
            )
        )
        self.register_state_dict_post_hook(write_published_names)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(read_published_names)  # type: ignore[no-untyped-call]


def _convolution(
    name: str, inputs: int, outputs: int, *, kernel: int, stride: int = 1
) -> OrderedDict[str, nn.Module]:
    """Convolution, batch norm and ReLU under the names that the published weights have for them."""
    return OrderedDict(
        {
            name: nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2),
            f"{name}_bn": nn.BatchNorm2d(outputs),
            f"{name}_relu": nn.ReLU(inplace=True),
        }
    )


def _shrinking_pool() -> nn.MaxPool2d:
    return nn.MaxPool2d(kernel_size=3, stride=2, ceil_mode=True)


class Inception(nn.Module):
    """Four branches side by side: 1 × 1, 3 × 3, two 3 × 3 in a row, and a pooling.

    Args:
        inputs: Channels that come in.
        single: Channels of the 1 × 1 branch.
        three: Channels of the 3 × 3 branch: after its reduction, and at its end.
        double: The same of the branch with two 3 × 3 convolutions.
        pool: Kind of pooling, and the channels it is projected to.
    """

    def __init__(
        self,
        inputs: int,
        single: int,
        three: tuple[int, int],
        double: tuple[int, int],
        pool: tuple[Literal["avg", "max"], int],
    ) -> None:
        super().__init__()
        kind, projected = pool
        self._branches = [
            _add(self, _convolution("1x1", inputs, single, kernel=1)),
            _add(self, _three(inputs, *three, stride=1)),
            _add(self, _double(inputs, *double, stride=1)),
            _add(
                self, {"pool": _keeping_pool(kind)} | _convolution("pool_proj", inputs, projected, kernel=1)
            ),
        ]

    def forward(self, features: Tensor) -> Tensor:
        """``(B, F, h, w)`` to ``(B, F', h, w)``, the branches in the order of the constructor."""
        return _concatenated(self, self._branches, features)


class ShrinkingInception(nn.Module):
    """Three branches that halve the sides: 3 × 3, two 3 × 3 in a row, and a maximum pooling.

    Args:
        inputs: Channels that come in.
        three: Channels of the 3 × 3 branch: after its reduction, and at its end.
        double: The same of the branch with two 3 × 3 convolutions.
    """

    def __init__(self, inputs: int, three: tuple[int, int], double: tuple[int, int]) -> None:
        super().__init__()
        self._branches = [
            _add(self, _three(inputs, *three, stride=2)),
            _add(self, _double(inputs, *double, stride=2)),
            _add(self, {"pool": _shrinking_pool()}),
        ]

    def forward(self, features: Tensor) -> Tensor:
        """``(B, F, h, w)`` to ``(B, F', h / 2, w / 2)``, the branches in the order of the constructor."""
        return _concatenated(self, self._branches, features)


def _three(inputs: int, reduced: int, outputs: int, stride: int) -> dict[str, nn.Module]:
    return _convolution("3x3_reduce", inputs, reduced, kernel=1) | _convolution(
        "3x3", reduced, outputs, kernel=3, stride=stride
    )


def _double(inputs: int, reduced: int, outputs: int, stride: int) -> dict[str, nn.Module]:
    return (
        _convolution("double_3x3_reduce", inputs, reduced, kernel=1)
        | _convolution("double_3x3_1", reduced, outputs, kernel=3)
        | _convolution("double_3x3_2", outputs, outputs, kernel=3, stride=stride)
    )


def _keeping_pool(kind: Literal["avg", "max"]) -> nn.Module:
    pool = nn.AvgPool2d if kind == "avg" else nn.MaxPool2d
    return pool(kernel_size=3, stride=1, padding=1)


def _add(module: nn.Module, branch: dict[str, nn.Module]) -> list[str]:
    """Make the layers of a branch children of ``module``; their names tell the branch what to run."""
    for name, layer in branch.items():
        module.add_module(name, layer)
    return list(branch)


def _concatenated(module: nn.Module, branches: list[list[str]], features: Tensor) -> Tensor:
    outputs = []
    for branch in branches:
        output = features
        for name in branch:
            output = module.get_submodule(name)(output)
        outputs.append(output)
    return torch.cat(outputs, dim=1)


def write_published_names(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    """The hook that joins the names of modules and their layers: ``inception_3a_1x1``."""
    for key in [key for key in state if key.startswith(f"{prefix}inception_")]:
        name = re.sub(r"^(inception_\d[a-e])\.", r"\1_", key.removeprefix(prefix))
        state[prefix + name] = state.pop(key)


def read_published_names(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """The hook that takes them apart again."""
    for key in [key for key in state if key.startswith(f"{prefix}inception_")]:
        name = re.sub(r"^(inception_\d[a-e])_", r"\1.", key.removeprefix(prefix))
        state[prefix + name] = state.pop(key)
