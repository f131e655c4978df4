"""The kinds of files a model is exported to: one file each, entered here by its name."""

from __future__ import annotations

import contextlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearkin.model.exporting.errors import ExportError
from nearkin.model.exporting.graph import GraphInput, UnitEmbeddings
from nearkin.registry import Registry

Run = Callable[[NDArray[Any]], NDArray[np.float32]]
"""Inputs ``(B, …)`` to unit embeddings ``(B, D)``, by an exported file."""

OUTPUT = "embeddings"
FLOAT32, INT8 = "float32", "int8"


class Format(ABC):
    """One kind of file.

    Attributes:
        suffix: How its file's name ends.
        packages: What computes with it, for the manifest's versions.
        quantizes: Whether there is an int8 file.
    """

    suffix: ClassVar[str]
    packages: ClassVar[tuple[str, ...]] = ("torch",)
    quantizes: ClassVar[bool] = False

    @abstractmethod
    def require(self) -> None:
        """Say which package is missing, before anything takes time."""

    @abstractmethod
    def write(
        self,
        graph: UnitEmbeddings,
        taken: GraphInput,
        folder: Path,
        *,
        opset: int,
        calibration: Callable[[], Iterator[Tensor]] | None = None,
    ) -> dict[str, Path]:
        """Write the file into an empty folder, and an int8 one if there are batches to calibrate it on.

        Args:
            graph: Inputs to unit embeddings.
            taken: What its inputs are.
            folder: Everything that is written lies in it.
            opset: Which version of ONNX's operators.
            calibration: Iterates over batches of inputs, from the beginning at every call.

        Returns:
            Precision → file.
        """

    @abstractmethod
    def open(self, file: Path) -> Run:
        """The function that a file computes."""

    def files(self, file: Path) -> list[Path]:
        """Everything that belongs to a file, itself last."""
        return [file]


registry: Registry[Format] = Registry("format")
register = registry.register
names = registry.names


def exported_program(graph: UnitEmbeddings, taken: GraphInput) -> torch.export.ExportedProgram:
    """The graph of a module by ``torch.export``, for batches of any size.

    Raises:
        ExportError: The network does something that cannot be written as a graph.
    """
    batch = torch.export.Dim("batch", min=1)
    try:
        with quiet(), torch.no_grad():
            return torch.export.export(graph, (taken.example(),), dynamic_shapes=({0: batch},))
    except Exception as error:  # whatever a network does that torch.export cannot follow
        raise ExportError(
            f"the network {named(graph)} cannot be written as a graph: {first_line(error)}. Choose "
            "--format folder, which nearkin.load reads"
        ) from error


def named(graph: UnitEmbeddings) -> str:
    """The networks of a graph, by name."""
    specs = [getattr(one, "spec", None) or {} for one in graph.networks]
    return ", ".join(
        str(spec.get("name") or spec.get("object") or type(network.backbone).__name__)
        for spec, network in zip(specs, graph.networks, strict=True)
    )


def first_line(error: Exception) -> str:
    """What an error says first, after its type."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300] if lines else 'no message'}"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Exporters warn about their own insides, which nobody who exports a model can change."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
