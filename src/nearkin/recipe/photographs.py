"""Settings that fit the images at hand, where a recipe leaves them open; each with its reason."""

from __future__ import annotations

import inspect
import math
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from nearkin import losses
from nearkin.data import DataSet, ImageArray, SampleSet, transforms
from nearkin.data.looking import Look, look_at
from nearkin.networks.anatomy import Anatomy, anatomy_of, make_backbone
from nearkin.networks.embedder import default_trunk_cache
from nearkin.networks.pretrained import DEFAULT_NETWORK, default_network, find_weights, network_of
from nearkin.observer import Observer
from nearkin.protocols import Retrained
from nearkin.recipe.budget import (
    USUAL_SHARE,
    Amounts,
    Budgeted,
    fit_budget,
    measured_speed,
    seconds_to_read,
)
from nearkin.recipe.choices import PYTHON
from nearkin.recipe.errors import RecipeError
from nearkin.recipe.opening import opened
from nearkin.recipe.recipe import Recipe
from nearkin.recipe.sections import NetworkRecipe
from nearkin.training import Protocol
from nearkin.training.mixed_precision import steps_are_faster_in_bf16

Choices = dict[str, tuple[Any, str]]
"""Dotted keys, each with a value and the reason for it."""

IMAGENET = "imagenet"
# Learning rate, side and images seen were chosen on CUB's training classes alone (60 of its classes 1 to 100
# taught, the other 40 scored); the rest are the terms of a plain fine-tuning script, not searched for.
_EMBEDDING_DIM = 512
_LEARNING_RATE = 2e-4
_PROXIES_LEARNING_RATE = 1e-2
_BATCH_SIZE = 120
_IMAGES_SEEN = 28_000
_FEWEST_EPOCHS, _MOST_EPOCHS = 5, 40
_LARGER = 8 / 7  # than what a network was trained at: objects look smaller to it in training than afterwards
_ENOUGH_CLASSES = 4  # two to learn from and two to choose
_SIDES = 32  # pixels, of which a side is a multiple


@dataclass(frozen=True)
class Open:
    """Which settings a recipe leaves open."""

    recipe: Recipe

    def __call__(self, key: str) -> bool:
        """Whether nothing is said under a dotted key."""
        table, _, name = key.partition(".")
        said = self.recipe.said.get(table, {})
        return name not in ({"name": said} if isinstance(said, str) else said)


def choices_for_images(recipe: Recipe, data_set: DataSet, *, has_gpu: bool | None = None) -> Choices:
    """What is chosen for a recipe because of the images that it is for; nothing for other samples.

    Photographs get a pretrained network and settings to fine-tune it, without a GPU behind a cached trunk.
    Small images and drawings get a small network that starts afresh.

    Args:
        recipe: What it says stays.
        data_set: Its data set.
        has_gpu: Whether a whole network can be trained; by default whether there is a GPU.

    Raises:
        RecipeError: It cannot be told which network a file of weights belongs to.
    """
    if recipe.terms != "equal" or recipe.network.is_own_module or recipe.network.name.startswith(PYTHON):
        return {}
    look = look_at(data_set.train)
    if look is None:
        return {}
    is_open = Open(recipe)
    named, weights = not is_open("network.name"), recipe.network.weights
    if weights is None and (named or look.kind != "photographs"):
        fits = named or _fits_as_it_is(recipe, data_set, look)
        return {} if fits else only_open(small_network(look), is_open)
    found: Choices = {}
    name = recipe.network.name
    if not named:
        found["network.name"] = name, _ = network_for(look, weights)
    if weights is None:
        at_hand = find_weights(name)
        what = "to be downloaded" if at_hand is None else f"in {at_hand.name}"
        found["network.weights"] = IMAGENET, f"{look.kind} start from pretrained weights, {what}"
    has_gpu = torch.cuda.is_available() if has_gpu is None else has_gpu
    found |= _larger(recipe, name, look, is_open)
    sizes = {"size": found["network.size"][0]} if "network.size" in found else {}
    anatomy = anatomy_of(name, {**recipe.network.keywords, **sizes})
    # Whoever says how images are cropped wants them cropped anew each time, which no cache can do.
    behind_trunk = not has_gpu and is_open("data.transform") and "data.transform" not in recipe.objects
    found |= _fine_tuning(recipe, look, anatomy, behind_trunk=behind_trunk)
    if not is_open("loss.lr_factor"):
        found.pop("loss.lr", None)
    return only_open(found, is_open)


