"""Tensors and plain values in one file with a digest: whole, or known to be damaged."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from nearkin.atomic import atomic_path


class DamagedFileError(ValueError):
    """A file of tensors whose contents are not what was written."""


class TensorFile(NamedTuple):
    """What such a file holds.

    Attributes:
        tensors: The tensors by name.
        state: Plain values.
    """

    tensors: dict[str, Tensor]
    state: dict[str, Any]


def write_tensors(file: Path, tensors: dict[str, Tensor], state: dict[str, Any] | None = None) -> None:
    """Write tensors and plain values atomically."""
    on_cpu = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    text = json.dumps(state or {})
    with atomic_path(file) as temporary:
        save_file(on_cpu, temporary, metadata={"state": text, "digest": _digest(on_cpu, text)})


def read_tensors(file: Path) -> TensorFile:
    """Read what :func:`write_tensors` wrote.

    Raises:
        DamagedFileError: The file cannot be read, or its contents do not match its digest.
    """
    try:
        with safe_open(file, framework="pt") as stored:
            metadata = stored.metadata()
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        if _digest(tensors, metadata["state"]) != metadata["digest"]:
            raise DamagedFileError("its contents do not match its digest")
        return TensorFile(tensors, json.loads(metadata["state"]))
    except (SafetensorError, KeyError, TypeError, OSError) as error:
        raise DamagedFileError(str(error)) from None


def _digest(tensors: dict[str, Tensor], state: str) -> str:
    digest = hashlib.sha256(state.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(name.encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
