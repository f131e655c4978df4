"""A small convolutional network for small images."""

from __future__ import annotations

import itertools

from torch import nn

from nearkin.data.preprocessing import Preprocessing
from nearkin.networks.base import Backbone, registry


def _block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel_size=3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
    )


@registry.register("convnet")
def convnet(*, channels: int = 1, size: int = 32, width: int = 16) -> Backbone:
    """Four blocks of convolution, batch norm, ReLU and 2 × 2 max pooling.

    Args:
        channels: 1 for grey images, 3 for colour.
        size: Side of the input, at least 16.
        width: Channels of the first block; each following block has twice as many.
    """
    if size < 16:
        raise ValueError(f"size={size}: four poolings need an input of at least 16 pixels")
    if width < 1 or channels < 1:
        raise ValueError(f"width={width} and channels={channels} must be at least 1")
    widths = [channels, width, 2 * width, 4 * width, 8 * width]
    blocks = [_block(inputs, outputs) for inputs, outputs in itertools.pairwise(widths)]
    preprocessing = Preprocessing(size=size, mean=(0.5,) * channels, std=(0.25,) * channels)
    return Backbone(nn.Sequential(*blocks), widths[-1], preprocessing)
