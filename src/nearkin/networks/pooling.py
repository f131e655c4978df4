"""Feature maps to feature vectors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nearkin.registry import Registry

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


@poolings.register("gem")
class GeneralizedMeanPooling(nn.Module):
    """Generalised mean, (mean of x^p)^(1/p): p = 1 is the mean, p → ∞ the maximum.

    From Radenović, Tolias and Chum 2019, "Fine-tuning CNN image retrieval with no human annotation",
    TPAMI. The exponent is learned; values below ``eps`` count as ``eps``.

    Args:
        p: Where the exponent starts.
        eps: Smallest value of a place.
    """

    def __init__(self, p: float = 3.0, eps: float = 1e-6) -> None:
        super().__init__()
        if p <= 0:
            raise ValueError(f"p={p} must be greater than 0")
        self.p = nn.Parameter(torch.tensor(float(p)))
        self.eps = eps

    def forward(self, features: Tensor) -> Tensor:
        """``(B, F, h, w)`` to ``(B, F)``."""
        # Powers overflow half precision long before their root is taken.
        with torch.autocast(features.device.type, enabled=False):
            powers = features.float().clamp(min=self.eps) ** self.p.float()
            return (powers.mean(dim=(2, 3)) ** (1 / self.p.float())).to(features.dtype)
