"""Image files to pixels: upright, RGB and 8 bits, whatever the file holds."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Protocol

import numpy as np
import simplejpeg
import torch
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from torch import Tensor

IMAGE_SUFFIXES = frozenset(
    {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
)

_TURNED_BY_90_DEGREES = frozenset({5, 6, 7, 8})
_JPEG_START = b"\xff\xd8\xff"
_MAY_TELL_ORIENTATION = (b"Exif\0\0", b"http://ns.adobe.com/xap/")
_HEADER_BYTES = 1 << 16
_SIXTEEN_BIT_MODES = frozenset({"I", "I;16", "I;16L", "I;16B", "I;16N"})


class BrokenImageError(ValueError):
    """A file that cannot be read as an image; the message names the file and says why."""


class OpenImage(Protocol):
    """An image file whose header has been read and whose pixels have not, yet.

    Use it as a context manager. The size is known before anything is decoded, so that the caller can choose
    a crop first and then ask for no more pixels than the crop needs.

    Attributes:
        height: Rows of the upright image.
        width: Columns of the upright image.
    """

    height: int
    width: int

    def __enter__(self) -> OpenImage: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    def reduce(self, factor: int) -> tuple[int, int]:
        """Let a JPEG be decoded at 1/1, 1/2, 1/4 or 1/8 of its size, and by the fastest way.

        That skips a part of the work, and gives pixels that differ a little from the exact ones. Call it
        before :meth:`pixels`; other formats come at full size always. Returns the new height and width,
        sides rounded up.
        """
        ...

    def pixels(self, box: tuple[int, int, int, int] | None = None) -> Tensor:
        """Decode: ``uint8`` ``(3, H, W)`` in memory order ``(H, W, 3)``, upright and RGB.

        Args:
            box: Top, left, height and width of the part that is wanted; by default all of it.
        """
        ...


def open_image(path: str | os.PathLike[str]) -> OpenImage:
    """Read the header of an image file.

    Plain JPEGs go the short way, through libjpeg-turbo straight into memory; whatever is turned, coloured
    in other ways, or looks damaged goes through Pillow, which knows all cases and names the damage.

    Raises:
        BrokenImageError: The file is no image.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise BrokenImageError(f"{path}: {_reason(Path(path), error)}") from error
    header = data[:_HEADER_BYTES]
    plain = header.startswith(_JPEG_START) and not any(mark in header for mark in _MAY_TELL_ORIENTATION)
    if plain:
        try:
            height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
        except ValueError:
            plain = False
        else:
            plain = colours in {"YCbCr", "Gray"}
    return _PlainJpeg(Path(path), data, height, width) if plain else _PillowImage(path)


