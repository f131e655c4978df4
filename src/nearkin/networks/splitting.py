"""Cutting a network in two after a named stage, whatever library wrote it.

The first half stops as soon as the stage has run; the second half has identities in place of all that
ran up to the stage. Together they are compared with the whole before they are returned.
"""

from __future__ import annotations

import copy
import itertools
from typing import Any

import torch
from torch import Tensor, nn

from nearkin.networks.freezing import evaluation_mode
from nearkin.registry import nearest_name


class Trunk(nn.Module):
    """The first part of a module: input to the activations after a stage, always in evaluation mode.

    Args:
        module: The part up to the stage, made by :func:`split_module`.
        stage: Name of the submodule whose output is wanted.
    """

    def __init__(self, module: nn.Module, stage: str) -> None:
        super().__init__()
        self.module = module
        self.stage = stage

    def forward(self, inputs: Tensor) -> Tensor:
        """Inputs ``(B, C, H, W)`` to the activations after the stage, without gradients."""
        handle = self.module.get_submodule(self.stage).register_forward_hook(_leave)
        try:
            _evaluate(self.module, inputs)
        except _Reached as reached:
            return reached.output
        finally:
            handle.remove()
        raise ValueError(f"stage {self.stage!r} does not run in a forward pass")


class PooledTrunk(nn.Module):
    """Backbone and pooling of a network: inputs to features ``(B, F)``, always in evaluation mode."""

    stage = "pooling"

    def __init__(self, backbone: nn.Module, pooling: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.pooling = pooling

    def forward(self, inputs: Tensor) -> Tensor:
        """Inputs ``(B, C, H, W)`` to features ``(B, F)``, without gradients."""
        features = _evaluate(self.backbone, inputs)
        return features if features.ndim == 2 else _evaluate(self.pooling, features)


class _Reached(Exception):  # noqa: N818  (no error: the way out of a forward pass)
    def __init__(self, output: Tensor) -> None:
        self.output = output


def _leave(module: nn.Module, inputs: Any, output: Tensor) -> None:
    raise _Reached(output)


def stage_names(module: nn.Module, example: tuple[int, ...]) -> tuple[str, ...]:
    """Children of ``module`` that run on such an input, and the children of its sequences, in order."""
    candidates: dict[str, nn.Module] = {}
    for name, child in module.named_children():
        if isinstance(child, nn.Sequential):
            candidates |= {f"{name}.{inner}": grandchild for inner, grandchild in child.named_children()}
        candidates[name] = child
    times = _times_of_calls(module, candidates, example)
    return tuple(sorted(times, key=lambda name: times[name][1]))


def split_module(module: nn.Module, stage: str, example: tuple[int, ...]) -> tuple[Trunk, nn.Module]:
    """The part up to and with ``stage``, and the part after it; both share the parameters of ``module``.

    Args:
        module: Any module that runs its children one after the other, at least at this place.
        stage: Name of a submodule, such as ``layer3`` or ``blocks.4``.
        example: Shape of an input.

    Raises:
        ValueError: There is no such stage, or what comes after it needs more than its output.
    """
    if not stage or stage not in dict(module.named_modules()):
        raise ValueError(f"no stage {stage!r}: {nearest_name(stage, list(stage_names(module, example)))}")
    before, after = _shallow_copy(module), _shallow_copy(module)
    _prune(before, after, module, stage, example)
    trunk = Trunk(before, stage)
    _check(module, trunk, after, example)
    return trunk, after


def _prune(
    before: nn.Module, after: nn.Module, module: nn.Module, stage: str, example: tuple[int, ...]
) -> None:
    """Put identities into two copies of ``module`` for what the other one does, level by level."""
    path = stage.split(".")
    for depth, name in enumerate(path):
        children = dict(module.get_submodule(".".join(path[:depth])).named_children())
        times = _times_of_calls(module, children, example)
        if name not in times:
            raise ValueError(f"stage {stage!r} does not run in a forward pass")
        for child in children:
            ran_before = child in times and times[child][1] < times[name][0]
            (after if ran_before else before)._modules[child] = nn.Identity()
        inner = children[name]
        is_stage = depth == len(path) - 1
        before._modules[name] = inner if is_stage else _shallow_copy(inner)
        after._modules[name] = nn.Identity() if is_stage else _shallow_copy(inner)
        before, after = before.get_submodule(name), after.get_submodule(name)


def _shallow_copy(module: nn.Module) -> nn.Module:
    copied = copy.copy(module)
    copied._modules = dict(module._modules)
    return copied


def _times_of_calls(
    module: nn.Module, named: dict[str, nn.Module], example: tuple[int, ...]
) -> dict[str, tuple[int, int]]:
    """When each of the named modules that run was first entered and last left, in ticks of a forward pass."""
    times: dict[str, tuple[int, int]] = {}
    ticks = itertools.count()

    def note(name: str) -> None:
        now = next(ticks)
        first, _ = times.get(name, (now, now))
        times[name] = (first, now)

    handles = []
    for name, child in named.items():
        handles.append(child.register_forward_pre_hook(lambda *_, name=name: note(name)))
        handles.append(child.register_forward_hook(lambda *_, name=name: note(name)))
    try:
        _evaluate(module, torch.zeros(example, device=device_of(module)))
    finally:
        for handle in handles:
            handle.remove()
    return times


def _check(module: nn.Module, trunk: Trunk, after: nn.Module, example: tuple[int, ...]) -> None:
    inputs = torch.randn(example, generator=torch.Generator().manual_seed(0)).to(device_of(module))
    expected = _evaluate(module, inputs)
    try:
        result = _evaluate(after, trunk(inputs))
        same = result.shape == expected.shape and torch.allclose(result, expected, rtol=1e-4, atol=1e-5)
    except (RuntimeError, AttributeError, TypeError, ValueError):
        same = False
    if not same:
        raise ValueError(
            f"cannot split after {trunk.stage!r}: what follows it needs more than its output. "
            "Choose a stage that everything passes through, such as a whole block"
        )


@torch.no_grad()
def _evaluate(module: nn.Module, inputs: Tensor) -> Tensor:
    with evaluation_mode(module):
        output: Tensor = module(inputs)
    return output


def device_of(module: nn.Module) -> torch.device:
    """Where a module lives."""
    return next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
