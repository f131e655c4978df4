"""The web page: a few files of the package, read once; no other file can be asked for."""

from __future__ import annotations

import hashlib
from importlib.resources import files

from fastapi import FastAPI, Request, Response

from nearkin.serving.errors import RequestError

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


def add_to(app: FastAPI) -> None:
    """Serve the page at ``/`` and its parts below ``/page/``."""
    parts = {
        part.name: (part.read_bytes(), _TYPES[part.name.rpartition(".")[2]])
        for part in (files("nearkin.serving") / "web").iterdir()
        if part.name.rpartition(".")[2] in _TYPES
    }

    @app.get("/", include_in_schema=False)
    async def start(request: Request) -> Response:
        return _part(request, *parts["index.html"])

    @app.get("/page/{name}", include_in_schema=False)
    async def part(request: Request, name: str) -> Response:
        if name not in parts:
            raise RequestError(404, "no_file", "there is nothing at this address")
        return _part(request, *parts[name])


def _part(request: Request, content: bytes, kind: str) -> Response:
    tag = f'"{hashlib.sha256(content).hexdigest()[:24]}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}  # asked again, and seldom sent again
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=kind, headers=headers)
