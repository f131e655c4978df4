"""Whatever a user has at hand, as samples: paths, pictures, arrays, texts, vectors."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearkin.data import ImageArray, ImageFiles, Pictures, Samples, SampleSet, Texts, Vectors, image_paths


def as_samples(inputs: Any, *, takes_images: bool) -> Samples:
    """Inputs of any kind as samples.

    Args:
        inputs: A path of an image or of a folder of images, one PIL image, text or array, or a list of them; a
            tensor or array of images (uint8, ``(N, C, H, W)`` or ``(N, H, W, C)``) or vectors ``(N, F)``; a
            :class:`~nearkin.data.SampleSet` or samples.
        takes_images: Whether a list of strings is a list of paths (or of texts).

    Raises:
        ValueError: It is something else, or nothing.
    """
    if isinstance(inputs, SampleSet):
        return inputs.samples
    if isinstance(inputs, str | os.PathLike) and (takes_images or isinstance(inputs, os.PathLike)):
        return _files([inputs])
    if isinstance(inputs, str) or _is_picture(inputs):
        inputs = [inputs]
    if isinstance(inputs, Tensor | np.ndarray):
        return _array(inputs)
    if hasattr(inputs, "select") and hasattr(inputs, "name") and hasattr(inputs, "__getitem__"):
        samples: Samples = inputs
        return samples
    if not isinstance(inputs, Iterable):
        raise ValueError(f"cannot embed {type(inputs).__name__}: give paths, pictures, texts or arrays")
    return _listed(list(inputs), takes_images)


def _listed(values: list[Any], takes_images: bool) -> Samples:
    if not values:
        raise ValueError("nothing to embed: the list is empty")
    if all(_is_picture(value) for value in values):
        return Pictures(values)
    if all(isinstance(value, str | os.PathLike) for value in values):
        return _files(values) if takes_images else Texts([str(value) for value in values])
    if all(isinstance(value, Tensor | np.ndarray) for value in values):
        shapes = {tuple(value.shape) for value in values}
        if len(shapes) > 1:
            raise ValueError(f"arrays of different shapes cannot be embedded together: {sorted(shapes)[:3]}")
        return _array(torch.stack([torch.as_tensor(value) for value in values]))
    kinds = sorted({type(value).__name__ for value in values})
    raise ValueError(f"cannot embed a list of {', '.join(kinds)}: give paths, pictures, texts or arrays")


def _array(values: Tensor | np.ndarray[Any, Any]) -> Samples:
    array = torch.as_tensor(values)
    if array.dtype == torch.uint8 and array.ndim in (2, 3):  # one image
        array = array.unsqueeze(0)
    if array.dtype == torch.uint8 and array.ndim == 3:  # grey images
        array = array.unsqueeze(1)
    if array.dtype == torch.uint8 and array.ndim == 4:
        channels_last = array.shape[1] not in (1, 3) and array.shape[-1] in (1, 3)
        return ImageArray(array.permute(0, 3, 1, 2).contiguous() if channels_last else array)
    if array.is_floating_point() and array.ndim in (1, 2):
        return Vectors(array if array.ndim == 2 else array.unsqueeze(0))
    raise ValueError(
        f"cannot embed an array of {array.dtype} {tuple(array.shape)}: images are uint8 (N, C, H, W), "
        "vectors float (N, F)"
    )


def _files(paths: Sequence[str | os.PathLike[str]]) -> Samples:
    found: list[Path] = []
    for given in paths:
        path = Path(given)
        if path.is_dir():
            inside = [path / name for name in image_paths(path)]
            if not inside:
                raise ValueError(f"{path} holds no image")
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            raise FileNotFoundError(f"there is no file {path}")
    return ImageFiles([str(path.absolute()) for path in found], Path("/"))


def _is_picture(value: Any) -> bool:
    return hasattr(value, "convert") and hasattr(value, "getbands")