def choice_for_few_classes(recipe: Recipe, data_set: DataSet) -> Choices:
    """Which protocol so few classes allow, where a recipe leaves it open; nothing where they are enough."""
    classes = data_set.all_classes.num_classes
    if not Open(recipe)("protocol.name") or "protocol" in recipe.objects or classes >= _ENOUGH_CLASSES:
        return {}
    if recipe.protocol.keywords or data_set.closed or data_set.validation is not None:
        return {}
    if classes >= 2:
        return {"protocol.name": ("standard", f"{classes} training classes are too few to hold any out")}
    return {"protocol.name": ("closed_set", "too few classes to test on others: images of each are held out")}


def protocol_for_few_classes(recipe: Recipe) -> str | None:
    """The protocol of a training on data of so few classes that none can be held out; else ``None``."""
    table = recipe.resolved().data
    if table.root is None or table.name is None:
        return None
    try:
        data_set = opened(table.name, table.root, table.keywords)
    except (ValueError, OSError):  # which whoever opens it to train says better
        return None
    choice = choice_for_few_classes(recipe, data_set).get("protocol.name")
    return None if choice is None else str(choice[0])


def choices_for_minutes(
    said: Recipe, recipe: Recipe, data_set: DataSet, protocol: Protocol, observer: Observer
) -> Choices:
    """How many epochs, how much of the network and how many cached crops fit into a recipe's minutes.

    Args:
        said: The recipe as it was given.
        recipe: The same with what fits its images.
        data_set: Its data set.
        protocol: Splits it.
        observer: Hears what is measured.
    """
    minutes = recipe.training.minutes
    if minutes is None or not Open(said)("training.epochs"):
        return {}
    found = fitting_minutes(said, recipe, data_set, protocol, minutes=minutes, observer=observer)
    why = f"fits {minutes:g} minutes: about {found.seconds / 60:.1f} by the speed measured on this machine"
    choices: Choices = {"training.epochs": (found.epochs, why)}
    if _chooses_trunk(said, recipe):
        choices["network.cached_trunk"] = found.trunk, why  # None: there is time for the whole network
    if found.crops:
        choices["network.cached_crops"] = found.crops, why
    if found.lr is not None and found.lr != recipe.optimizer.lr:
        choices["optimizer.lr"] = found.lr, "for fine-tuning so much of a pretrained network"
    return only_open(choices, Open(said))


def _chooses_trunk(said: Recipe, recipe: Recipe) -> bool:
    """Whether it is left open what of a pretrained network is trained.

    Whoever says how images are cropped wants them cropped anew each time, which no cache can do.
    """
    is_open = Open(said)
    own_crops = not is_open("data.transform") or "data.transform" in said.objects
    return recipe.network.weights is not None and is_open("network.cached_trunk") and not own_crops


def fitting_minutes(
    said: Recipe,
    recipe: Recipe,
    data_set: DataSet,
    protocol: Protocol,
    *,
    minutes: float,
    observer: Observer,
    runs: int = 1,
) -> Budgeted:
    """What fits into the minutes, by the speed that is measured now.

    Args:
        said: The recipe as it was given.
        recipe: The same with what fits its images.
        data_set: Its data set.
        protocol: Splits it.
        minutes: The budget.
        observer: Hears what is measured.
        runs: Runs that share it, with the same data and network.

    Raises:
        RecipeError: The speed cannot be measured beforehand.
    """
    network = recipe.network
    if network.is_own_module or network.name.startswith(PYTHON) or look_at(data_set.train) is None:
        raise RecipeError(
            "training.minutes is for images and networks of ours or timm's, whose speed can be measured: say "
            "training.epochs instead"
        )
    train, validation = protocol.split(data_set.without_test(), recipe.seed)
    amounts = Amounts(
        train=len(train),
        validation=0 if validation is None else len(validation),
        test=0 if data_set.test is None else len(data_set.test),
        again=len(data_set.all_classes) if isinstance(protocol, Retrained) else 0,
        runs=runs,
    )
    anatomy = anatomy_of(network.name, network.keywords)
    reading = _seconds_to_read(recipe, data_set.train)
    # Runs that share a budget are compared, and more seeds tell more than more crops.
    crops_are_open = runs == 1 and Open(said)("network.cached_crops")
    return fit_budget(
        minutes,
        anatomy,
        lambda stage: replace(measured_speed(recipe, stage, observer), read=reading),
        amounts,
        trunk=_chooses_trunk(said, recipe) or network.cached_trunk,
        crops=None if crops_are_open else network.cached_crops,
        free_bytes=_free_bytes(network.trunk_cache),
    )


def _seconds_to_read(recipe: Recipe, samples: SampleSet) -> float:
    with torch.random.fork_rng(devices=[]):
        preprocessing = make_backbone(recipe.network.name, **recipe.network.keywords).preprocessing
    seconds = seconds_to_read(samples, transforms.build("resized_crop", preprocessing=preprocessing))
    return seconds / max(recipe.data.workers, 1)


