"""What a network is made of, before it is built: what decides how it is best fine-tuned."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.flop_counter import FlopCounterMode

from nearkin.networks import timm_models
from nearkin.networks.base import Backbone, EmbeddingNetwork, registry
from nearkin.networks.splitting import PooledTrunk


@dataclass(frozen=True)
class Anatomy:
    """What a network is made of.

    Attributes:
        num_features: F, the size of its features.
        gives_map: Whether it ends in a feature map, which is pooled; else in features.
        has_batch_norm: Whether any of its layers is a batch norm.
        size: Side of its input.
        shares: For each stage at which it can be cut, in order, the share of all multiplications that come
            after it.
        numbers: For each stage, how many numbers its output has for one image.
    """

    num_features: int
    gives_map: bool
    has_batch_norm: bool
    size: int
    shares: dict[str, float]
    numbers: dict[str, int] = field(default_factory=dict)

    def trunk(self, share: float) -> str:
        """The first stage after which at most this share of the work is left to train.

        >>> Anatomy(8, True, True, 32, {"1": 0.9, "2": 0.4, "3": 0.1}).trunk(0.5)
        '2'
        """
        return next((stage for stage, left in self.shares.items() if left <= share), PooledTrunk.stage)


def anatomy_of(name: str, keywords: Mapping[str, Any] | None = None) -> Anatomy:
    """Look into a network of ours or timm's; its weights play no part.

    Args:
        name: As :func:`nearkin.networks.build` takes it.
        keywords: What the network itself takes.
    """
    return _anatomy_of(name, tuple(sorted((keywords or {}).items())))


@functools.lru_cache(maxsize=8)
def _anatomy_of(name: str, keywords: tuple[tuple[str, Any], ...]) -> Anatomy:
    with torch.random.fork_rng(devices=[]):
        backbone = make_backbone(name, **dict(keywords))
        network = EmbeddingNetwork(backbone, embedding_dim=1).eval()
    size, channels = backbone.preprocessing.size, backbone.preprocessing.channels
    example = torch.zeros(1, channels, size, size)
    with torch.no_grad():
        output: Tensor = network.backbone(example)
    shares, numbers = _stages(network, example)
    return Anatomy(
        num_features=backbone.num_features,
        gives_map=output.ndim == 4,
        has_batch_norm=any(isinstance(module, _BatchNorm) for module in network.modules()),
        size=size,
        shares=shares,
        numbers=numbers,
    )


def make_backbone(name: str, **keywords: Any) -> Backbone:
    """The backbone of a name, with random weights."""
    if name.startswith(timm_models.PREFIX):
        return timm_models.timm_backbone(name.removeprefix(timm_models.PREFIX), **keywords)
    return registry.build(name, **keywords)


def _stages(network: EmbeddingNetwork, example: Tensor) -> tuple[dict[str, float], dict[str, int]]:
    """The share of the work after each stage, and the size of its output."""
    whole = _multiplications(network, example)
    shares: dict[str, float] = {}
    numbers: dict[str, int] = {PooledTrunk.stage: network.num_features}
    for stage in network.stages:
        if stage == PooledTrunk.stage:
            continue
        try:
            trunk, rest = network.split(stage)
        except ValueError:  # what comes after it needs more than its output
            continue
        with torch.no_grad():
            activations: Tensor = trunk(example)
        shares[stage] = _multiplications(rest, activations) / whole
        numbers[stage] = activations.numel()
    return shares, numbers


@torch.no_grad()
def _multiplications(module: nn.Module, example: Tensor) -> int:
    counter = FlopCounterMode(display=False)
    with counter:
        module(example)
    return max(counter.get_total_flops(), 1)
