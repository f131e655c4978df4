"""What papers tend not to say about a run, said in its result."""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
import platform
from typing import Any

import nearkin
from nearkin import losses
from nearkin.data import evaluation_transform, training_transform
from nearkin.networks import ActivationTransform, EmbeddingNetwork
from nearkin.networks.weights import add_weights
from nearkin.recipe.terms import published
from nearkin.training import Recipe, build_network

_LIBRARIES = (
    "torch",
    "torchvision",
    "timm",
    "accelerate",
    "numpy",
    "pillow",
    "matplotlib",
)


def disclosure(recipe: Recipe) -> dict[str, Any]:
    """Everything on which a run's score depends, in the words of a methods section.

    >>> told = disclosure(Recipe.parse({"loss": {"name": "contrastive"}}))
    >>> told["pooling"], told["batch norm"], told["learning rates"]
    ('avg', 'trained', {'backbone': 0.002, 'head': 0.002})
    >>> told["hyperparameters"]
    {'margin': 0.5, 'metric': 'cosine', 'mining': 'all'}
    """
    network, optimizer, training = recipe.network, recipe.optimizer, recipe.training
    start = build_network(recipe)
    return {
        "terms": _terms(recipe),
        "loss": recipe.loss.name,
        "hyperparameters": hyperparameters(recipe),
        "memory": None if recipe.loss.memory is None else recipe.loss.memory.model_dump(),
        "network": network.name,
        "weights": network.weights or f"random, seed {recipe.seed}",
        "hash of the weights": weights_hash(start),
        "trained part": "all" if network.cached_trunk is None else f"what comes after {network.cached_trunk}",
        "embedding size": network.embedding_dim,
        "pooling": network.pooling,
        "layer norm": network.layer_norm,
        "head begins as": "principal components" if network.pca_head else "random",
        "batch norm": "frozen" if network.freeze_batch_norm else "trained",
        "crop in training": _training_view(recipe, start),
        "crop in evaluation": repr(evaluation_transform(start.preprocessing, recipe.data.transform)),
        "sampler": recipe.sampler.model_dump(mode="json"),
        "optimizer": optimizer.model_dump(exclude={"lr"}, exclude_none=True),
        "learning rates": _learning_rates(recipe),
        "schedule": recipe.schedule.model_dump(mode="json"),
        "epochs": training.epochs,
        "epochs of the head alone": training.head_only,
        "precision": training.precision,
        "seed": recipe.seed,
        "libraries": versions(),
    }


def _terms(recipe: Recipe) -> str:
    if recipe.terms == "published":
        return f"published: {published()[recipe.loss.name]}"
    return recipe.terms


def hyperparameters(recipe: Recipe) -> dict[str, Any]:
    """Every hyperparameter of the recipe's loss, said or by default."""
    maker = losses.get(recipe.loss.name)
    known = recipe.loss.keywords_of(recipe.loss.name)
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(maker).parameters.items()
        if name in known and parameter.default is not parameter.empty
    }
    return defaults | recipe.loss.keywords


def _training_view(recipe: Recipe, network: EmbeddingNetwork) -> str:
    if recipe.network.cached_trunk is None:
        return repr(training_transform(network.preprocessing, recipe.data.transform))
    return f"as in evaluation, {ActivationTransform(flip=0.5)!r}"


def _learning_rates(recipe: Recipe) -> dict[str, float]:
    lr = recipe.optimizer.lr
    rates = {"backbone": lr, "head": recipe.network.head_lr_factor * lr}
    loss = losses.build(
        recipe.loss.name, num_classes=2, embedding_dim=recipe.network.embedding_dim, **recipe.loss.keywords
    )
    if any(True for _ in loss.parameters()):
        rates["loss"] = recipe.loss.lr or recipe.loss.lr_factor * lr
    return rates


def weights_hash(network: EmbeddingNetwork) -> str:
    """SHA-256 of the backbone's tensors, whichever file they came from."""
    digest = hashlib.sha256()
    add_weights(digest, network.backbone)
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """Of everything that computes."""
    return {"nearkin": nearkin.__version__, "python": platform.python_version()} | {
        library: importlib.metadata.version(library) for library in _LIBRARIES
    }
