"""The optimiser and the learning rate of a recipe."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from nearkin.losses.base import Loss
from nearkin.networks import EmbeddingNetwork
from nearkin.recipe.recipe import Recipe, ScheduleRecipe

_OPTIMIZERS: dict[str, tuple[type[Optimizer], dict[str, Any]]] = {
    "adamw": (torch.optim.AdamW, {}),
    "adam": (torch.optim.Adam, {}),
    "sgd": (torch.optim.SGD, {"momentum": 0.9}),
    "rmsprop": (torch.optim.RMSprop, {}),
}


def build_optimizer(recipe: Recipe, network: EmbeddingNetwork, loss: Loss) -> Optimizer:
    """The recipe's optimiser over every learnable parameter of the network and the loss."""
    settings = recipe.optimizer
    loss_lr = recipe.loss.lr or recipe.loss.lr_factor * settings.lr
    head_lr = recipe.network.head_lr_factor * settings.lr
    groups = [*network.param_groups(settings.lr, head_lr), *loss.param_groups(loss_lr)]
    kind, keywords = _OPTIMIZERS[settings.name]
    if settings.eps is not None:
        keywords = keywords | {"eps": settings.eps}
    optimizer = kind(groups, lr=settings.lr, weight_decay=settings.weight_decay, **keywords)  # type: ignore[call-arg]
    refuse_forgotten_parameters(optimizer, network=network, loss=loss)
    return optimizer


def refuse_forgotten_parameters(optimizer: Optimizer, **modules: nn.Module) -> None:
    """Refuse to train while a learnable parameter is not in the optimiser: it would never move."""
    known = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for owner, module in modules.items():
        for name, parameter in module.named_parameters():
            if parameter.requires_grad and id(parameter) not in known:
                raise ValueError(f"{owner} parameter {name!r} is not in the optimiser: it would never move")


def learning_rate_factor(schedule: ScheduleRecipe, epochs: int, epoch: float) -> float:
    """What the learning rates are multiplied by at a moment of the training, counted in epochs.

    >>> learning_rate_factor(ScheduleRecipe(name="cosine", warmup=2), epochs=12, epoch=1)
    0.5
    >>> learning_rate_factor(ScheduleRecipe(name="step", warmup=0, every=5, factor=0.1), 100, 10.0)
    0.010000000000000002
    >>> learning_rate_factor(ScheduleRecipe(name="multi_step", warmup=0, milestones=(2, 4)), 6, 2.0)
    0.1
    """
    if epoch < schedule.warmup:
        return epoch / schedule.warmup
    if schedule.name == "cosine":
        share = (epoch - schedule.warmup) / max(epochs - schedule.warmup, 1e-9)
        return 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))
    if schedule.name == "step":
        return float(schedule.factor ** (epoch // schedule.every))
    if schedule.name == "multi_step":
        return float(schedule.factor ** sum(epoch >= milestone for milestone in schedule.milestones))
    return 1.0


def build_scheduler(recipe: Recipe, optimizer: Optimizer, steps: int) -> LambdaLR:
    """A scheduler to be stepped with the optimiser, which makes so many steps per epoch.

    The first step of a warm-up moves a little, not by 0.
    """

    def factor(step: int) -> float:
        moment = max(step, 1) if recipe.schedule.warmup else step
        return learning_rate_factor(recipe.schedule, recipe.training.epochs, moment / steps)

    return LambdaLR(optimizer, factor)
