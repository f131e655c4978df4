"""The shape of every network: backbone, pooling, head, and the preprocessing that belongs to the weights."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from nearkin.data.preprocessing import Preprocessing
from nearkin.registry import Registry


@dataclass(frozen=True)
class Backbone:
    """What a network's file provides.

    Attributes:
        module: Images ``(B, C, H, W)`` to a feature map ``(B, F, h, w)`` or to features ``(B, F)``.
        num_features: F.
        preprocessing: The input that the module, with its weights, expects.
    """

    module: nn.Module
    num_features: int
    preprocessing: Preprocessing


registry: Registry[Backbone] = Registry("network")
poolings: Registry[nn.Module] = Registry("pooling")


@poolings.register("avg")
class AveragePooling(nn.Module):
    """Mean over all places of the feature map."""

    def forward(self, features: Tensor) -> Tensor:
        """``(B, F, h, w)`` to ``(B, F)``."""
        return features.mean(dim=(2, 3))


@poolings.register("max")
class MaxPooling(nn.Module):
    """Maximum over all places of the feature map."""

    def forward(self, features: Tensor) -> Tensor:
        """``(B, F, h, w)`` to ``(B, F)``."""
        return features.amax(dim=(2, 3))


@poolings.register("avg+max")
class AverageAndMaxPooling(nn.Module):
    """Sum of mean and maximum: what ProxyAnchor's published code uses."""

    def forward(self, features: Tensor) -> Tensor:
        """``(B, F, h, w)`` to ``(B, F)``."""
        return features.mean(dim=(2, 3)) + features.amax(dim=(2, 3))


class EmbeddingNetwork(nn.Module):
    """Images to raw embeddings: ``head(pooling(backbone(images)))``.

    Losses and scores normalise by themselves what their equations want normalised.

    Args:
        backbone: The :class:`Backbone` of a registered network.
        embedding_dim: D, the size of an embedding.
        pooling: Name of a pooling; ignored by backbones that give features ``(B, F)`` already.
    """

    def __init__(self, backbone: Backbone, *, embedding_dim: int, pooling: str = "avg") -> None:
        super().__init__()
        if embedding_dim < 1:
            raise ValueError(f"embedding_dim={embedding_dim} must be at least 1")
        self.backbone = backbone.module
        self.pooling = poolings.build(pooling)
        self.head = nn.Linear(backbone.num_features, embedding_dim)
        nn.init.kaiming_normal_(self.head.weight, mode="fan_out")
        nn.init.zeros_(self.head.bias)
        self.embedding_dim = embedding_dim
        self.num_features = backbone.num_features
        self.preprocessing = backbone.preprocessing

    def features(self, images: Tensor) -> Tensor:
        """Preprocessed images ``(B, C, H, W)`` to pooled features ``(B, F)``."""
        features: Tensor = self.backbone(images)
        return features if features.ndim == 2 else self.pooling(features)

    def forward(self, images: Tensor) -> Tensor:
        """Preprocessed images ``(B, C, H, W)`` to raw embeddings ``(B, D)``."""
        embeddings: Tensor = self.head(self.features(images))
        return embeddings
