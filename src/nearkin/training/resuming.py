"""What a checkpoint holds, as named tensors and plain values, and how it is taken back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from nearkin.data import SampleSet
from nearkin.training.run import RunError


def flattened(groups: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Tensors of several owners under one name each, ``owner.name``."""
    return {f"{owner}.{name}": tensor for owner, named in groups.items() for name, tensor in named.items()}


def grouped(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """The inverse of :func:`flattened`; who has no tensors has an empty group."""
    groups: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for name, tensor in tensors.items():
        owner, _, rest = name.partition(".")
        groups[owner][rest] = tensor
    return groups


def optimizer_state(optimizer: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimiser's moments by ``parameter.name``, and everything about it that is not a tensor."""
    whole = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, dict[str, Any]] = {}
    for index, state in whole["state"].items():
        for key, value in state.items():
            if isinstance(value, Tensor):
                tensors[f"{index}.{key}"] = value
            else:
                numbers.setdefault(str(index), {})[key] = value
    return tensors, {"groups": whole["param_groups"], "numbers": numbers}


def load_optimizer_state(optimizer: Any, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> None:
    """The inverse of :func:`optimizer_state`."""
    state: dict[int, dict[str, Any]] = {
        int(index): dict(values) for index, values in plain["numbers"].items()
    }
    for name, tensor in tensors.items():
        index, _, key = name.partition(".")
        state.setdefault(int(index), {})[key] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": plain["groups"]})


def fingerprint(samples: SampleSet) -> dict[str, Any]:
    """What tells training samples from others."""
    return {"samples": len(samples), "classes": samples.num_classes, "contents": samples.fingerprint()}


def refuse_other_samples(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to go on with samples whose :func:`fingerprint` is not that of the beginning."""
    if now == before:
        return
    counts = {key: (before[key], now[key]) for key in ("samples", "classes")}
    if all(then == later for then, later in counts.values()):
        change = "as many samples, but a file or a label is not what it was"
    else:
        change = (
            f"{before['samples']:,} samples of {before['classes']:,} classes then, "
            f"{now['samples']:,} of {now['classes']:,} now"
        )
    raise RunError(
        f"the data has changed since this run began: {change}. Bring the old data back, or choose another "
        "output directory"
    )
