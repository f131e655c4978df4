"""Inputs of a batch, which may be nested.

Tuples and mappings are parts of every sample (token ids and a mask); a tensor or a list is one entry per
sample along its first axis. A list of texts is therefore a batch of texts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor


def move(inputs: Any, device: torch.device | str, *, non_blocking: bool = False) -> Any:
    """The inputs with every tensor on ``device``; all else as it is.

    >>> move({"ids": torch.zeros(2), "text": ["a", "b"]}, "cpu")
    {'ids': tensor([0., 0.]), 'text': ['a', 'b']}
    """
    return _on_leaves(
        inputs,
        lambda leaf: leaf.to(device, non_blocking=non_blocking) if isinstance(leaf, Tensor) else leaf,
        lists_are_leaves=False,
    )


def len_of(inputs: Any) -> int:
    """Number of samples in a batch's inputs.

    >>> len_of((torch.zeros(3, 5), ["a", "b", "c"]))
    3
    """
    lengths: set[int] = set()
    _on_leaves(inputs, lambda leaf: lengths.add(_length(leaf)))
    if len(lengths) != 1:
        counts = " and ".join(map(str, sorted(lengths))) or "no"
        raise ValueError(f"the parts of a batch's inputs have {counts} samples: all need the same number")
    return lengths.pop()


def split(inputs: Any, chunk: int) -> list[Any]:
    """The inputs in parts of ``chunk`` samples (the last may be smaller), each nested as the whole is.

    >>> split({"text": ["a", "b", "c"]}, 2)
    [{'text': ['a', 'b']}, {'text': ['c']}]
    """
    if chunk < 1:
        raise ValueError(f"chunk={chunk} must be at least 1")
    return [
        _on_leaves(inputs, lambda leaf, start=start: leaf[start : start + chunk])
        for start in range(0, len_of(inputs), chunk)
    ]


def _length(leaf: Any) -> int:
    if isinstance(leaf, Tensor) and leaf.ndim == 0:
        raise TypeError("a tensor without axes is not one entry per sample")
    if isinstance(leaf, str) or not hasattr(leaf, "__len__"):
        raise TypeError(f"a {type(leaf).__name__} is not one entry per sample")
    return len(leaf)


def _on_leaves(inputs: Any, function: Callable[..., Any], *, lists_are_leaves: bool = True) -> Any:
    """The same nesting, with ``function`` applied to everything that is neither a tuple nor a mapping."""

    def go(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: go(part) for key, part in value.items()}
        if isinstance(value, tuple):
            parts = [go(part) for part in value]
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        if isinstance(value, list) and not lists_are_leaves:
            return [go(part) for part in value]
        return function(value)

    return go(inputs)
