"""ONNX: a graph that onnxruntime computes in Python, JavaScript, C++, C#, Java and others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearkin.extras import require
from nearkin.model.exporting.errors import ExportError
from nearkin.model.exporting.formats import (
    FLOAT32,
    INT8,
    OUTPUT,
    Format,
    Run,
    exported_program,
    first_line,
    named,
    quiet,
    register,
)
from nearkin.model.exporting.graph import GraphInput, UnitEmbeddings
from nearkin.model.exporting.quantization import quantize

_PURPOSE = "exporting to ONNX"


@register("onnx")
class OnnxFormat(Format):
    """One ``.onnx`` file, by ``torch.export``, for batches of any size."""

    suffix = ".onnx"
    packages = ("torch", "onnx", "onnxscript", "onnxruntime")
    quantizes = True

    def require(self) -> None:
        """Say which package is missing."""
        for package in ("onnx", "onnxscript", "onnxruntime"):
            require(package, extra="export", purpose=_PURPOSE)

    def write(
        self,
        graph: UnitEmbeddings,
        taken: GraphInput,
        folder: Path,
        *,
        opset: int,
        calibration: Callable[[], Iterator[Tensor]] | None = None,
    ) -> dict[str, Path]:
        """Write ``model.onnx`` and, if there is something to calibrate it on, ``model.int8.onnx``."""
        made = {FLOAT32: write_graph(graph, taken, folder / "model.onnx", opset)}
        if calibration is not None:
            made[INT8] = quantize(made[FLOAT32], folder / "model.int8.onnx", taken.name, calibration())
        return made

    def open(self, file: Path) -> Run:
        """The function of a file, by onnxruntime on the processor."""
        runtime: Any = require("onnxruntime", extra="export", purpose=_PURPOSE)
        options = runtime.SessionOptions()
        options.log_severity_level = 3  # errors
        options.intra_op_num_threads = torch.get_num_threads()
        session = runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        (taken,) = (one.name for one in session.get_inputs())

        def run(inputs: NDArray[Any]) -> NDArray[np.float32]:
            (found,) = session.run([OUTPUT], {taken: inputs})
            rows: NDArray[np.float32] = found
            return rows

        return run


def write_graph(graph: UnitEmbeddings, taken: GraphInput, file: Path, opset: int) -> Path:
    """Write the graph of a module as one ONNX file.

    Raises:
        ExportError: It has no such graph.
    """
    program = exported_program(graph, taken)
    try:
        with quiet(), torch.no_grad():
            torch.onnx.export(
                program,
                (),
                str(file),
                dynamo=True,
                input_names=[taken.name],
                output_names=[OUTPUT],
                opset_version=opset,
                external_data=False,
                verbose=False,
            )
    except Exception as error:  # whatever ONNX has no operator for
        raise ExportError(
            f"the network {named(graph)} cannot be written as ONNX of opset {opset}: {first_line(error)}. "
            "Try --format torchscript, or --format folder"
        ) from error
    return file
