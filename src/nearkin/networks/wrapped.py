"""Any module as a network: a batch of inputs in, one vector per sample out."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from nearkin.data.preprocessing import Preprocessing
from nearkin.networks.base import Network
from nearkin.networks.freezing import evaluation_mode
from nearkin.networks.lora import held_still
from nearkin.networks.splitting import PooledTrunk, device_of, split_module
from nearkin.networks.towers import TwoTowers


def _call(module: nn.Module, inputs: Any) -> Tensor:
    features: Tensor = module(**inputs) if isinstance(inputs, Mapping) else module(inputs)
    return features


class _Called(nn.Module):
    """A module that takes a mapping as one argument."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, inputs: Any) -> Tensor:
        return _call(self.module, inputs)


class WrappedNetwork(Network):
    """A module of the user's: ``head(module(inputs))``.

    Args:
        module: A batch of inputs to vectors ``(B, F)``. Inputs that are a mapping, as tokenizers make them,
            are passed as keywords.
        num_features: F.
        embedding_dim: Size of a linear head on top; ``None`` for none, so that F is the embedding's size.
        preprocessing: What the module expects of images, if it takes images.
    """

    def __init__(
        self,
        module: nn.Module,
        num_features: int,
        *,
        embedding_dim: int | None = None,
        preprocessing: Preprocessing | None = None,
    ) -> None:
        super().__init__()
        self.backbone = module
        self.num_features = num_features
        self.embedding_dim = embedding_dim or num_features
        self.head: nn.Module = nn.Identity()
        if embedding_dim is not None:
            self.head = nn.Linear(num_features, embedding_dim)
            nn.init.kaiming_normal_(self.head.weight, mode="fan_out")
            nn.init.zeros_(self.head.bias)
        self.norm = nn.Identity()
        self.preprocessing = preprocessing

    def features(self, inputs: Any) -> Tensor:
        """A batch of inputs to the module's vectors ``(B, F)``."""
        return _call(self.backbone, inputs)

    def forward(self, inputs: Any) -> Tensor:
        """A batch of inputs to raw embeddings ``(B, D)``."""
        return self.from_features(self.features(inputs))

    def from_features(self, features: Tensor) -> Tensor:
        """The module's vectors ``(B, F)`` to raw embeddings ``(B, D)``."""
        embeddings: Tensor = self.head(features)
        return embeddings

    def param_groups(self, lr: float, head_lr: float | None = None) -> list[dict[str, Any]]:
        """The module's parameters and the head's, each with its learning rate.

        Parameters that the user holds still (``requires_grad=False``) and frozen batch norms are left out.
        """
        frozen = held_still(self)
        rates = {"backbone": lr, "head": lr if head_lr is None else head_lr}
        groups = []
        for name, rate in rates.items():
            own = self.get_submodule(name).parameters()
            params = [p for p in own if p not in frozen and p.requires_grad]
            if params:
                groups.append({"name": name, "params": params, "lr": rate})
        return groups

    def split(self, stage: str) -> tuple[nn.Module, Network]:
        """Cut after ``stage``, a submodule of the user's module; ``pooling`` leaves nothing but the head.

        Two networks for two modalities are cut both.
        """
        if isinstance(self.backbone, TwoTowers):
            trunks, rest = self.backbone.split(stage)
            return trunks, self._replica(rest)
        if stage == PooledTrunk.stage:
            return PooledTrunk(_Called(self.backbone), nn.Identity()), self._replica(nn.Identity())
        if self.preprocessing is None:
            raise ValueError(
                f"cached_trunk={stage!r}: a module can be cut at a stage only where its input size is known: "
                "give preprocessing=, or cached_trunk='pooling' to keep the whole module frozen"
            )
        size = self.preprocessing.size
        example = (1, self.preprocessing.channels, size, size)
        trunk, after = split_module(self.backbone, stage, example)
        return trunk, self._replica(after)

    def _replica(self, backbone: nn.Module) -> WrappedNetwork:
        """A network with the same head, shared and not copied, on another module."""
        replica = copy.copy(self)
        replica._modules = dict(self._modules)
        replica.backbone = backbone
        return replica


def as_network(
    module: nn.Module,
    example: Any,
    *,
    embedding_dim: int | None = None,
    preprocessing: Preprocessing | None = None,
    seed: int = 0,
) -> Network:
    """Any module as a :class:`Network`; one of ours comes back as it is.

    Args:
        module: A batch of inputs to vectors ``(B, F)``.
        example: A small batch of inputs, to see what comes out.
        embedding_dim: Size of a linear head to add; none by default.
        preprocessing: What the module expects of images, if it takes images.
        seed: Draws the head's initial weights.

    Raises:
        ValueError: What comes out is not one vector per sample.

    >>> as_network(nn.Linear(8, 4), torch.zeros(2, 8)).embedding_dim
    4
    """
    if isinstance(module, Network):
        return module
    if not isinstance(module, nn.Module):
        raise ValueError(f"network must be a torch.nn.Module, not {type(module).__name__}")
    probe = WrappedNetwork(module, 1)
    try:
        with evaluation_mode(module), torch.no_grad():
            output = probe.features(_on(example, device_of(module)))
    except Exception as error:
        raise ValueError(
            f"the network {type(module).__name__} cannot take a batch of this data "
            f"({_described(example)}): {type(error).__name__}: {' '.join(str(error).split())[:300]}"
            f"{_advice(example)}"
        ) from error
    if not isinstance(output, Tensor) or output.ndim != 2 or not output.is_floating_point():
        raise ValueError(
            f"the network {type(module).__name__} must return one vector per sample, a float tensor (B, D), "
            f"and returned {_described(output)}: wrap it in a module that does"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return WrappedNetwork(
            module, output.shape[1], embedding_dim=embedding_dim, preprocessing=preprocessing
        ).to(output.device)


def _on(inputs: Any, device: torch.device) -> Any:
    from nearkin.data.nested import move  # noqa: PLC0415

    return move(inputs, device)


def _advice(example: Any) -> str:
    if isinstance(example, Tensor) and example.dtype == torch.uint8:
        return ". Pixels are whole numbers from 0 to 255: give a transform, such as lambda image: image / 255"
    return ""


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor {tuple(value.shape)} of {value.dtype}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_described(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"
