"""LeNet (LeCun et al. 1998), as in section 2.2.3 of the thesis."""

from __future__ import annotations

from torch import nn

from nearkin.data.preprocessing import Preprocessing
from nearkin.networks.base import Backbone, registry


@registry.register("lenet")
def lenet(*, channels: int = 1, size: int = 32) -> Backbone:
    """Two convolutions with pooling and two fully connected layers; the embedding head is the third.

    Args:
        channels: 1 for grey images, 3 for colour.
        size: Side of the input, at least 16.
    """
    side = ((size - 4) // 2 - 4) // 2
    if side < 1:
        raise ValueError(f"size={size}: LeNet needs an input of at least 16 pixels")
    module = nn.Sequential(
        nn.Conv2d(channels, 6, kernel_size=5),
        nn.ReLU(inplace=True),
        nn.AvgPool2d(2),
        nn.Conv2d(6, 16, kernel_size=5),
        nn.ReLU(inplace=True),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * side * side, 120),
        nn.ReLU(inplace=True),
        nn.Linear(120, 84),
        nn.ReLU(inplace=True),
    )
    return Backbone(module, 84, Preprocessing(size=size, mean=(0.5,) * channels, std=(0.25,) * channels))
