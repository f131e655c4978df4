"""What papers tend not to say about a run, said in its result."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
from typing import Any

import nearkin
from nearkin.networks import Network
from nearkin.networks.weights import add_weights
from nearkin.recipe.recipe import Recipe
from nearkin.recipe.sections import LossRecipe
from nearkin.recipe.terms import source_of
from nearkin.training import Task

_LIBRARIES = (
    "torch",
    "torchvision",
    "timm",
    "accelerate",
    "numpy",
    "pillow",
    "matplotlib",
)


def disclosure(
    recipe: Recipe, task: Task, *, loss_learns: bool, origins: dict[str, str] | None = None
) -> dict[str, Any]:
    """Everything on which a run's score depends, in the words of a methods section.

    Args:
        recipe: With every choice made.
        task: What was built from it.
        loss_learns: Whether the loss has parameters of its own.
        origins: Where its settings come from, under terms other than equal ones.
    """
    network, optimizer, training = recipe.network, recipe.optimizer, recipe.training
    built = task.embedder.network
    complete = recipe.complete()
    return {
        "terms": _terms(recipe),
        "origins": origins or {},
        "loss": recipe.loss.name,
        "hyperparameters": hyperparameters(recipe),
        "modifiers": {str(one.name): complete["loss"][one.name] for one in recipe.loss.modifiers},
        **({"unlabelled": complete["unlabelled"]} if "unlabelled" in complete else {}),
        "network": network.name,
        "weights": network.weights or f"random, seed {recipe.seed}",
        "hash of the weights": weights_hash(built),
        "trained part": "all" if network.cached_trunk is None else f"what comes after {network.cached_trunk}",
        "embedding size": built.embedding_dim,
        "pooling": network.pooling if built.pools else "none: the network gives features",
        "layer norm": network.layer_norm,
        "head begins as": "principal components" if network.pca_head else "random",
        "batch norm": "frozen" if network.freeze_batch_norm else "trained",
        "crop in training": task.embedder.training_view(),
        "crop in evaluation": repr(task.embedder.evaluation_transform),
        "sampler": complete["sampler"],
        "optimizer": {key: value for key, value in complete["optimizer"].items() if key != "lr"},
        "learning rates": _learning_rates(task, loss_learns),
        "schedule": complete["schedule"],
        "epochs": training.epochs,
        "epochs of the head alone": training.head_only,
        "precision": training.precision,
        "clip": optimizer.clip,
        "clip by value": optimizer.clip_value,
        "seed": recipe.seed,
        "libraries": versions(),
    }


def _terms(recipe: Recipe) -> str:
    source = source_of(recipe.terms, recipe.loss.name)
    return f"{recipe.terms}: {source}" if source else recipe.terms


def hyperparameters(recipe: Recipe) -> dict[str, Any]:
    """Every hyperparameter of the recipe's loss, said or by default."""
    own = recipe.complete()["loss"]
    others = {*LossRecipe.model_fields, *(one.name for one in recipe.loss.modifiers)}
    return {key: value for key, value in own.items() if key not in others}


def _learning_rates(task: Task, loss_learns: bool) -> dict[str, float]:
    rates = {"backbone": task.rates.network, "head": task.rates.head}
    return rates | {"loss": task.rates.loss} if loss_learns else rates


def weights_hash(network: Network) -> str:
    """SHA-256 of the backbone's tensors, whichever file they came from."""
    digest = hashlib.sha256()
    add_weights(digest, network.backbone)
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """Of everything that computes."""
    return {"nearkin": nearkin.__version__, "python": platform.python_version()} | {
        library: importlib.metadata.version(library) for library in _LIBRARIES
    }
