"""Forms with files (multipart/form-data), read in memory."""

from __future__ import annotations

from typing import Any

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from nearkin.serving.errors import RequestError

_MOST_PARTS = 8
_HEADER_BYTES = 8_192  # of all parts together
_LONGEST_BOUNDARY = 70  # by the standard


def read_form(content_type: str, body: bytes) -> dict[str, bytes]:
    r"""The parts of a form, by name.

    Args:
        content_type: As the request's header says, with the boundary.
        body: The whole body.

    Raises:
        RequestError: It is not a form, or not one that can be read.

    >>> read_form("multipart/form-data; boundary=x", b'--x\r\nContent-Disposition: form-data; name="a"'
    ...     b"\r\n\r\nhello\r\n--x--\r\n")
    {'a': b'hello'}
    """
    boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
    if not 0 < len(boundary) <= _LONGEST_BOUNDARY:
        raise _bad("it has no boundary, or one that is too long")
    parts = _Parts()
    parser = MultipartParser(boundary, parts.callbacks())
    try:
        parser.write(body)
        parser.finalize()
    except FormParserError:
        raise _bad("it is broken") from None
    if not parts.ended:
        raise _bad("it is not complete")
    return parts.found


def _bad(why: str) -> RequestError:
    return RequestError(400, "bad_form", f"the form (multipart/form-data) cannot be read: {why}")


class _Parts:
    """Collects what the parser finds."""

    def __init__(self) -> None:
        self.found: dict[str, bytes] = {}
        self.ended = False
        self._number = 0
        self._header_bytes = 0
        self._data: list[bytes] = []
        self._header = (bytearray(), bytearray())
        self._name: str | None = None

    def callbacks(self) -> Any:
        """What the parser calls."""
        return {
            "on_part_begin": self._begin,
            "on_header_field": lambda data, start, end: self._add(0, data[start:end]),
            "on_header_value": lambda data, start, end: self._add(1, data[start:end]),
            "on_header_end": self._header_end,
            "on_part_data": lambda data, start, end: self._data.append(data[start:end]),
            "on_part_end": self._end,
            "on_end": self._finish,
        }

    def _begin(self) -> None:
        self._number += 1
        if self._number > _MOST_PARTS:
            raise _bad(f"it has more than {_MOST_PARTS} parts")
        self._data, self._name = [], None

    def _add(self, place: int, text: bytes) -> None:
        self._header_bytes += len(text)
        if self._header_bytes > _HEADER_BYTES:
            raise _bad("its headers are too long")
        self._header[place].extend(text)

    def _header_end(self) -> None:
        field, value = bytes(self._header[0]).lower(), bytes(self._header[1])
        self._header = (bytearray(), bytearray())
        if field == b"content-disposition":
            self._name = parse_options_header(value)[1].get(b"name", b"").decode("utf-8", "replace")

    def _end(self) -> None:
        if self._name:
            self.found[self._name] = b"".join(self._data)

    def _finish(self) -> None:
        self.ended = True
