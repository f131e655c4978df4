"""What a recipe names, made: its network, its loss, and embeddings of images as it sees them."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from nearkin import losses, networks
from nearkin.data import SampleSet, evaluation_transform
from nearkin.losses.base import Loss
from nearkin.networks import ActivationTransform, EmbeddingNetwork, embed, freeze_batch_norm
from nearkin.recipe.recipe import Recipe
from nearkin.training.run import Run
from nearkin.training.trunk import after_trunk, seen_by_trunk


def build_network(recipe: Recipe) -> EmbeddingNetwork:
    """The recipe's network before training."""
    settings = recipe.network
    network = networks.build(
        settings.name,
        embedding_dim=settings.embedding_dim,
        pooling=settings.pooling,
        layer_norm=settings.layer_norm,
        weights=settings.weights,
        seed=recipe.seed,
        **settings.keywords,
    )
    if settings.freeze_batch_norm:
        freeze_batch_norm(network)
    # This memory order is up to twice as fast, on CPUs as on GPUs.
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def build_loss(recipe: Recipe, num_classes: int) -> Loss:
    """The recipe's loss before training."""
    loss = losses.build(
        recipe.loss.name,
        num_classes=num_classes,
        embedding_dim=recipe.network.embedding_dim,
        generator=torch.Generator().manual_seed(recipe.seed),
        **recipe.loss.keywords,
    )
    if recipe.loss.memory is not None:
        return losses.CrossBatchMemory(loss, **recipe.loss.memory.model_dump())
    return loss


def load_network(run: Run) -> EmbeddingNetwork:
    """The trained network of a finished run."""
    network = build_network(run.recipe)
    network.load_state_dict(run.read_network())
    return network.eval()


def embed_as(
    recipe: Recipe,
    network: EmbeddingNetwork,
    images: SampleSet,
    *,
    what: Literal["embeddings", "features"] = "embeddings",
) -> Tensor:
    """Embeddings ``(N, D)`` or features ``(N, F)`` of images, seen as the recipe says, on the CPU.

    Args:
        recipe: Of the run.
        network: The whole network.
        images: Images, or what its trunk made of them.
        what: Which of the two.
    """
    if recipe.network.cached_trunk is None:
        transform = evaluation_transform(network.preprocessing, recipe.data.transform)
    else:
        images = seen_by_trunk(recipe, network, images)
        network, transform = after_trunk(recipe, network), ActivationTransform()
    return embed(
        network,
        images,
        what=what,
        transform=transform,
        batch_size=recipe.evaluation.batch_size,
        workers=recipe.data.workers,
    )
