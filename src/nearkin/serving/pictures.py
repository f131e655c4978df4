"""Uploaded bytes to pictures: nothing is decoded before its header said how large it is."""

from __future__ import annotations

import io
import math
import warnings
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageOps

from nearkin.data.decoding import as_rgb
from nearkin.serving.errors import RequestError

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""What is taken for a picture; Pillow's other readers never see a stranger's bytes."""
_KEPT_PIXELS = 4_000_000  # networks look at far less; larger pictures wait for their turn at this size


@dataclass(frozen=True)
class Crop:
    """A part of a picture, in shares of its width and height.

    >>> Crop.parse("0.25, 0.5, 0.5, 0.5")
    Crop(x=0.25, y=0.5, width=0.5, height=0.5)
    """

    x: float
    y: float
    width: float
    height: float

    @classmethod
    def parse(cls, text: str) -> Crop:
        """Four numbers from 0 to 1, with commas between them: x, y, width, height.

        Raises:
            RequestError: They are not, or the part is empty or outside the picture.
        """
        try:
            x, y, width, height = (float(part) for part in text.split(","))
        except ValueError:
            raise _bad_crop(text, "must be four numbers x,y,width,height") from None
        if not all(math.isfinite(value) for value in (x, y, width, height)):
            raise _bad_crop(text, "must be four numbers x,y,width,height")
        inside = 0 <= x < 1 and 0 <= y < 1 and x + width <= 1.0001 and y + height <= 1.0001
        if not inside or width <= 0 or height <= 0:
            raise _bad_crop(text, "must lie inside the picture, whose sides run from 0 to 1")
        return cls(x, y, width, height)

    def of(self, picture: Image.Image) -> Image.Image:
        """That part, at least one pixel of it."""
        left, top = int(self.x * picture.width), int(self.y * picture.height)
        right = min(picture.width, max(left + 1, round((self.x + self.width) * picture.width)))
        bottom = min(picture.height, max(top + 1, round((self.y + self.height) * picture.height)))
        return picture.crop((left, top, right, bottom))


def _bad_crop(text: str, why: str) -> RequestError:
    return RequestError(422, "bad_crop", f"crop={text[:60]!r} {why}")


def decode(data: bytes, *, pixels: int, crop: Crop | None = None) -> Image.Image:
    """An uploaded picture: upright, RGB, no larger than a network could make use of.

    Args:
        data: The bytes of an image file.
        pixels: The most pixels that are decoded.
        crop: The part that is wanted; by default all of it.

    Raises:
        RequestError: It is no picture (415), a broken one (422), or too large (413).
    """
    if not data:
        raise RequestError(400, "empty", "the upload is empty: send the bytes of one picture")
    _check_size(*(_webp_size(data) or (1, 1)), pixels)  # Pillow makes room for a WebP when it opens it
    try:
        picture = _opened(data)
    except RequestError:
        raise
    except Exception:  # whatever a reader stumbles over in a hostile file
        raise RequestError(
            415, "not_a_picture", f"the upload is not a picture: send one of {', '.join(FORMATS)}"
        ) from None
    with picture:
        _check_size(*picture.size, pixels)
        try:
            return _upright(picture, crop)
        except Exception as error:
            raise _broken(error) from None


def thumbnail(path: Path, side: int, *, pixels: int) -> bytes:
    """A small JPEG of an image file, made in memory.

    Raises:
        RequestError: The file is gone or cannot be read.
    """
    try:
        with Image.open(path) as picture:
            _check_size(*picture.size, pixels)
            picture.draft("RGB", (2 * side, 2 * side))
            small = as_rgb(ImageOps.exif_transpose(picture))
            small.thumbnail((side, side), Image.Resampling.LANCZOS)
    except RequestError:
        raise
    except Exception:
        raise gone() from None
    written = io.BytesIO()
    small.save(written, "JPEG", quality=85)
    return written.getvalue()


def read(path: Path, *, pixels: int, crop: Crop | None = None) -> Image.Image:
    """The picture of an item, as :func:`decode` reads an upload.

    Raises:
        RequestError: The file is gone or cannot be read.
    """
    try:
        data = path.read_bytes()
    except OSError:
        raise gone() from None
    return decode(data, pixels=pixels, crop=crop)


def gone() -> RequestError:
    """An item of which the index has the embedding only."""
    return RequestError(404, "no_picture", "the picture of this item is not where it was when it was indexed")


def _opened(data: bytes) -> Image.Image:
    try:
        return Image.open(io.BytesIO(data), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise RequestError(413, "too_many_pixels", "the picture has too many pixels to be decoded") from None


def _upright(picture: Image.Image, crop: Crop | None) -> Image.Image:
    picture.load()
    upright = as_rgb(ImageOps.exif_transpose(picture))
    part = upright if crop is None else crop.of(upright)
    share = math.sqrt(_KEPT_PIXELS / (part.width * part.height))
    if share < 1:
        size = (max(1, round(part.width * share)), max(1, round(part.height * share)))
        part = part.resize(size, Image.Resampling.BOX, reducing_gap=2.0)
    return part.copy() if part is picture else part


def _check_size(width: int, height: int, pixels: int) -> None:
    if width < 1 or height < 1:
        raise RequestError(422, "broken_picture", "the picture has no pixels")
    if width * height > pixels:
        raise RequestError(
            413,
            "too_many_pixels",
            f"the picture has {width:,} × {height:,} pixels, and at most {pixels:,} are taken: shrink it",
        )


def _broken(error: Exception) -> RequestError:
    if isinstance(error, MemoryError):
        return RequestError(413, "too_many_pixels", "the picture is too large to be decoded")
    said = str(error) if isinstance(error, ValueError) and "bits" in str(error) else ""
    return RequestError(
        422, "broken_picture", f"the picture cannot be decoded: {said or 'it is damaged or not complete'}"
    )


def _webp_size(data: bytes) -> tuple[int, int] | None:
    """Width and height in the header of a WebP file; None for whatever else.

    >>> _webp_size(b"no picture") is None
    True
    """
    if data[:4] != b"RIFF" or data[8:12] != b"WEBP" or len(data) < 30:
        return None
    if data[12:16] == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if data[12:16] == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + ((bits >> 14) & 0x3FFF)
    return int.from_bytes(data[26:28], "little") & 0x3FFF, int.from_bytes(data[28:30], "little") & 0x3FFF


def silence_bomb_warnings() -> None:
    """Pillow's warning says what is refused here anyway; called once, where a process starts to serve."""
    warnings.simplefilter("ignore", Image.DecompressionBombWarning)
