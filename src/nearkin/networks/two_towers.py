"""Two networks as one: each embeds its modality, into a common space."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from nearkin.data.two_modalities import EachModality
from nearkin.networks.base import Network
from nearkin.networks.embedder import Embedder
from nearkin.networks.wrapped import WrappedNetwork


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

    def forward(self, inputs: tuple[Any, Any]) -> Tensor:
        """Inputs of both to embeddings ``(B, 2 D)``: those of the first, and behind them of the second."""
        one, other = self.first(inputs[0]), self.second(inputs[1])
        if one.shape != other.shape:
            raise ValueError(
                f"the two networks give {tuple(one.shape)} and {tuple(other.shape)}: both must give vectors "
                "of one size"
            )
        return torch.cat([one, other], dim=1)


def tower(embedder: Embedder, number: int) -> Embedder:
    """One of the two networks of an embedder by itself, with how it sees its modality.

    Args:
        embedder: Of :class:`TwoTowers`.
        number: 0 for the first, 1 for the second.

    Raises:
        ValueError: It has one network only, or no such one.
    """
    towers = embedder.network.backbone
    if not isinstance(towers, TwoTowers) or number not in (0, 1):
        raise ValueError(f"there is no network for modality {number}: only TwoTowers have two, 0 and 1")
    module = towers[number]
    if not isinstance(module, Network):
        module = WrappedNetwork(module, embedder.network.embedding_dim // 2)
    seen = [
        getattr(one, ("first", "second")[number]) if isinstance(one, EachModality) else one
        for one in (embedder.training_transform, embedder.evaluation_transform)
    ]
    return replace(
        embedder,
        network=module,
        training_transform=seen[0],
        evaluation_transform=seen[1],
        transform_spec=None,
    )


class RidgeTowers(nn.Module):
    """Frozen features of two modalities, the second mapped to the first by ridge regression.

    Args:
        first: A batch of the first modality to features ``(B, F)``.
        second: A batch of the second to features ``(B, G)``.
        centres: The means of both over the training pairs, ``(F,)`` and ``(G,)``.
        weights: ``(G, F)``.
    """

    def __init__(
        self, first: nn.Module, second: nn.Module, centres: tuple[Tensor, Tensor], weights: Tensor
    ) -> None:
        super().__init__()
        self.first, self.second = first, second
        self.first_centre: Tensor
        self.second_centre: Tensor
        self.weights: Tensor
        for name, value in (
            ("first_centre", centres[0]),
            ("second_centre", centres[1]),
            ("weights", weights),
        ):
            self.register_buffer(name, value)

    def forward(self, inputs: tuple[Any, Any]) -> Tensor:
        """Inputs of both to ``(B, 2 F)``: features of the first, and what the second predicts of them."""
        one = self.first(inputs[0]) - self.first_centre
        other = (self.second(inputs[1]) - self.second_centre) @ self.weights
        return torch.cat([one, other], dim=1)


def ridge(inputs: Tensor, targets: Tensor, penalty: float) -> Tensor:
    """The weights ``(G, F)`` that predict centred targets ``(N, F)`` from centred inputs ``(N, G)``.

    Args:
        inputs: X.
        targets: Y.
        penalty: λ, in multiples of the mean square of the columns of X: XᵀX + λ · tr(XᵀX)/G · 1.

    >>> ridge(torch.eye(2).double(), torch.eye(2).double(), 1.0)
    tensor([[0.5000, 0.0000],
            [0.0000, 0.5000]], dtype=torch.float64)
    """
    gram = inputs.T @ inputs
    scale = penalty * gram.diagonal().mean()
    penalised = gram + scale * torch.eye(len(gram), dtype=gram.dtype)
    weights: Tensor = torch.linalg.solve(penalised, inputs.T @ targets)
    return weights
