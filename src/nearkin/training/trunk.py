"""Training what comes after a frozen trunk, whose activations are computed once and kept on disk."""

from __future__ import annotations

from pathlib import Path

from platformdirs import user_cache_dir

from nearkin.data import SampleSet, evaluation_transform
from nearkin.data.transforms import Transform
from nearkin.networks import Activations, ActivationTransform, EmbeddingNetwork, cache_activations
from nearkin.networks.embedding import Progress
from nearkin.recipe.recipe import Recipe

_FLIP = 0.5


def after_trunk(recipe: Recipe, network: EmbeddingNetwork) -> EmbeddingNetwork:
    """The part of a network that the recipe trains; it shares its parameters with ``network``."""
    stage = recipe.network.cached_trunk
    return network if stage is None else network.split(stage)[1]


def seen_by_trunk(
    recipe: Recipe,
    network: EmbeddingNetwork,
    images: SampleSet,
    *,
    flips: bool = False,
    progress: Progress | None = None,
) -> SampleSet:
    """Images as the trained part takes them: the trunk's activations, or the images if there is no trunk.

    Args:
        recipe: Says where the trunk ends.
        network: The whole network.
        images: Images, or activations, which come back as they are.
        flips: Whether to keep the mirror images as well, to train on.
        progress: Called with the images done and the number of all.
    """
    stage = recipe.network.cached_trunk
    if stage is None or isinstance(images.samples, Activations):
        return images
    activations, _ = cache_activations(
        network,
        stage,
        images,
        recipe.network.trunk_cache or Path(user_cache_dir("nearkin")) / "activations",
        flips=flips,
        transform=evaluation_transform(network.preprocessing, recipe.data.transform),
        workers=recipe.data.workers,
        progress=progress,
    )
    return activations


def activation_transform(images: SampleSet) -> Transform:
    """What training does to activations: the mirror image half of the time, where it is there."""
    assert isinstance(images.samples, Activations)
    return ActivationTransform(flip=_FLIP if images.samples.has_flips else 0.0)
