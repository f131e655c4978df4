"""A model for other runtimes: ONNX, OpenVINO, TorchScript; compared with the model before it is written."""

from nearkin.model.exporting import onnx_file, openvino_file, torchscript_file  # noqa: F401  (register)
from nearkin.model.exporting.comparison import Comparison, Recall, Tolerance
from nearkin.model.exporting.errors import ExportError, TooDifferentError
from nearkin.model.exporting.exporting import Export, default_name, export, names

__all__ = [
    "Comparison",
    "Export",
    "ExportError",
    "Recall",
    "Tolerance",
    "TooDifferentError",
    "default_name",
    "export",
    "names",
]
