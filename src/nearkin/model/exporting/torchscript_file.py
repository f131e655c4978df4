"""TorchScript: a traced graph for libtorch, and for torch without this library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearkin.model.exporting.errors import ExportError
from nearkin.model.exporting.formats import FLOAT32, Format, Run, first_line, named, quiet, register
from nearkin.model.exporting.graph import GraphInput, UnitEmbeddings


@register("torchscript")
class TorchScriptFormat(Format):
    """One ``.pt`` file for ``torch.jit.load`` and libtorch."""

    suffix = ".pt"

    def require(self) -> None:
        """Nothing is missing where torch is."""

    def write(
        self,
        graph: UnitEmbeddings,
        taken: GraphInput,
        folder: Path,
        *,
        opset: int,
        calibration: Callable[[], Iterator[Tensor]] | None = None,
    ) -> dict[str, Path]:
        """Write ``model.pt``."""
        file = folder / "model.pt"
        try:
            with quiet(), torch.no_grad():
                traced: Any = torch.jit.trace(graph, (taken.example(),), check_trace=False)
                torch.jit.save(torch.jit.freeze(traced), str(file))
        except Exception as error:  # whatever a network does that cannot be traced
            raise ExportError(
                f"the network {named(graph)} cannot be traced: {first_line(error)}. Choose --format folder, "
                "which nearkin.load reads"
            ) from error
        return {FLOAT32: file}

    def open(self, file: Path) -> Run:
        """The function of a file, by torch."""
        with quiet():
            loaded: Any = torch.jit.load(str(file))

        def run(inputs: NDArray[Any]) -> NDArray[np.float32]:
            with quiet(), torch.inference_mode():
                rows: NDArray[np.float32] = loaded(torch.from_numpy(inputs)).numpy()
            return rows

        return run
