"""Checkpoints of tensors too large for one file: cut into shards, each a file with a digest of its own.

The shards are written first and the file that names them last. A process that is killed in between leaves
shards that nothing names, which are removed when the run goes on. No more than a shard is ever copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nearkin.tensor_files import DamagedFileError, TensorFile, read_tensors, write_tensors

SHARD_BYTES = 1 << 26
"""Tensors that are larger are cut."""
_PREFIX = "shard-"
_KEY = "shards"


def write_sharded(file: Path, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    """Write tensors and plain values: small tensors into ``file``, large ones into shards beside it."""
    small: dict[str, Tensor] = {}
    table: dict[str, dict[str, Any]] = {}
    written = 0
    for name, tensor in tensors.items():
        if tensor.dim() == 0 or tensor.numel() * tensor.element_size() <= SHARD_BYTES:
            small[name] = tensor
            continue
        rows = max(1, SHARD_BYTES // (tensor[0].numel() * tensor.element_size()))
        files = []
        for part in tensor.split(rows):
            shard = file.with_name(f"{_PREFIX}{file.stem}-{written:05d}{file.suffix}")
            written += 1
            write_tensors(shard, {"part": part})
            files.append(shard.name)
        kind = str(tensor.dtype).removeprefix("torch.")
        table[name] = {"shape": list(tensor.shape), "dtype": kind, "files": files}
    write_tensors(file, small, {**state, _KEY: table} if table else state)


def read_sharded(file: Path) -> TensorFile:
    """Read what :func:`write_sharded` wrote.

    Raises:
        DamagedFileError: The file or one of its shards is not what was written.
    """
    tensors, state = read_tensors(file)
    for name, entry in state.pop(_KEY, {}).items():
        whole = torch.empty(entry["shape"], dtype=getattr(torch, entry["dtype"]))
        start = 0
        for shard in entry["files"]:
            part = read_tensors(file.with_name(shard)).tensors["part"]
            whole[start : start + len(part)] = part
            start += len(part)
        if start != len(whole):
            raise DamagedFileError(f"its shards hold {start} of {len(whole)} rows of {name}")
        tensors[name] = whole
    return TensorFile(tensors, state)


def shards_of(file: Path) -> list[Path]:
    """The shards that belong to a file, whether it is there or not."""
    return sorted(file.parent.glob(f"{_PREFIX}{file.stem}-*{file.suffix}"))


def remove_sharded(file: Path) -> None:
    """Remove a file and its shards; the file first, so that none is ever without its shards."""
    file.unlink(missing_ok=True)
    for shard in shards_of(file):
        shard.unlink(missing_ok=True)


def orphans(folder: Path, files: list[Path]) -> Iterator[Path]:
    """The shards in a folder that belong to none of these files."""
    known = {shard for file in files for shard in shards_of(file)}
    return (shard for shard in folder.glob(f"{_PREFIX}*") if shard not in known)
