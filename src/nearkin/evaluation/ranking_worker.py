"""A process that ranks a share of the queries, or counts in a share of the tiles; a folder holds what for."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearkin.evaluation.inputs import Metric
from nearkin.evaluation.processes import Columns, counted, ranked
from nearkin.workers import die_with_parent


def main(name: str, number: str, count: str, metric: Metric) -> None:
    """Do a share of the work, and leave what was found in the folder."""
    die_with_parent()
    folder = Path(name)
    given = {file.stem: _mapped(file) for file in folder.glob("*.npy")}
    share = given.get(f"share-{number}")
    try:
        found = (
            counted(given, int(number), int(count), metric) if share is None else ranked(given, share, metric)
        )
    except ValueError as error:
        (folder / f"error-{number}.txt").write_text(str(error), encoding="utf-8")
        return
    _leave(folder / f"found-{number}.npz", found)


def _mapped(file: Path) -> Tensor:
    # Copy on write: torch wants arrays that it could write to, and nobody does.
    return torch.from_numpy(np.load(file, mmap_mode="c"))


def _leave(file: Path, found: Columns | None) -> None:
    columns: Any = {} if found is None else {key: values.numpy() for key, values in found.items()}
    np.savez(file, **columns)


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]
