"""Eight bits for weights and activations, by ranges that samples of the training show."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from nearkin.extras import require
from nearkin.model.exporting.formats import quiet

# What most of the time goes into, and what cuts ranges off: a convolution is quantised behind its activation.
_QUANTIZED = ("Conv", "MatMul", "Gemm", "Add", "Mul", "Clip", "Relu", "AveragePool", "MaxPool")


NOTE = (
    "weights int8 per channel, activations uint8; on x86 processors without VNNI sums may saturate: compare "
    "there before use"
)


def quantize(file: Path, output: Path, name: str, batches: Iterator[Tensor]) -> Path:
    """Write the int8 file of an ONNX file: static ranges, one scale per channel of a weight.

    Args:
        file: In float32.
        output: Where the int8 one goes.
        name: Of the input.
        batches: Inputs of training samples, whose activations give the ranges.
    """
    quantization: Any = require("onnxruntime.quantization", extra="export", purpose="quantising to int8")
    require("onnxruntime.quantization.shape_inference", extra="export", purpose="quantising to int8")
    prepared = output.with_name("prepared.onnx")
    reader = _Reader(name, batches)
    before = logging.root.level
    logging.root.setLevel(logging.ERROR)  # onnxruntime's tools advise by the root logger
    try:
        with quiet():
            quantization.shape_inference.quant_pre_process(str(file), str(prepared), skip_symbolic_shape=True)
            quantization.quantize_static(
                str(prepared),
                str(output),
                reader,
                quant_format=quantization.QuantFormat.QDQ,
                op_types_to_quantize=list(_QUANTIZED),
                per_channel=True,
                activation_type=quantization.QuantType.QUInt8,
                weight_type=quantization.QuantType.QInt8,
            )
    finally:
        logging.root.setLevel(before)
        prepared.unlink(missing_ok=True)
    return output


class _Reader:
    """What onnxruntime asks for batches to calibrate on."""

    def __init__(self, name: str, batches: Iterator[Tensor]) -> None:
        self._name, self._batches = name, batches

    def get_next(self) -> dict[str, Any] | None:
        """The next batch, or nothing."""
        batch = next(self._batches, None)
        return None if batch is None else {self._name: batch.numpy()}
