"""Images packed into few large files: WebDataset's tar shards, and Parquet tables. Nothing is unpickled.

A tar file holds, per sample, files of one name and several endings: ``0001.jpg`` and ``0001.cls``, its label.
A Parquet table holds images as bytes in a column ``image`` or ``jpg`` (or, as Hugging Face writes them, a
struct with ``bytes`` in it), and labels in ``label`` or ``cls``.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from nearkin.data.decoding import IMAGE_SUFFIXES, BrokenImageError, as_rgb
from nearkin.extras import require

SUFFIXES = (".tar", ".parquet")
_LABELS = (".cls", ".txt", ".label")
_IMAGE_COLUMNS = ("image", "jpg", "png", "jpeg", "webp")
_LABEL_COLUMNS = ("label", "cls", "class")
_LONGEST_LABEL = 1000


class Place(NamedTuple):
    """Where an image's bytes are: from ``start`` on in a tar file, or in a row of a table."""

    file: Path
    start: int
    size: int
    name: str


class PackedImages:
    """Images in tar files and Parquet tables, read and decoded when asked for.

    Args:
        places: From :func:`packed_images`.

    Attributes:
        places: Where each image is.
    """

    def __init__(self, places: Sequence[Place]) -> None:
        self.places = list(places)

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> Tensor:
        data = self._bytes(index)
        try:
            with Image.open(io.BytesIO(data)) as image:
                upright = as_rgb(ImageOps.exif_transpose(image))
                return torch.from_numpy(np.array(upright)).permute(2, 0, 1).contiguous()
        except Exception as error:  # Pillow's readers raise whatever damaged bytes make them stumble over
            raise BrokenImageError(f"{self.name(index)}: {error}") from error

    def _bytes(self, index: int) -> bytes:
        place = self.places[index]
        return _bytes_in_tar(place) if place.file.suffix.lower() == ".tar" else _bytes_in_table(place)

    def fingerprint(self) -> str:
        """A hash of the images as they are packed: nothing is decoded for it."""
        digest = hashlib.sha256()
        for index in range(len(self)):
            digest.update(hashlib.sha256(self._bytes(index)).digest())
        return digest.hexdigest()

    def select(self, indices: Sequence[int]) -> PackedImages:
        """The images at ``indices``, in that order."""
        return PackedImages([self.places[index] for index in indices])

    def name(self, index: int) -> str:
        """The packed file and the image's name in it."""
        place = self.places[index]
        return f"{place.file.as_posix()}/{place.name}"


def is_packed(given: object) -> bool:
    """Whether this is the path of a packed file.

    >>> is_packed("shard-000.tar"), is_packed("photos")
    (True, False)
    """
    return isinstance(given, str | os.PathLike) and Path(given).suffix.lower() in SUFFIXES


def packed_images(file: str | Path) -> tuple[PackedImages, list[str | None]]:
    """The images of a packed file, and the label of each where there is one.

    Raises:
        ValueError: It is none, is compressed, or holds no image.
    """
    path = Path(file)
    places, labels = _in_tar(path) if path.suffix.lower() == ".tar" else _in_table(path)
    if not places:
        raise ValueError(f"{path} holds no image")
    return PackedImages(places), labels


def _in_tar(path: Path) -> tuple[list[Place], list[str | None]]:
    places: list[Place] = []
    told: dict[str, str] = {}
    try:
        with tarfile.open(path, "r:") as archive:  # members are found by their places: no compression
            for member in archive:
                if not member.isreg():
                    continue
                stem, ending = _parted(member.name)
                if ending in IMAGE_SUFFIXES:
                    places.append(Place(path, member.offset_data, member.size, member.name))
                elif ending in _LABELS and member.size <= _LONGEST_LABEL:
                    text = archive.extractfile(member)
                    assert text is not None
                    told.setdefault(stem, text.read().decode("utf-8", "replace").strip())
    except tarfile.TarError as error:
        raise ValueError(f"{path} cannot be read as a tar file ({error}): unpack compressed ones") from error
    return places, [told.get(_parted(place.name)[0]) for place in places]


def _parted(name: str) -> tuple[str, str]:
    """The key and the ending of a member, as WebDataset parts them: at the first point of the last part."""
    folder, slash, last = name.rpartition("/")
    stem, point, ending = last.partition(".")
    return f"{folder}{slash}{stem}", f"{point}{ending}".lower()


def _bytes_in_tar(place: Place) -> bytes:
    with place.file.open("rb") as file:
        file.seek(place.start)
        return file.read(place.size)


def _in_table(path: Path) -> tuple[list[Place], list[str | None]]:
    table = _opened(path, path.stat().st_mtime_ns)
    columns = table.schema_arrow.names
    _image_column(path, columns)
    count = table.metadata.num_rows
    places = [Place(path, row, 1, str(row)) for row in range(count)]
    label = next((name for name in _LABEL_COLUMNS if name in columns), None)
    if label is None:
        return places, [None] * count
    found = table.read(columns=[label])[label].to_pylist()
    return places, [None if one is None else str(one) for one in found]


def _image_column(path: Path, columns: Sequence[str]) -> str:
    for name in _IMAGE_COLUMNS:
        if name in columns:
            return name
    raise ValueError(
        f"{path} has no column of images ({', '.join(_IMAGE_COLUMNS)}), only {', '.join(columns)}"
    )


@lru_cache(maxsize=8)
def _opened(path: Path, _: int) -> Any:
    """A table, whose file is opened once as long as it does not change."""
    parquet = require("pyarrow.parquet", extra="parquet", purpose="reading .parquet")
    try:
        return parquet.ParquetFile(str(path), memory_map=True)
    except OSError as error:
        raise ValueError(f"{path} cannot be read as a Parquet table: {error}") from error
    except ValueError as error:  # pyarrow's own kind of it
        raise ValueError(f"{path} cannot be read as a Parquet table: {error}") from error


@lru_cache(maxsize=2)
def _group(path: Path, stamp: int, number: int) -> list[Any]:
    table = _opened(path, stamp)
    column = _image_column(path, table.schema_arrow.names)
    found: list[Any] = table.read_row_group(number, columns=[column])[column].to_pylist()
    return found


def _bytes_in_table(place: Place) -> bytes:
    stamp = place.file.stat().st_mtime_ns
    metadata = _opened(place.file, stamp).metadata
    row = place.start
    for number in range(metadata.num_row_groups):
        rows = metadata.row_group(number).num_rows
        if row < rows:
            value = _group(place.file, stamp, number)[row]
            return bytes(value["bytes"] if isinstance(value, dict) else value)
        row -= rows
    raise BrokenImageError(f"{place.file} has no row {place.start}: it was changed")
