"""Image in, embedding out: a backbone, a pooling and a head, with the preprocessing of its weights."""

from __future__ import annotations

from typing import Any

import torch

# One line per network; each file registers what it defines.
from nearkin.networks import convnet as convnet
from nearkin.networks import lenet as lenet
from nearkin.networks import mlp as mlp
from nearkin.networks.base import Backbone, EmbeddingNetwork, poolings, registry

__all__ = ["Backbone", "EmbeddingNetwork", "build", "names", "poolings", "register"]

register = registry.register
names = registry.names


def build(
    name: str, *, embedding_dim: int, pooling: str = "avg", seed: int = 0, **keywords: Any
) -> EmbeddingNetwork:
    """Make an :class:`EmbeddingNetwork`.

    Args:
        name: One of :func:`names`.
        embedding_dim: D, the size of an embedding.
        pooling: ``avg``, ``max`` or ``avg+max``.
        seed: Draws the initial weights; the global random state is left as it was.
        keywords: What the network itself takes, such as ``channels`` and ``size``.

    >>> network = build("convnet", embedding_dim=64, size=28)
    >>> network(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 64])
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        backbone = registry.build(name, **keywords)
        return EmbeddingNetwork(backbone, embedding_dim=embedding_dim, pooling=pooling)
