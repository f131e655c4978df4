"""Whatever a user has at hand, as samples: paths, pictures, arrays, texts, vectors."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from nearkin.data import DatasetSamples, ImageFiles, Samples, SampleSet, Texts
from nearkin.data import as_samples as data_samples
from nearkin.data.class_folders import files_below
from nearkin.data.decoding import IMAGE_SUFFIXES, as_rgb

_CHANNELS = {1, 3}
_RGBA = 4


def as_samples(inputs: Any, *, takes_images: bool | None, channels: int | None = None) -> Samples:
    """Inputs of any kind as samples.

    Args:
        inputs: A path of an image or of a folder of images, one PIL image, text or array, or a list
            of them; a tensor or array of images (uint8, ``(N, C, H, W)`` or ``(N, H, W, C)``) or vectors
            ``(N, F)``; a torch ``Dataset`` of ``(sample, label)``; a :class:`~nearkin.data.SampleSet` or
            samples.
        takes_images: Whether a list of strings is a list of paths (or of texts); ``None`` where both are
            possible: then what exists as a file or folder, or ends as image files do, is a path.
        channels: How many channels the network's images have: it tells one colour image from three grey ones.

    Raises:
        ValueError: It is something else, or nothing.
    """
    if isinstance(inputs, SampleSet):
        return inputs.samples
    if isinstance(inputs, str | os.PathLike) and _is_path(inputs, takes_images):
        return _files([inputs])
    if isinstance(inputs, str) or _is_picture(inputs):
        inputs = [inputs]
    if isinstance(inputs, bytes | bytearray | memoryview):
        raise ValueError("cannot embed bytes: open a picture first, PIL.Image.open(io.BytesIO(data))")
    if isinstance(inputs, np.ndarray):
        inputs = torch.from_numpy(np.require(inputs, requirements="W"))  # a picture's own array is read-only
    if isinstance(inputs, Tensor):
        return data_samples(_one_or_more(_opaque(inputs), channels))
    if hasattr(inputs, "select") and hasattr(inputs, "name") and hasattr(inputs, "__getitem__"):
        samples: Samples = inputs
        return samples
    if isinstance(inputs, Dataset) and not isinstance(inputs, IterableDataset):
        return DatasetSamples(inputs)
    if not isinstance(inputs, Iterable):
        raise ValueError(f"cannot embed {type(inputs).__name__}: give paths, pictures, texts or arrays")
    return _listed(list(inputs), takes_images)


def _listed(values: list[Any], takes_images: bool | None) -> Samples:
    if not values:
        raise ValueError("nothing to embed: the list is empty")
    named = all(isinstance(value, str | os.PathLike) for value in values)
    if named and all(_is_path(value, takes_images) for value in values):
        return _files(values)
    if all(isinstance(value, str) for value in values):
        return Texts(values)
    return data_samples(values)


def _opaque(array: Tensor) -> Tensor:
    """Images whose fourth channel, the last axis, is opacity: what is transparent becomes white."""
    if array.dtype != torch.uint8 or array.ndim not in (3, 4) or array.shape[-1] != _RGBA:
        return array
    pictures = array.cpu().numpy() if array.ndim == 4 else array.unsqueeze(0).cpu().numpy()
    white = [np.asarray(as_rgb(Image.fromarray(picture))) for picture in pictures]
    return torch.from_numpy(np.stack(white))


def _one_or_more(array: Tensor, channels: int | None) -> Tensor:
    """A single image or vector as a batch of one; three axes without channels are several grey images."""
    if array.dtype != torch.uint8:
        return array.unsqueeze(0) if array.ndim == 1 else array
    wanted = _CHANNELS if channels is None else {channels}
    if array.ndim == 2 or (array.ndim == 3 and {array.shape[0], array.shape[2]} & wanted):
        return array.unsqueeze(0)
    return array


def _is_path(value: str | os.PathLike[str], takes_images: bool | None) -> bool:
    if takes_images or _is_image_path(value):
        return True
    return takes_images is None and _exists(value)


def _exists(value: str | os.PathLike[str]) -> bool:
    try:
        return Path(value).exists()
    except (OSError, ValueError):  # a text too long for a path, or one that no path can be
        return False


def _is_image_path(value: str | os.PathLike[str]) -> bool:
    """A path object, or a text that ends as image files do: what a network of texts is never given."""
    return isinstance(value, os.PathLike) or Path(value).suffix.lower() in IMAGE_SUFFIXES


def _files(paths: Sequence[str | os.PathLike[str]]) -> Samples:
    found: list[Path] = []
    for given in paths:
        path = Path(given)
        if path.is_dir():
            inside = sorted(path / name for name in files_below(path))
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