def _free_bytes(trunk_cache: str | None) -> int:
    """On the disk where the cache of the trunk's outputs will be."""
    folder = default_trunk_cache() if trunk_cache is None else Path(trunk_cache).absolute()
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def only_open(choices: Choices, is_open: Open) -> Choices:
    """The choices that a recipe leaves open."""
    return {key: choice for key, choice in choices.items() if is_open(key)}


def network_for(look: Look, weights: str | None) -> tuple[str, str]:
    """The network that photographs are learnt with, and why: one whose weights are at hand, or said.

    Raises:
        RecipeError: It cannot be told which network a file of weights belongs to.
    """
    if weights is None or weights == IMAGENET:
        return default_network() or DEFAULT_NETWORK, str(look)
    if not Path(weights).is_file():
        raise RecipeError(f"no weights at {weights}")
    name = network_of(weights)
    if name is None:
        raise RecipeError(
            f"cannot tell which network the weights in {weights} belong to: say it, "
            "--set network.name=timm:NAME"
        )
    return name, "network.weights are its weights"


def _larger(recipe: Recipe, name: str, look: Look, is_open: Open) -> Choices:
    """A larger side than the network's own, where images have it and the network takes it."""
    takes_size = "size" in inspect.signature(NetworkRecipe.maker(name)).parameters
    if not is_open("network.size") or not takes_size:
        return {}
    anatomy = anatomy_of(name, recipe.network.keywords)
    side = _SIDES * round(_LARGER * anatomy.size / _SIDES)
    if not anatomy.gives_map or not anatomy.size < side <= look.short_side:
        return {}
    return {"network.size": (side, f"the images have it, and features tell more than at {anatomy.size}")}


def _fine_tuning(recipe: Recipe, look: Look, anatomy: Anatomy, *, behind_trunk: bool) -> Choices:
    """How a pretrained network is trained on."""
    why = "for fine-tuning a pretrained network"
    size = recipe.network.embedding_dim or min(_EMBEDDING_DIM, anatomy.num_features)
    epochs = min(max(math.ceil(_IMAGES_SEEN / look.samples), _FEWEST_EPOCHS), _MOST_EPOCHS)
    found: Choices = {
        "protocol.name": ("retrained", "held-out classes choose the epoch, and then teach as well"),
        "evaluation.select": ("map_at_r", "Recall@1 of a pretrained network is soon the same at every epoch"),
        "network.embedding_dim": (size, why),
        "optimizer.lr": (_LEARNING_RATE, why),
        "sampler.batch_size": (_BATCH_SIZE, why),
        "training.epochs": (epochs, f"{look.samples:,} images are seen about {_IMAGES_SEEN:,} times in all"),
    }
    if size <= anatomy.num_features:
        found["network.pca_head"] = True, "the head starts as what the features vary by most"
    if anatomy.gives_map:
        found["network.pooling"] = "avg+max", why
    if anatomy.has_batch_norm:
        found["network.freeze_batch_norm"] = True, why
    if recipe.loss.name in losses.names() and not losses.compares_samples(recipe.loss.name):
        found["loss.lr"] = _PROXIES_LEARNING_RATE, "proxies start afresh and learn faster than the network"
    if steps_are_faster_in_bf16():
        found["training.precision"] = "bf16", "steps are faster so on this machine; scores are float32"
    if behind_trunk:
        stage = anatomy.trunk(USUAL_SHARE)
        found["network.cached_trunk"] = stage, "there is no GPU: what comes before is computed once"
    return found


def _fits_as_it_is(recipe: Recipe, data_set: DataSet, look: Look) -> bool:
    """Whether the default network takes these images as they are, as it does those of glyphs."""
    size = recipe.network.keywords.get("size", 32)
    same_size = isinstance(data_set.train.samples, ImageArray) and (look.height, look.width) == (size, size)
    return same_size and (not look.colour or recipe.network.keywords.get("channels") == 3)


def small_network(look: Look) -> Choices:
    """A small network for small images and drawings."""
    size = 32 if look.short_side <= 40 else 48 if look.short_side <= 64 else 64
    why = f"{look}: a small network that starts afresh"
    crop: dict[str, Any] = {"name": "resized_crop", "scale": [0.6, 1.0]}
    if look.kind == "drawings":
        crop["flip"] = 0.0
    return {
        "network.name": ("convnet", why),
        "network.size": (size, why),
        "network.channels": (3 if look.colour else 1, why),
        "data.transform": (
            crop,
            "crops keep most of an image"
            + (", and drawings are not mirrored" if look.kind == "drawings" else ""),
        ),
    }
