"""Let torchvision be imported beside a CPU-only torch.

PyPI's torchvision is compiled against CUDA torch. Beside a CPU-only torch its compiled operators do not
load, and ``import torchvision`` dies with "operator torchvision::nms does not exist", because it attaches
shape functions to two operators nobody declared. Declaring their schemas first is enough for everything we
use (transforms, models, and so timm); calling them still fails, as it must.

Import this module before torchvision or timm. It does nothing where torchvision loads by itself.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
from pathlib import Path

import torch

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_declared: list[torch.library.Library] = []  # a Library takes its operators with it when it is collected


def _compiled_operators_load() -> bool:
    """Whether torchvision's own shared library can be loaded beside this torch."""
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        return True  # not installed: its own ImportError says so best
    folder = Path(found.origin).parent
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        library = folder / f"_C{suffix}"
        if library.exists():
            try:
                torch.ops.load_library(str(library))
            except OSError:
                return False
            return True
    return False


def declare_missing_operators() -> bool:
    """Declare ``nms`` and ``qnms`` where torchvision cannot; returns whether that was needed."""
    if _declared:
        return True
    if hasattr(torch.ops.torchvision, "nms") or _compiled_operators_load():
        return False
    library = torch.library.Library("torchvision", "DEF")
    library.define(f"nms{_SCHEMA}")
    library.define(f"qnms{_SCHEMA}")
    _declared.append(library)
    return True


declare_missing_operators()
