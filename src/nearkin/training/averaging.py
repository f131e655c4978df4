"""A moving average of a network's weights, which often generalises better than the weights themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from nearkin.data.nested import len_of, split
from nearkin.networks.freezing import evaluation_mode


class WeightAverage:
    """An exponential moving average of all floats of a network, batch norm statistics included.

    After step t of the optimiser, average ← d · average + (1 − d) · weights with
    d = min(decay, (1 + t) / (10 + t)): the growing d lets go of the random start of a short training.

    Polyak, Juditsky 1992, "Acceleration of Stochastic Approximation by Averaging", SIAM J. Control Optim.

    Args:
        network: What is trained.
        decay: The largest d, such as 0.999: the average remembers about 1 / (1 − d) steps.

    >>> network = nn.Linear(1, 1, bias=False)
    >>> _ = network.weight.data.fill_(0.0)
    >>> average = WeightAverage(network, decay=0.999)
    >>> _ = network.weight.data.fill_(1.0)
    >>> average.update()
    >>> with average.in_place():
    ...     print(f"{network.weight.item():.3f}")
    0.818
    >>> network.weight.item()
    1.0
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        self._network = network
        self._decay = decay
        self.restart()

    def restart(self) -> None:
        """Forget the past: the average is the network as it is now."""
        self._steps = 0
        self._average = {name: weight.clone() for name, weight in self._weights().items()}

    def _weights(self) -> dict[str, Tensor]:
        state = self._network.state_dict()
        return {name: weight for name, weight in state.items() if weight.is_floating_point()}

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights after a step of the optimiser."""
        self._steps += 1
        decay = min(self._decay, (1 + self._steps) / (10 + self._steps))
        weights = list(self._weights().values())
        torch._foreach_lerp_(list(self._average.values()), weights, 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside the block the network has the averaged weights."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        for name, weight in self._weights().items():
            kept = weight.clone()
            weight.copy_(self._average[name])
            self._average[name].copy_(kept)

    @torch.no_grad()
    def embed(self, inputs: Any, chunk: int | None = None) -> Tensor:
        """What the averaged network makes of a batch, in evaluation mode; the network is left as it is.

        Args:
            inputs: The whole batch.
            chunk: Samples at a time; ``None`` for all of them.
        """
        parts = [inputs] if chunk is None or chunk >= len_of(inputs) else split(inputs, chunk)
        with evaluation_mode(self._network):
            return torch.cat([functional_call(self._network, self._average, (part,)) for part in parts])

    def tensors(self) -> dict[str, Tensor]:
        """All that a checkpoint needs."""
        return {"steps": torch.tensor(self._steps), **self._average}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from ``tensors``."""
        self._steps = int(tensors["steps"])
        for name, average in self._average.items():
            average.copy_(tensors[name])
