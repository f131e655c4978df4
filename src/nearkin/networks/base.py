"""The shape of every network: backbone, pooling, head, and the preprocessing that belongs to the weights."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nearkin.data.preprocessing import Preprocessing
from nearkin.networks.lora import held_still
from nearkin.networks.pooling import AveragePooling, poolings
from nearkin.networks.splitting import PooledTrunk, split_module, stage_names
from nearkin.registry import Registry


@dataclass(frozen=True)
class Backbone:
    """What a network's file provides.

    Attributes:
        module: Images ``(B, C, H, W)`` to a feature map ``(B, F, h, w)`` or to features ``(B, F)``.
        num_features: F.
        preprocessing: The input that the module, with its weights, expects.
        left_out: Beginnings of the names of published weights that the module has no place for: the
            classifier's, mostly.
        download_imagenet: Fetches the ImageNet weights, where there is a place to fetch them from.
        gives_features: Whether the module gives features ``(B, F)``, so that there is nothing to pool; by
            default whether it is a row of layers one of which flattens.
    """

    module: nn.Module
    num_features: int
    preprocessing: Preprocessing
    left_out: tuple[str, ...] = ()
    download_imagenet: Callable[[], Mapping[str, Tensor]] | None = None
    gives_features: bool | None = None

    def __post_init__(self) -> None:
        if self.gives_features is None:
            row = self.module if isinstance(self.module, nn.Sequential) else ()
            flattens = any(isinstance(layer, nn.Flatten) for layer in row)
            object.__setattr__(self, "gives_features", flattens)


registry: Registry[Backbone] = Registry("network")


class Network(nn.Module, ABC):
    """Samples to raw embeddings, with what a training has to know about it.

    Attributes:
        embedding_dim: D, the size of an embedding.
        num_features: F, the size of the features below the head.
        preprocessing: The input that its weights expect; ``None`` where samples are not images, or unknown.
        spec: What :func:`nearkin.networks.build` takes to build it again, without weights; ``None`` for a
            module that was given in Python.
        pools: Whether it ends in a feature map that a pooling makes features of.
    """

    embedding_dim: int
    pools: bool = False
    num_features: int
    preprocessing: Preprocessing | None = None
    spec: dict[str, Any] | None = None
    backbone: nn.Module
    head: nn.Module

    @abstractmethod
    def features(self, inputs: Any) -> Tensor:
        """A batch of inputs to features ``(B, F)``."""

    @abstractmethod
    def forward(self, inputs: Any) -> Tensor:
        """A batch of inputs to raw embeddings ``(B, D)``."""

    def from_features(self, features: Tensor) -> Tensor:
        """Features ``(B, F)`` to raw embeddings ``(B, D)``: what ``forward`` does after :meth:`features`."""
        raise ValueError(f"{type(self).__name__} does not say how its features become embeddings")

    @abstractmethod
    def param_groups(self, lr: float, head_lr: float | None = None) -> list[dict[str, Any]]:
        """Every parameter that may ever be trained, with its learning rate, for an optimiser."""

    def headless(self) -> Network:
        """The same network, its parameters shared, with features in place of embeddings."""
        replica = copy.copy(self)
        replica._modules = dict(self._modules)
        replica.head = nn.Identity()
        replica.embedding_dim = self.num_features
        return replica

    def split(self, stage: str) -> tuple[nn.Module, Network]:
        """Cut after ``stage``: (inputs to activations, activations to embeddings)."""
        raise ValueError(f"{type(self).__name__} cannot be cut after a stage ({stage!r})")


class EmbeddingNetwork(Network):
    """Images to raw embeddings: ``head(norm(pooling(backbone(images))))``.

    Losses and scores normalise by themselves what their equations want normalised.

    Args:
        backbone: The :class:`Backbone` of a registered network.
        embedding_dim: D, the size of an embedding.
        pooling: Name of a pooling; any but the default is refused for a backbone that gives features
            ``(B, F)`` already.
        layer_norm: Normalise the pooled features before the head, without affine parameters, as ProxyNCA++
            does (Teh, DeVries and Taylor 2020, ECCV).
    """

    def __init__(
        self, backbone: Backbone, *, embedding_dim: int, pooling: str = "avg", layer_norm: bool = False
    ) -> None:
        super().__init__()
        if embedding_dim < 1:
            raise ValueError(f"embedding_dim={embedding_dim} must be at least 1")
        if backbone.gives_features:
            refuse_pooling(pooling)
        self.backbone = backbone.module
        self.pooling, self.pooling_name = poolings.build(pooling), pooling
        self.norm = (
            nn.LayerNorm(backbone.num_features, elementwise_affine=False) if layer_norm else nn.Identity()
        )
        self.head = nn.Linear(backbone.num_features, embedding_dim)
        nn.init.kaiming_normal_(self.head.weight, mode="fan_out")
        nn.init.zeros_(self.head.bias)
        self.embedding_dim = embedding_dim
        self.pools = not backbone.gives_features
        self.num_features = backbone.num_features
        self.preprocessing: Preprocessing = backbone.preprocessing

    def features(self, inputs: Tensor) -> Tensor:
        """Preprocessed images ``(B, C, H, W)`` to pooled features ``(B, F)``."""
        features: Tensor = self.backbone(inputs)
        if features.ndim > 2:
            return self.pooling(features)  # type: ignore[no-any-return]
        if not isinstance(self.pooling, AveragePooling | nn.Identity):
            refuse_pooling(self.pooling_name)
        return features

    def forward(self, inputs: Tensor) -> Tensor:
        """Preprocessed images ``(B, C, H, W)`` to raw embeddings ``(B, D)``."""
        return self.from_features(self.features(inputs))

    def from_features(self, features: Tensor) -> Tensor:
        """Pooled features ``(B, F)`` to raw embeddings ``(B, D)``."""
        embeddings: Tensor = self.head(self.norm(features))
        return embeddings

    def param_groups(self, lr: float, head_lr: float | None = None) -> list[dict[str, Any]]:
        """Every parameter that may ever be trained, with its learning rate, for an optimiser.

        Frozen batch norms are left out; what :func:`nearkin.networks.train_head_only` holds still for the
        warm-up is not.

        Args:
            lr: For the backbone.
            head_lr: For the head and the pooling; by default ``lr``.
        """
        frozen = held_still(self)
        groups = []
        for name, modules, rate in (
            ("backbone", [self.backbone], lr),
            ("head", [self.pooling, self.norm, self.head], lr if head_lr is None else head_lr),
        ):
            params = [p for module in modules for p in module.parameters() if p not in frozen]
            if params:
                groups.append({"name": name, "params": params, "lr": rate})
        return groups

    @property
    def stages(self) -> tuple[str, ...]:
        """Names that :meth:`split` takes, in the order in which an input passes them."""
        return (*stage_names(self.backbone, self._example()), PooledTrunk.stage)

    def split(self, stage: str) -> tuple[nn.Module, EmbeddingNetwork]:
        """Cut after ``stage``: (inputs to activations, activations to embeddings).

        Both parts share their parameters with this network: what is trained in the second is trained here.
        The first stays in evaluation mode and gives no gradients; :func:`nearkin.networks.cache_activations`
        keeps what it computes.

        Args:
            stage: One of :attr:`stages`, or any submodule of the backbone that everything passes through.
                ``pooling`` leaves nothing but the head to the second part.

        >>> import torch, nearkin.networks
        >>> network = nearkin.networks.build("convnet", embedding_dim=8).eval()
        >>> trunk, rest = network.split("2")
        >>> images = torch.rand(2, 1, 32, 32)
        >>> torch.equal(rest(trunk(images)), network(images))
        True
        """
        if stage == PooledTrunk.stage:
            return PooledTrunk(self.backbone, self.pooling), self._replica(nn.Identity(), nn.Identity())
        trunk, after = split_module(self.backbone, stage, self._example())
        return trunk, self._replica(after, self.pooling)

    def _replica(self, backbone: nn.Module, pooling: nn.Module) -> EmbeddingNetwork:
        """A network with the same norm and head, shared and not copied, on another backbone."""
        replica = copy.copy(self)
        replica._modules = dict(self._modules)
        replica.backbone, replica.pooling = backbone, pooling
        return replica

    def _example(self) -> tuple[int, int, int, int]:
        size = self.preprocessing.size
        return (1, self.preprocessing.channels, size, size)


def refuse_pooling(name: str) -> None:
    """Refuse a pooling, other than the default, for a network that has no feature map.

    >>> refuse_pooling("gem")
    Traceback (most recent call last):
    ValueError: pooling='gem' would have no effect: the network gives features, not a feature map ...
    """
    if name != "avg":
        raise ValueError(
            f"pooling={name!r} would have no effect: the network gives features, not a feature map to pool; "
            "leave it out"
        )


class WithFeatures(nn.Module):
    """Embeddings and, beside them, the features they are made of, in one pass: ``(B, D + F)``.

    One matrix goes wherever embeddings go, through gradient caching and from process to process.

    Args:
        network: It is shared, not copied.
    """

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Any) -> Tensor:
        """A batch of inputs to ``(B, D + F)``."""
        features = self.network.features(inputs)
        return torch.cat([self.network.from_features(features), features], dim=1)

    def parted(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings ``(B, D)`` and features ``(B, F)`` of what ``forward`` gave."""
        embeddings, features = rows.split([self.network.embedding_dim, self.network.num_features], dim=1)
        return embeddings, features
