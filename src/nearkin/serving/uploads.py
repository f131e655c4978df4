"""Bodies of requests: bounded in size and time, kept in memory, never in a file."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from starlette.requests import ClientDisconnect, Request

from nearkin.serving.errors import RequestError, busy
from nearkin.serving.forms import read_form
from nearkin.serving.limits import Limits


class Buffers:
    """How many bytes of uploads all requests hold together.

    Args:
        limits: ``upload_bytes`` of one request, ``buffered_bytes`` of all, ``seconds`` for one to arrive.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._held = 0

    @asynccontextmanager
    async def body(self, request: Request) -> AsyncIterator[bytes]:
        """The whole body of a request, counted as long as the context lasts.

        Raises:
            RequestError: It is too large (413), too slow (408), or all bodies together are (503).
        """
        self._check_announced(request)
        held = 0
        try:
            parts = []
            with anyio.move_on_after(self._limits.seconds) as scope:
                async for part in request.stream():
                    held += len(part)
                    self._held += len(part)
                    if held > self._limits.upload_bytes:
                        raise self._too_large()
                    if self._held > self._limits.buffered_bytes:
                        raise busy()
                    parts.append(part)
            if scope.cancelled_caught:
                raise RequestError(
                    408, "too_slow", f"the upload did not arrive within {self._limits.seconds:g} seconds"
                )
            yield b"".join(parts)
        except ClientDisconnect:
            raise RequestError(400, "gone", "the client went away during the upload") from None
        finally:
            self._held -= held

    def _check_announced(self, request: Request) -> None:
        announced = request.headers.get("content-length", "0")
        if not announced.isdecimal():
            raise RequestError(400, "bad_request", "the header Content-Length is not a number")
        if int(announced[:20]) > self._limits.upload_bytes:
            raise self._too_large()

    def _too_large(self) -> RequestError:
        return RequestError(
            413,
            "too_large",
            f"the upload is larger than {self._limits.upload_bytes:,} bytes: make the picture smaller",
        )


def content_type(request: Request) -> str:
    """What the client says that the body is, without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def files(request: Request, body: bytes, names: tuple[str, ...]) -> list[bytes]:
    """The files of a form that have these names, in their order.

    Raises:
        RequestError: The form cannot be read, or a file is missing.
    """
    if content_type(request) != "multipart/form-data":
        raise RequestError(
            415, "not_a_form", f"send multipart/form-data with the files {' and '.join(names)}"
        )
    form = read_form(request.headers["content-type"], body)
    for name in names:
        if name not in form:
            raise RequestError(400, "no_file", f"the form has no file named {name}")
    return [form[name] for name in names]


def text_of(body: bytes, limits: Limits) -> str:
    """The text of a JSON body ``{"text": "..."}``.

    Raises:
        RequestError: It is something else, or too long.
    """
    try:
        values = json.loads(body)
    except (ValueError, RecursionError):
        raise RequestError(400, "bad_json", "the body is not JSON that can be read") from None
    text = values.get("text") if isinstance(values, dict) else None
    if not isinstance(text, str) or not text.strip():
        raise RequestError(422, "no_text", 'the body must be {"text": "what to search for"}')
    if len(text) > limits.text_characters:
        raise RequestError(
            413, "too_large", f"the text is longer than {limits.text_characters:,} characters: shorten it"
        )
    return text
