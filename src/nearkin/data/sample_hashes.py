"""What a set of samples is, in one short text, so that no cache is taken for that of other samples."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from nearkin.data.content_hashes import content_hashes
from nearkin.data.decoding import ImageFiles
from nearkin.data.numbered_names import NumberedNames
from nearkin.data.samples import ImageArray, Samples, SampleSet
from nearkin.data.seeding import seeded_generators
from nearkin.data.vectors import Vectors

_ROWS_AT_A_TIME = 4096

Progress = Callable[[int, int], None]
"""Called with the number of samples done and the number of all."""


def fingerprint(samples: Samples, *, progress: Progress | None = None) -> str:
    """A hash that changes when the samples do.

    Files count by path below the root, size and content; the hash of the content is remembered while a
    file's path, size and time of change stay the same, so only the first time takes long. Everything else
    counts by content. Samples that cannot be hashed (objects of unknown types) count by their number
    only, with a warning, and the fingerprint starts with ``count-``.

    Args:
        samples: Samples of any kind.
        progress: Called with the samples done and the number of all.
    """
    own = getattr(samples, "fingerprint", None)
    if own is not None:  # a kind of samples that follows from others
        known: str = own()
        return known
    digest = hashlib.sha256()
    if isinstance(samples, ImageFiles):
        paths = [samples.path(index) for index in range(len(samples))]
        hashes = content_hashes(paths, progress=progress)
        for index, content in enumerate(hashes):
            digest.update(f"{samples.name(index)}\0{paths[index].stat().st_size}\0{content}\0".encode())
    elif isinstance(samples, ImageArray):
        digest.update(str(tuple(samples.pixels.shape)).encode())
        digest.update(samples.pixels.contiguous().numpy().data)
    elif isinstance(samples, Vectors):
        for start in range(0, len(samples), _ROWS_AT_A_TIME):
            _add(digest, samples.batch(range(start, min(start + _ROWS_AT_A_TIME, len(samples)))))
    else:
        try:
            _add_all(digest, samples, progress)
        except _UnknownType as error:
            kind = type(samples).__name__
            warnings.warn(
                f"{kind}: samples of type {error} cannot be hashed, so that only their number tells these "
                "samples from others",
                stacklevel=2,
            )
            return "count-" + hashlib.sha256(f"{kind} {len(samples)}".encode()).hexdigest()
    return digest.hexdigest()


def fingerprint_of_set(sample_set: SampleSet) -> str:
    """A hash that changes when the samples, their labels, class names, cameras or known pairs do."""
    digest = hashlib.sha256(fingerprint(sample_set.samples).encode())
    _add(digest, sample_set.labels)
    _add(digest, sample_set.class_names)
    if sample_set.cameras is not None:
        _add(digest, sample_set.cameras)
    if sample_set.pairs is not None:
        known = sample_set.pairs
        _add(digest, (known.pairs, known.same, known.groups, known.others, known.transitive))
    return digest.hexdigest()


def quick_fingerprint(files: ImageFiles) -> str:
    """A hash of paths, sizes and times of change, which reads no file; one may be missing."""
    digest = hashlib.sha256()
    for index in range(len(files)):
        try:
            status = files.path(index).stat()
            state = f"{status.st_size}\0{status.st_mtime_ns}"
        except OSError:
            state = "cannot be read"
        digest.update(f"{files.name(index)}\0{state}\0".encode())
    return digest.hexdigest()


class _UnknownType(Exception):  # noqa: N818  (it never leaves this file)
    """The message is the name of the type."""


def _add_all(digest: Any, samples: Samples, progress: Progress | None) -> None:
    with seeded_generators() as seed:
        for index in range(len(samples)):
            seed(index)  # a Dataset may transform its samples at random
            _add(digest, samples[index])
            if progress is not None:
                progress(index + 1, len(samples))


def _add(digest: Any, value: Any) -> None:
    """Hash a value with its type and size, so that no two values give the same bytes."""
    if isinstance(value, Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1)
        digest.update(f"tensor {value.dtype} {tuple(value.shape)} ".encode())
        digest.update(flat.view(torch.uint8).numpy().data)
    elif isinstance(value, np.ndarray) and value.dtype != object:
        digest.update(f"array {value.dtype} {value.shape} ".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, Image.Image):
        _add(digest, (value.mode, value.size, value.tobytes()))
    elif isinstance(value, str | bytes):
        data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
        digest.update(f"{type(value).__name__} {len(data)} ".encode() + data)
    elif value is None or isinstance(value, bool | int | float | complex | np.generic):
        digest.update(f"{type(value).__name__} {value!r} ".encode())
    elif isinstance(value, Mapping):
        _add(digest, [(key, value[key]) for key in sorted(value, key=repr)])
    elif isinstance(value, NumberedNames):
        _add(digest, ("numbered", value.pattern, value.numbers))
    elif isinstance(value, list | tuple):
        digest.update(f"{len(value)} values ".encode())
        for part in value:
            _add(digest, part)
    else:
        raise _UnknownType(type(value).__name__)
