"""OpenVINO: Intel's runtime, which reads an ``.xml`` file with its weights in a ``.bin`` beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from nearkin.extras import require
from nearkin.model.exporting.errors import ExportError
from nearkin.model.exporting.formats import Format, Run, first_line, quiet, register
from nearkin.model.exporting.graph import GraphInput, UnitEmbeddings
from nearkin.model.exporting.onnx_file import OnnxFormat

_PURPOSE = "exporting to OpenVINO"


@register("openvino")
class OpenVinoFormat(Format):
    """An ``.xml`` and a ``.bin`` file, made from the ONNX file in float32 or int8."""

    suffix = ".xml"
    packages = ("torch", "onnx", "onnxscript", "openvino")
    quantizes = True

    def require(self) -> None:
        """Say which package is missing."""
        for package in ("onnx", "onnxscript", "openvino"):
            require(package, extra="openvino", purpose=_PURPOSE)

    def write(
        self,
        graph: UnitEmbeddings,
        taken: GraphInput,
        folder: Path,
        *,
        opset: int,
        calibration: Callable[[], Iterator[Tensor]] | None = None,
    ) -> dict[str, Path]:
        """Write the ONNX files and convert each."""
        openvino: Any = require("openvino", extra="openvino", purpose=_PURPOSE)
        made = OnnxFormat().write(graph, taken, folder, opset=opset, calibration=calibration)
        try:
            with quiet():
                for file in made.values():
                    converted = openvino.convert_model(str(file))
                    openvino.save_model(converted, str(file.with_suffix(".xml")), compress_to_fp16=False)
        except Exception as error:  # whatever OpenVINO cannot convert
            raise ExportError(
                f"OpenVINO cannot convert this network: {first_line(error)}. Choose --format onnx, which "
                "OpenVINO may read as it is"
            ) from error
        return {precision: file.with_suffix(".xml") for precision, file in made.items()}

    def open(self, file: Path) -> Run:
        """The function of a file, on the processor, in float32 where the file is."""
        openvino: Any = require("openvino", extra="openvino", purpose=_PURPOSE)
        compiled = openvino.Core().compile_model(str(file), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

        def run(inputs: NDArray[Any]) -> NDArray[np.float32]:
            rows: NDArray[np.float32] = compiled(inputs)[0].copy()
            return rows

        return run

    def files(self, file: Path) -> list[Path]:
        """The weights, then the graph."""
        return [file.with_suffix(".bin"), file]
