"""Optimisers by name: the usual four, and any of torch's (``torch:RAdam``) and timm's (``timm:lamb``).

``adamw``, ``adam`` and ``sgd`` also take the sparse gradients of sampled classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from nearkin.registry import Registry, nearest_name
from nearkin.training import lazy_optimizers

Groups = list[dict[str, Any]]

registry: Registry[Optimizer] = Registry("optimizer")
register = registry.register
names = registry.names

registry.register("adamw")(lazy_optimizers.AdamW)
registry.register("adam")(lazy_optimizers.Adam)
registry.register("rmsprop")(torch.optim.RMSprop)


@register("sgd")
def sgd(
    params: Groups,
    *,
    lr: float = 1e-3,
    momentum: float = 0.9,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
) -> Optimizer:
    """Stochastic gradient descent with momentum."""
    return lazy_optimizers.SGD(
        params, lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay, nesterov=nesterov
    )


def find(name: str) -> Callable[..., Optimizer]:
    """The class or function behind a name, which may be that of torch or timm.

    >>> find("torch:RAdam").__name__
    'RAdam'
    """
    library, colon, rest = name.partition(":")
    if colon and library == "torch":
        known = {
            n: k for n, k in vars(torch.optim).items() if isinstance(k, type) and issubclass(k, Optimizer)
        }
        if rest not in known:
            raise ValueError(f"torch.optim has no optimizer {rest!r}: {nearest_name(rest, list(known))}")
        found: Callable[..., Optimizer] = known[rest]
        return found
    if colon and library == "timm":
        from nearkin.networks.timm_models import import_timm  # noqa: PLC0415  (seconds long)

        import_timm()
        from timm import optim as timm_optim  # noqa: PLC0415

        timm: Any = timm_optim
        if rest not in timm.list_optimizers():
            raise ValueError(f"timm has no optimizer {rest!r}: {nearest_name(rest, timm.list_optimizers())}")
        timm_class: Callable[..., Optimizer] = timm.get_optimizer_class(rest, bind_defaults=True)
        return timm_class
    return registry.get(name)


def refuse_forgotten_parameters(optimizer: Optimizer, **modules: nn.Module) -> None:
    """Refuse to train while a learnable parameter is not in the optimiser: it would never move."""
    known = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for owner, module in modules.items():
        for name, parameter in module.named_parameters():
            if parameter.requires_grad and id(parameter) not in known:
                raise ValueError(f"{owner} parameter {name!r} is not in the optimiser: it would never move")


def refuse_sampled_classes(optimizer: Optimizer, loss: nn.Module) -> None:
    """Refuse an optimiser that cannot take the sparse gradients of sampled classes."""
    sampled = any(getattr(part, "sample", 1) != 1 for part in loss.modules())
    takes = isinstance(optimizer, lazy_optimizers.LAZY | torch.optim.SparseAdam | torch.optim.Adagrad)
    if sampled and not takes:
        raise ValueError(
            f"loss.sample needs an optimiser that takes sparse gradients, not {type(optimizer).__name__}: "
            "use optimizer.name=adamw, adam or sgd"
        )
