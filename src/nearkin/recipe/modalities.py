"""What is chosen, and what is refused, where samples are pairs of two modalities."""

from __future__ import annotations

from typing import Any

from nearkin.data import DataSet, SampleSet, TwoModalities
from nearkin.losses.base import Loss
from nearkin.losses.modifiers import AcrossModalities
from nearkin.recipe.errors import RecipeError
from nearkin.recipe.recipe import Recipe

_MODIFIERS = frozenset({"matryoshka"})  # it hands references on


def across(loss: Loss, samples: SampleSet) -> Loss:
    """A loss for samples: of two modalities, it goes from the one to the other."""
    return AcrossModalities(loss) if isinstance(samples.samples, TwoModalities) else loss


def choices_for_modalities(recipe: Recipe, data_set: DataSet) -> dict[str, tuple[Any, str]]:
    """Settings that fit pairs of two modalities, where a recipe leaves them open; each with its reason."""
    if not isinstance(data_set.train.samples, TwoModalities):
        return {}
    found: dict[str, tuple[Any, str]] = {
        "loss.name": ("info_nce", "it finds the partner of each sample in the other modality"),
        "sampler.name": ("random", "every pair brings its own positive"),
    }
    said = recipe.said
    return {
        key: choice
        for key, choice in found.items()
        if not isinstance(table := said.get(key.partition(".")[0], {}), str) and "name" not in table
    }


def refuse_for_modalities(recipe: Recipe, data_set: DataSet) -> None:
    """Say what pairs of two modalities cannot be used with.

    Raises:
        RecipeError: The recipe asks for it.
    """
    if not isinstance(data_set.train.samples, TwoModalities):
        return
    if recipe.unlabelled.name is not None:
        raise RecipeError("[unlabelled] is for samples of one modality")
    refused = [str(one.name) for one in recipe.loss.modifiers if one.name not in _MODIFIERS]
    if refused:
        raise RecipeError(f"[loss.{refused[0]}] is for samples of one modality: leave it away")
    if recipe.network.embedding_dim is not None:
        raise RecipeError(
            "network.embedding_dim would put one head on both modalities: give each network its own"
        )
    if recipe.network.pca_head or recipe.network.cached_trunk is not None:
        raise RecipeError("network.pca_head and network.cached_trunk are for one network, and here are two")
