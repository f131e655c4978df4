"""What somebody must know to use an exported file: input, output, threshold, versions, comparison."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import nearkin
from nearkin.data import Preprocessing
from nearkin.data.transforms import CentreCrop, CropTransform
from nearkin.evaluation import Threshold
from nearkin.model.exporting.comparison import Comparison, Tolerance
from nearkin.model.exporting.formats import OUTPUT
from nearkin.model.exporting.graph import GraphInput
from nearkin.model.files import describe
from nearkin.model.model import Model

_FORMAT = 1


def manifest_of(file: Path) -> Path:
    """Where the manifest of an exported file lies.

    >>> manifest_of(Path("birds.onnx")).name
    'birds.onnx.json'
    """
    return file.with_name(f"{file.name}.json")


def manifest(
    model: Model,
    taken: GraphInput,
    comparison: Comparison,
    allowed: Tolerance,
    *,
    kind: str,
    precision: str,
    files: Iterable[Path],
    threshold: Threshold | None,
    threshold_of: str,
    packages: Iterable[str],
    more: dict[str, Any],
) -> dict[str, Any]:
    """Everything about one exported file, in plain values."""
    return {
        "manifest": _FORMAT,
        "format": kind,
        "precision": precision,
        "files": [_described(file) for file in files],
        "input": input_of(taken),
        "output": {
            "name": OUTPUT,
            "dtype": "float32",
            "shape": ["batch", model.embedding_dim],
            "unit_length": True,
            "compare_by": "the dot product of two rows, their cosine: larger is nearer",
        },
        "preprocessing": preprocessing_of(taken),
        "steps": steps(taken),
        "threshold": None if threshold is None else threshold.to_dict() | {"embeddings": threshold_of},
        "fingerprint": model.fingerprint,
        "networks": [describe(one)["network"] for one in model.embedders],
        "compared_with_torch": comparison.to_dict()
        | {"allowed": {"difference": allowed.difference, "recall_at_1": allowed.recall}},
        **more,
        "versions": versions(packages),
    }


def _described(file: Path) -> dict[str, Any]:
    content = file.read_bytes()
    return {"name": file.name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Of everything that made a file."""
    return {"nearkin": nearkin.__version__, "python": platform.python_version()} | {
        package: importlib.metadata.version(package) for package in packages
    }


def input_of(taken: GraphInput) -> dict[str, Any]:
    """Name, type and shape of what a file takes."""
    told: dict[str, Any] = {"name": taken.name, "dtype": taken.dtype, "shape": ["batch", *taken.shape]}
    if taken.name == "pixels":
        told |= {"layout": "NHWC", "colour": _colour(taken.preprocessing), "values": "0 to 255"}
    elif taken.preprocessing is not None:
        told |= {"layout": "NCHW"}
    return told


def _colour(expected: Preprocessing | None) -> str:
    return "grey" if expected is not None and expected.channels == 1 else "RGB"


def preprocessing_of(taken: GraphInput) -> dict[str, Any] | None:
    """What becomes of an image before the network, in numbers; ``None`` where samples are no images."""
    expected, view = taken.preprocessing, _centre_crop(taken)
    if expected is None:
        return None
    scale, shift = (values.flatten().tolist() for values in expected.scale_and_shift)
    return {
        "normalised": "inside" if taken.name == "pixels" else "beside",
        "short_side": None if view is None else view.resize,
        "crop": expected.size,
        "interpolation": None if view is None else expected.interpolation,
        "antialias": view is not None,
        "channel_order": expected.channel_order,
        "scale": scale,
        "shift": shift,
    }


def _centre_crop(taken: GraphInput) -> CentreCrop | None:
    transform = taken.embedder.evaluation_transform
    found = transform.view_of if isinstance(transform, CropTransform) else None
    return found if isinstance(found, CentreCrop) else None


def steps(taken: GraphInput) -> list[str]:
    """What to do with a sample before it is passed to the file, in words."""
    expected, view = taken.preprocessing, _centre_crop(taken)
    if expected is None:
        return [f"pass what {taken.embedder.evaluation_transform!r} makes of samples, as float32"]
    grey = ", and make it grey: 0.299 R + 0.587 G + 0.114 B, rounded" if expected.channels == 1 else ""
    found = [f"decode the file to 8-bit RGB and turn it upright by its EXIF orientation{grey}"]
    size = expected.size
    if view is None:
        found.append(f"the image must have {size} × {size} pixels: nothing is resized")
    else:
        found += [
            f"resize the short side to {view.resize} pixels and the long side in proportion, rounded down: "
            f"{expected.interpolation}, with antialiasing, rounded to whole numbers from 0 to 255",
            f"cut the {size} × {size} pixels in the middle: top = round((height - {size}) / 2), left = "
            f"round((width - {size}) / 2), halves to the even number",
        ]
    if taken.name == "pixels":
        return [*found, "pass uint8, batch × height × width × channel"]
    order = ", channels in the order B, G, R" if expected.channel_order == "bgr" else ""
    return [*found, f"value × scale − shift per channel, float32, batch × channel × height × width{order}"]
