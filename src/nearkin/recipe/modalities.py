"""What is chosen, and what is refused, where samples are pairs of two modalities."""

from __future__ import annotations

from typing import Any

import torch

from nearkin.data import SCHEMES, DataSet, SampleSet, Texts, TwoModalities
from nearkin.data.image_and_text import IMAGE_AND_TEXT
from nearkin.data.looking import Look, look_at
from nearkin.losses.base import Loss
from nearkin.losses.modifiers import AcrossModalities
from nearkin.recipe.errors import RecipeError
from nearkin.recipe.photographs import IMAGENET, Choices, Open, network_for, only_open, small_network
from nearkin.recipe.recipe import Recipe
from nearkin.recipe.sections import IMAGE_TEXT

_MODIFIERS = frozenset({"matryoshka"})  # it hands references on
# The terms of benchmarks/modalities.py, which trains heads on frozen features; not searched for.
_HEADS_LEARNING_RATE = 1e-3
_LEARNING_RATE = 2e-4
_EPOCHS = 20
_BATCH_SIZE = 128


def across(loss: Loss, samples: SampleSet) -> Loss:
    """A loss for samples: of two modalities, it goes from the one to the other."""
    return AcrossModalities(loss) if isinstance(samples.samples, TwoModalities) else loss


def choices_for_modalities(
    recipe: Recipe, data_set: DataSet, *, has_gpu: bool | None = None
) -> dict[str, tuple[Any, str]]:
    """Settings that fit pairs of two modalities, where a recipe leaves them open; each with its reason.

    Args:
        recipe: What it says stays.
        data_set: Its data set.
        has_gpu: Whether a whole network can be trained; by default whether there is a GPU.
    """
    samples = data_set.train.samples
    if not isinstance(samples, TwoModalities):
        return {}
    is_open = Open(recipe)
    found: Choices = {
        "loss.name": ("info_nce", "it finds the partner of each sample in the other modality"),
        "sampler.name": ("random", "every pair brings its own positive"),
    }
    named = not is_open("network.name")
    look = None if named and recipe.network.name != IMAGE_TEXT else _look_at_images(samples)
    if look is not None:
        gpu = torch.cuda.is_available() if has_gpu is None else has_gpu
        found |= _two_networks(recipe, look, has_gpu=gpu)
    return only_open(found, is_open)


def _look_at_images(samples: TwoModalities) -> Look | None:
    """A few of the images, where the pairs are of images and texts."""
    if not isinstance(samples.second, Texts):
        return None
    images = samples.items(0)[0]
    return look_at(SampleSet(images, torch.zeros(len(images), dtype=torch.long)))


def _two_networks(recipe: Recipe, look: Look, *, has_gpu: bool) -> Choices:
    """A network for images and a language model, and how they are trained."""
    found: Choices = {"network.name": (IMAGE_TEXT, "pairs of images and texts: a network for each")}
    keywords = recipe.network.keywords
    named, weights = "image" in keywords, keywords.get("image_weights")
    if look.kind != "photographs" and weights is None:
        if not named:
            small = small_network(look)
            found["network.image"] = small["network.name"]
            found |= {key: small[key] for key in ("network.size", "network.channels")}
    else:
        if not named:
            name, why = network_for(look, weights)
            found["network.image"] = name, "photographs" if weights is None else why
        if weights is None and not named:
            found["network.image_weights"] = IMAGENET, f"{look.kind} start from pretrained weights"
        pretrained = weights is not None or not named
        own_crops = not Open(recipe)("data.transform") or "data.transform" in recipe.objects
        if pretrained and not has_gpu and not own_crops:
            found["network.cached_trunk"] = "pooling", "there is no GPU: features of both are computed once"
            found["optimizer.lr"] = _HEADS_LEARNING_RATE, "only the heads are trained"
        elif pretrained:
            found["optimizer.lr"] = _LEARNING_RATE, "for fine-tuning a pretrained network"
            found["network.freeze_batch_norm"] = True, "for fine-tuning a pretrained network"
        found["protocol.name"] = "retrained", "held-out classes choose the epoch, and then teach as well"
        found["training.epochs"] = _EPOCHS, "for heads on pretrained networks"
    found["sampler.batch_size"] = _BATCH_SIZE, "every other pair of a batch is a negative"
    return found


def refuse_for_modalities(recipe: Recipe, data_set: DataSet) -> None:
    """Say what pairs of two modalities cannot be used with, and what only they can.

    Raises:
        RecipeError: The recipe asks for it.
    """
    network = recipe.network
    if not isinstance(data_set.train.samples, TwoModalities):
        if network.name == IMAGE_TEXT:
            raise RecipeError(
                f"network.name={IMAGE_TEXT} is for pairs of images and texts: give a table with the columns "
                "image and text, or nearkin.data.modalities(images, texts)"
            )
        return
    if recipe.unlabelled.name is not None:
        raise RecipeError("[unlabelled] is for samples of one modality")
    if recipe.data.transform.name in SCHEMES:
        raise RecipeError(
            f"data.transform={recipe.data.transform.name} is for images alone: say {IMAGE_AND_TEXT}, which "
            "crops the images (scale, flip) and leaves the texts as they are"
        )
    refused = [str(one.name) for one in recipe.loss.modifiers if one.name not in _MODIFIERS]
    if refused:
        raise RecipeError(f"[loss.{refused[0]}] is for samples of one modality: leave it away")
    if network.embedding_dim is not None and network.name != IMAGE_TEXT:
        raise RecipeError(
            "network.embedding_dim would put one head on both modalities: give each network its own"
        )
    if network.weights is not None and network.name == IMAGE_TEXT:
        raise RecipeError(
            "network.weights are of one network, and here are two: say network.image_weights, and "
            "network.text for the language model"
        )
    if network.pca_head or network.cached_crops:
        raise RecipeError("network.pca_head and network.cached_crops are for one network, and here are two")
    if network.cached_trunk not in (None, "pooling"):
        raise RecipeError(
            f"network.cached_trunk={network.cached_trunk} is a stage of one network, and here are two: "
            "pooling keeps the features of both"
        )
