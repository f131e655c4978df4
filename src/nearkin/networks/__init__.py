"""Networks: a batch of samples in, embeddings out, with the preprocessing that the weights expect."""

from __future__ import annotations

import os
from typing import Any

import torch

# One line per network; each file registers what it defines.
from nearkin.networks import bninception as bninception
from nearkin.networks import convnet as convnet
from nearkin.networks import googlenet as googlenet
from nearkin.networks import lenet as lenet
from nearkin.networks import mlp as mlp
from nearkin.networks import timm_models
from nearkin.networks import torchvision_models as torchvision_models
from nearkin.networks.activations import Activations, ActivationTransform, cache_activations
from nearkin.networks.base import Backbone, EmbeddingNetwork, Network, registry
from nearkin.networks.embedder import Embedder
from nearkin.networks.embedding import embed, initialise_head_with_pca
from nearkin.networks.freezing import freeze_batch_norm, has_trained_batch_norm, train_head_only
from nearkin.networks.pooling import poolings
from nearkin.networks.towers import TwoTowers
from nearkin.networks.weights import load_imagenet, load_weights
from nearkin.networks.wrapped import WrappedNetwork, as_network

__all__ = [
    "ActivationTransform",
    "Activations",
    "Backbone",
    "Embedder",
    "EmbeddingNetwork",
    "Network",
    "TwoTowers",
    "WrappedNetwork",
    "as_network",
    "build",
    "cache_activations",
    "embed",
    "freeze_batch_norm",
    "has_trained_batch_norm",
    "initialise_head_with_pca",
    "names",
    "poolings",
    "register",
    "train_head_only",
]

register = registry.register
names = registry.names


def build(
    name: str,
    *,
    embedding_dim: int,
    pooling: str = "avg",
    layer_norm: bool = False,
    weights: str | os.PathLike[str] | None = None,
    seed: int = 0,
    **keywords: Any,
) -> EmbeddingNetwork:
    """Make an :class:`EmbeddingNetwork`.

    Args:
        name: One of :func:`names`, or ``timm:NAME`` for any backbone of timm.
        embedding_dim: D, the size of an embedding.
        pooling: ``avg``, ``max``, ``avg+max`` or ``gem``.
        layer_norm: Normalise pooled features before the head.
        weights: ``"imagenet"`` downloads the backbone's; a path loads a ``.safetensors`` or PyTorch file;
            ``None`` starts afresh.
        seed: Draws the initial weights; the global random state is left as it was.
        keywords: What the network itself takes, such as ``channels`` and ``size``.

    >>> network = build("convnet", embedding_dim=64, size=28)
    >>> network(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 64])
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if name.startswith(timm_models.PREFIX):
            backbone = timm_models.timm_backbone(name.removeprefix(timm_models.PREFIX), **keywords)
        else:
            backbone = registry.build(name, **keywords)
        if weights == "imagenet":
            load_imagenet(backbone, name)
        elif weights is not None:
            load_weights(backbone, weights)
        network = EmbeddingNetwork(
            backbone, embedding_dim=embedding_dim, pooling=pooling, layer_norm=layer_norm
        )
    network.spec = {
        "name": name,
        "embedding_dim": embedding_dim,
        "pooling": pooling,
        "layer_norm": layer_norm,
        **keywords,
    }
    return network
