"""A multilayer perceptron, as in section 2.2.2 of the thesis."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nearkin.data.preprocessing import Preprocessing
from nearkin.networks.base import Backbone, registry


@registry.register("mlp")
def mlp(
    *, channels: int = 1, size: int = 32, hidden: Sequence[int] = (512, 256), activation: str = "relu"
) -> Backbone:
    """Fully connected layers over the flattened pixels.

    Args:
        channels: 1 for grey images, 3 for colour.
        size: Side of the input.
        hidden: Sizes of the hidden layers, at least one.
        activation: What follows each layer: ``relu``, ``tanh``, ``sigmoid``, or the perceptron's ``step``
            (with the gradient of :class:`Step`).
    """
    if not hidden:
        raise ValueError("hidden=(): an mlp needs at least one hidden layer")
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation={activation!r} must be one of: {', '.join(ACTIVATIONS)}")
    widths = [channels * size * size, *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), ACTIVATIONS[activation]()]
    preprocessing = Preprocessing(size=size, mean=(0.5,) * channels, std=(0.25,) * channels)
    return Backbone(nn.Sequential(*layers), widths[-1], preprocessing)


class Step(nn.Module):
    """The perceptron's activation, the thesis's (2.12): +1 from 0 on, −1 below.

    Its derivative is 0 wherever it has one, and nothing could be learnt through it. The gradient is passed
    on as it comes where the input is between −1 and 1, and stopped elsewhere: the straight-through estimator
    of Hubara, Courbariaux, Soudry, El-Yaniv, Bengio. Binarized Neural Networks. NeurIPS 2016.

    >>> Step()(torch.tensor([-2.0, 0.0, 0.5]))
    tensor([-1.,  1.,  1.])
    """

    def forward(self, values: Tensor) -> Tensor:
        """Any shape to the same shape."""
        passed = values.clamp(-1, 1)
        stepped = torch.where(values >= 0, 1.0, -1.0).to(values.dtype)
        return passed + (stepped - passed).detach()


def _relu() -> nn.Module:
    return nn.ReLU(inplace=True)


ACTIVATIONS: dict[str, Callable[[], Any]] = {
    "relu": _relu,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "step": Step,
}
