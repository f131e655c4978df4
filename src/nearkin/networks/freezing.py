"""Holding parts of a network still: batch norm for good, the backbone for a warm-up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def freeze_batch_norm(network: nn.Module) -> int:
    """Freeze statistics *and* affine parameters of every batch norm, for good; returns how many there are.

    It survives ``network.train()``, deep copies and :func:`train_head_only`, at whose end published codes
    tend to wake the affine parameters up again. Call it before the optimiser is made.

    Raises:
        ValueError: The network has no batch norm.
    """
    found = [module for module in network.modules() if isinstance(module, _BatchNorm)]
    if not found:
        raise ValueError("freeze_batch_norm: this network has no batch norm")
    for module in found:
        if not _is_frozen(module):
            module.register_forward_pre_hook(_stay_in_evaluation)
        module.eval()
        module.requires_grad_(False)
    return len(found)


def _stay_in_evaluation(module: nn.Module, inputs: Any) -> None:
    """Undo what ``train()`` on any module above did, at the last moment that counts."""
    module.eval()


def _is_frozen(module: nn.Module) -> bool:
    return _stay_in_evaluation in module._forward_pre_hooks.values()


def in_frozen_batch_norm(network: nn.Module) -> set[nn.Parameter]:
    """The parameters that :func:`freeze_batch_norm` froze."""
    frozen = (module for module in network.modules() if _is_frozen(module))
    return {parameter for module in frozen for parameter in module.parameters()}


def has_trained_batch_norm(network: nn.Module) -> bool:
    """Whether a sample's embedding depends, in training, on the samples it shares the batch with."""
    return any(isinstance(module, _BatchNorm) and not _is_frozen(module) for module in network.modules())


def train_head_only(network: nn.Module, only_head: bool = True) -> None:
    """Hold the backbone still while a new head warms up, or (``False``) let it go again.

    Args:
        network: An :class:`~nearkin.networks.EmbeddingNetwork`.
        only_head: Whether gradients stop above the backbone. Frozen batch norms stay frozen either way.
    """
    frozen = in_frozen_batch_norm(network)
    backbone = network.get_submodule("backbone")
    for parameter in backbone.parameters():
        parameter.requires_grad_(not only_head and parameter not in frozen)


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block; afterwards every submodule is in the mode it was in."""
    was_training = [child for child in module.modules() if child.training]
    module.eval()
    try:
        yield
    finally:
        for child in was_training:
            child.training = True
