"""Learning rates that fall from the last block of a network to its first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn


def by_block(groups: Sequence[dict[str, Any]], backbone: nn.Module, decay: float) -> list[dict[str, Any]]:
    """Parameter groups of which the backbone's is divided into one per block, each with its learning rate.

    The last block has the rate of the group, the one before it ``decay`` times that, and so on. A block is
    what a parameter's name begins with, up to the first number: ``blocks.5``, ``layer4``, ``conv_head``.

    Args:
        groups: Of a network; the one named ``backbone`` is divided.
        backbone: Its modules, in the order in which an input passes them.
        decay: Between 0 and 1; 1 leaves the groups as they are.

    >>> two = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    >>> made = by_block([{"name": "backbone", "params": list(two.parameters()), "lr": 1.0}], two, 0.5)
    >>> [(group["name"], group["lr"]) for group in made]
    [('backbone.0', 0.5), ('backbone.1', 1.0)]
    """
    if decay == 1.0:
        return list(groups)
    block_of = {parameter: _block(name) for name, parameter in backbone.named_parameters()}
    made: list[dict[str, Any]] = []
    for group in groups:
        if group["name"] != "backbone":
            made.append(group)
            continue
        blocks: dict[str, list[nn.Parameter]] = {}
        for parameter in group["params"]:
            blocks.setdefault(block_of[parameter], []).append(parameter)
        for place, (name, params) in enumerate(blocks.items()):
            rate = group["lr"] * decay ** (len(blocks) - 1 - place)
            made.append({**group, "name": f"backbone.{name}", "params": params, "lr": rate})
    return made


def _block(name: str) -> str:
    parts = name.split(".")
    if len(parts) > 2 and parts[1].isdigit() and not any(letter.isdigit() for letter in parts[0]):
        return ".".join(parts[:2])
    return parts[0]
