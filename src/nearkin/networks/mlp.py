"""A multilayer perceptron, as in section 2.2.2 of the thesis."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import nn

from nearkin.data.preprocessing import Preprocessing
from nearkin.networks.base import Backbone, registry


@registry.register("mlp")
def mlp(*, channels: int = 1, size: int = 32, hidden: Sequence[int] = (512, 256)) -> Backbone:
    """Fully connected layers with ReLU over the flattened pixels.

    Args:
        channels: 1 for grey images, 3 for colour.
        size: Side of the input.
        hidden: Sizes of the hidden layers, at least one.
    """
    if not hidden:
        raise ValueError("hidden=(): an mlp needs at least one hidden layer")
    widths = [channels * size * size, *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU(inplace=True)]
    preprocessing = Preprocessing(size=size, mean=(0.5,) * channels, std=(0.25,) * channels)
    return Backbone(nn.Sequential(*layers), widths[-1], preprocessing)
