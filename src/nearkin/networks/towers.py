"""Two networks as one: each embeds its modality, into a common space."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from nearkin.data.preprocessing import Preprocessing
from nearkin.networks.base import Network


class TwoTowers(nn.Module):
    """A network for each of two modalities; the embeddings of a pair stand side by side.

    Args:
        first: A batch of the first modality to vectors ``(B, D)``.
        second: A batch of the second to vectors ``(B, D)``, of the same size.

    >>> towers = TwoTowers(nn.Linear(8, 4), nn.Linear(3, 4))
    >>> towers((torch.zeros(2, 8), torch.zeros(2, 3))).shape
    torch.Size([2, 8])
    """

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def __getitem__(self, number: int) -> nn.Module:
        return (self.first, self.second)[number]

    @property
    def preprocessing(self) -> Preprocessing | None:
        """The input that the first network expects, where that is one for images."""
        return self.first.preprocessing if isinstance(self.first, Network) else None

    def forward(self, inputs: tuple[Any, Any]) -> Tensor:
        """Inputs of both to embeddings ``(B, 2 D)``: those of the first, and behind them of the second."""
        one, other = self.first(inputs[0]), self.second(inputs[1])
        if one.shape != other.shape:
            raise ValueError(
                f"the two networks give {tuple(one.shape)} and {tuple(other.shape)}: both must give vectors "
                "of one size"
            )
        return torch.cat([one, other], dim=1)

    def split(self, stage: str) -> tuple[nn.Module, TwoTowers]:
        """Cut both networks after ``stage``: (the two first parts, what comes after them).

        Raises:
            ValueError: One of them cannot be cut there.
        """
        if not isinstance(self.first, Network) or not isinstance(self.second, Network):
            raise ValueError(
                f"cached_trunk={stage!r}: two networks are cut only where both are networks of this library"
            )
        (one, rest), (other, second_rest) = self.first.split(stage), self.second.split(stage)
        return nn.ModuleList([one, other]), TwoTowers(rest, second_rest)
