"""Bodies that somebody might send to break a server, made from seeds: each with its content type."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Iterator

import numpy as np
from PIL import Image

Upload = tuple[str, bytes, str]
"""What it is, the bytes, the content type."""


def uploads(seed: int, count: int) -> Iterator[Upload]:
    """The fixed ones first, then random ones."""
    made = list(_fixed())
    yield from made[:count]
    numbers = np.random.default_rng(seed)
    for _ in range(count - len(made)):
        yield _random(numbers)


def png(width: int, height: int, data: bytes = b"", more: bytes = b"") -> bytes:
    """A PNG whose header says what it likes."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [_chunk(b"IHDR", header), more, _chunk(b"IDAT", zlib.compress(data)), _chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _picture(kind: str, size: tuple[int, int] = (40, 30), seed: int = 0) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    written = io.BytesIO()
    Image.fromarray(pixels).save(written, kind)
    return written.getvalue()


def _bmp(width: int, height: int) -> bytes:
    info = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + info


def _webp(width: int, height: int) -> bytes:
    body = b"WEBPVP8X" + struct.pack("<I", 10) + bytes(4)
    body += (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little") + bytes(20)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def _gif(width: int, height: int) -> bytes:
    frame = b"," + struct.pack("<HHHHB", 0, 0, width, height, 0) + b"\x02\x02L\x01\x00;"
    return b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff" + frame


def _zip(size: int) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("../../escaped.png", bytes(size))
    return written.getvalue()


def _form(body: bytes, name: str = "image", file: str = "a.png") -> bytes:
    head = f'--frontier\r\nContent-Disposition: form-data; name="{name}"; filename="{file}"\r\n\r\n'
    return head.encode() + body + b"\r\n--frontier--\r\n"


_FORM = "multipart/form-data; boundary=frontier"
_SVG = b'<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"><image href="file:///etc/passwd"/></svg>'


def _fixed() -> Iterator[Upload]:
    good = _picture("PNG")
    yield "nothing", b"", "image/png"
    yield "one byte", b"\0", "image/png"
    yield "svg", _SVG, "image/svg+xml"
    yield "svg as png", _SVG, "image/png"
    yield "html", b"<html><script>alert(1)</script>", "text/html"
    yield "zip", _zip(1_000_000), "application/zip"
    yield "zip behind a picture", good + _zip(1_000), "image/png"
    yield "script behind a picture", good + b"<script>alert(1)</script>", "text/html"
    yield "gif that is javascript", b"GIF89a/*" + _gif(2, 2) + b"*/=1;alert(1)", "image/gif"
    yield "pdf", b"%PDF-1.7\n1 0 obj", "application/pdf"
    yield "postscript", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) run", "image/png"
    yield "huge png", png(60_000, 60_000), "image/png"
    yield "huge png with pixels", png(30_000, 30_000, bytes(3_000_000)), "image/png"
    yield "png without size", png(0, 0), "image/png"
    yield "png of the largest size", png(2**31 - 1, 2**31 - 1), "image/png"
    yield "png that is too short", png(400, 400, bytes(10)), "image/png"
    yield "png with a text bomb", png(4, 4, bytes(52), _text_bomb()), "image/png"
    yield "huge bmp", _bmp(60_000, 60_000), "image/bmp"
    yield "bmp of negative size", _bmp(-5, -5), "image/bmp"
    yield "huge webp", _webp(2**24, 2**24), "image/webp"
    yield "webp of a canvas without pixels", _webp(400, 400), "image/webp"
    yield "huge gif", _gif(65_535, 65_535), "image/gif"
    yield "ppm that says too much", b"P6 99999 99999 255\n" + bytes(100), "image/x-portable-pixmap"
    yield "ppm with a long header", b"P6 " + b"9" * 100_000, "image/x-portable-pixmap"
    yield "tiff that points at itself", b"II*\0\x08\0\0\0" + b"\xff\xff" * 200, "image/tiff"
    yield "jpeg start only", b"\xff\xd8\xff", "image/jpeg"
    yield "half a jpeg", _picture("JPEG")[:1200], "image/jpeg"
    yield "gigantic exif", b"\xff\xd8\xff\xe1\xff\xff" + b"Exif\0\0" + bytes(65_000), "image/jpeg"
    yield "deep json", b"[" * 100_000, "application/json"
    yield "deep json object", b'{"text":' * 50_000 + b"1" + b"}" * 50_000, "application/json"
    yield "long number", b'{"text": ' + b"9" * 100_000 + b"}", "application/json"
    yield "json that is no text", b"\xff\xfe\xfd", "application/json"
    yield "form without boundary", _form(good), "multipart/form-data"
    yield "form without end", _form(good)[:-20], _FORM
    yield "form of another name", _form(good, name="file"), _FORM
    yield "form with a path", _form(_SVG, file="../../../etc/cron.d/x"), _FORM
    yield "form of headers", b"--frontier\r\n" + b"a: b\r\n" * 50_000, _FORM
    yield (
        "form of many parts",
        b"--frontier\r\nContent-Disposition: form-data; name=a\r\n\r\nb\r\n" * 2_000,
        _FORM,
    )
    yield "form with a long boundary", good, f"multipart/form-data; boundary={'x' * 5_000}"
    yield "unknown charset", good, "multipart/form-data; boundary=frontier; charset=nonsense"


def _text_bomb() -> bytes:
    return _chunk(b"zTXt", b"comment\0\0" + zlib.compress(bytes(30_000_000)))


def _random(numbers: np.random.Generator) -> Upload:
    kinds = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
    kind = kinds[numbers.integers(len(kinds))]
    content = f"image/{kind.lower()}"
    way = numbers.integers(4)
    if way == 0:
        return "random bytes", numbers.bytes(int(numbers.integers(1, 20_000))), content
    whole = bytearray(_picture(kind, seed=int(numbers.integers(1000))))
    if way == 1:
        return f"truncated {kind}", bytes(whole[: numbers.integers(1, len(whole))]), content
    for place in numbers.integers(
        0, min(len(whole), 200 if way == 2 else len(whole)), numbers.integers(1, 12)
    ):
        whole[place] = numbers.integers(256)
    return f"damaged {kind}", bytes(whole), content
