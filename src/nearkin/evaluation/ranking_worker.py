"""A process that ranks a share of the queries; it is told a folder, the share's number and the metric."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearkin.evaluation.inputs import Metric
from nearkin.evaluation.processes import GIVEN, ranked
from nearkin.workers import die_with_parent


def main(name: str, number: str, metric: Metric) -> None:
    """Rank a share of the queries, and leave what was found in the folder."""
    die_with_parent()
    folder = Path(name)

    def mapped(key: str) -> Tensor | None:
        file = folder / f"{key}.npy"
        # Copy on write: torch wants arrays that it could write to, and nobody does.
        return torch.from_numpy(np.load(file, mmap_mode="c")) if file.exists() else None

    given = {key: mapped(key) for key in GIVEN}
    share = torch.from_numpy(np.load(folder / f"share-{number}.npy"))
    try:
        found = ranked(given, share, metric)
    except ValueError as error:
        (folder / f"error-{number}.txt").write_text(str(error), encoding="utf-8")
        return
    columns: Any = {} if found is None else {key: values.numpy() for key, values in found.items()}
    np.savez(folder / f"found-{number}.npz", **columns)


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]