class _PlainJpeg:
    """An upright JPEG of ordinary colours, in memory."""

    def __init__(self, path: Path, data: bytes, height: int, width: int) -> None:
        self.path = path
        self.height, self.width = height, width
        self._data = data
        self._factor = 1
        self._exactly = True

    def __enter__(self) -> _PlainJpeg:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def reduce(self, factor: int) -> tuple[int, int]:
        """See :class:`OpenImage`."""
        self._exactly = False
        self._factor = max(allowed for allowed in (1, 2, 4, 8) if allowed <= max(factor, 1))
        self.height, self.width = -(-self.height // self._factor), -(-self.width // self._factor)
        return self.height, self.width

    def pixels(self, box: tuple[int, int, int, int] | None = None) -> Tensor:
        """See :class:`OpenImage`."""
        try:
            decoded = simplejpeg.decode_jpeg(
                self._data,
                "RGB",
                fastupsample=not self._exactly,
                min_height=self.height,
                min_width=self.width,
                min_factor=self._factor,
            )
        except ValueError:
            with _PillowImage(self.path) as image:  # mends what can be mended, and names the rest
                image.reduce(self._factor)
                return image.pixels(box)
        pixels = torch.from_numpy(decoded).permute(2, 0, 1)
        if box is None:
            return pixels
        top, left, height, width = box
        return pixels[:, top : top + height, left : left + width]


class _PillowImage:
    """An image file, opened by Pillow.

    Args:
        path: The file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        with self._broken_image_named():
            self._image: Image.Image = Image.open(self.path)
        self._is_jpeg = self._image.format in ("JPEG", "MPO")
        with self._broken_image_named():
            if not self._is_jpeg:
                self._image.load()  # a PNG may tell its orientation after its pixels
            self._orientation = _orientation(self._image)
        self.height, self.width = self._upright_size()

    def __enter__(self) -> _PillowImage:
        return self

    def __exit__(self, *_: object) -> None:
        self._image.close()

    def reduce(self, factor: int) -> tuple[int, int]:
        """See :class:`OpenImage`."""
        if self._is_jpeg and factor > 1:
            self._image.draft("RGB", (self._image.width // factor, self._image.height // factor))
            self.height, self.width = self._upright_size()
        return self.height, self.width

    def pixels(self, box: tuple[int, int, int, int] | None = None) -> Tensor:
        """See :class:`OpenImage`."""
        with self._broken_image_named():
            image = self._image
            image.load()
            if self._orientation != 1:
                image = ImageOps.exif_transpose(image)
            if box is not None and box != (0, 0, image.height, image.width):
                top, left, height, width = box
                image = image.crop((left, top, left + width, top + height))
            return torch.from_numpy(np.array(as_rgb(image))).permute(2, 0, 1)

    def _upright_size(self) -> tuple[int, int]:
        width, height = self._image.size
        return (width, height) if self._orientation in _TURNED_BY_90_DEGREES else (height, width)

    @contextmanager
    def _broken_image_named(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # Pillow's readers raise whatever a damaged file makes them stumble over
            if hasattr(self, "_image"):
                self._image.close()
            raise BrokenImageError(f"{self.path}: {_reason(self.path, error)}") from error


def read_image(path: str | os.PathLike[str]) -> Tensor:
    """The image in a file as ``uint8`` ``(3, H, W)``, upright and RGB.

    Grey and palette images become RGB, transparent places become white, CMYK and 16-bit images are
    converted, and the orientation that the camera noted is applied.

    Raises:
        BrokenImageError: The file is no image, or not a whole one.
    """
    with open_image(path) as image:
        return image.pixels().contiguous()


def _reason(path: Path, error: Exception) -> str:
    """Why a file could not be read, for a person."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    if path.is_file() and path.stat().st_size == 0:
        return "empty file (0 bytes)"
    if isinstance(error, UnidentifiedImageError):
        return "not an image in any known format"
    return str(error) or type(error).__name__


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation, 1 (upright) if the file says nothing sensible."""
    if not {"exif", "xmp", "XML:com.adobe.xmp"} & image.info.keys() and image.format != "TIFF":
        return 1
    orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    return orientation if orientation in range(1, 9) else 1


def as_rgb(image: Image.Image) -> Image.Image:
    """Any mode to RGB, transparency onto white."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode in _SIXTEEN_BIT_MODES:
        return _eight_bits(image).convert("RGB")
    if image.mode == "F":
        raise ValueError(
            "floating-point pixels, of which it is unknown which value is white: save it as 8 or 16 bits"
        )
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return image.convert("RGB")


def _eight_bits(image: Image.Image) -> Image.Image:
    """The upper 8 of 16 bits: Pillow's own conversion would clip at 255 instead."""
    values = np.asarray(image)
    if values.min() < 0 or values.max() > 65535:
        raise ValueError(f"pixel values from {values.min()} to {values.max()} do not fit into 16 bits")
    return Image.fromarray((values.astype(np.uint16) >> 8).astype(np.uint8))


class ImageFiles:
    """Images on disk, decoded when asked for.

    Args:
        paths: One file per image.
        root: What the paths are relative to; names leave it out.

    >>> files = ImageFiles(["wren/1.jpg", "gull/2.jpg"], root="birds")
    >>> files.name(1), files.path(1).as_posix()
    ('gull/2.jpg', 'birds/gull/2.jpg')
    """

    def __init__(self, paths: Sequence[str | os.PathLike[str]], root: str | os.PathLike[str] = "") -> None:
        self.root = Path(root)
        self._paths = [os.fspath(path) for path in paths]

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> Tensor:
        return read_image(self.path(index))

    def open(self, index: int) -> OpenImage:
        """Read the header of one image."""
        return open_image(self.path(index))

    def path(self, index: int) -> Path:
        """Where one image lives."""
        return self.root / self._paths[index]

    def select(self, indices: Sequence[int]) -> ImageFiles:
        """The images at ``indices``, in that order."""
        return ImageFiles([self._paths[i] for i in indices], self.root)

    def name(self, index: int) -> str:
        """The path below the root."""
        return self._paths[index]
