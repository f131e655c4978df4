"""What every request passes: host, key, number at a time, time limit; and what every answer gets."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Collection
from typing import Any

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nearkin.serving.errors import RequestError, busy
from nearkin.serving.keys import ApiKey
from nearkin.serving.limits import Limits
from nearkin.serving.metrics import Metrics

access = logging.getLogger("nearkin.serving.access")
faults = logging.getLogger("nearkin.serving")

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
}
_OPEN = ("/health", "/api/session")  # without a key; so is the page itself, which asks for it
_SPARE = 5.0  # seconds that an answer has beyond the limit of its body


class Gate:
    """The outermost layer of the application.

    Args:
        app: What answers.
        key: Which requests must have, if there is one.
        hosts: Names under which the server may be called where there is no key: a web page elsewhere whose
            name points to this machine could read the answers otherwise. Empty: any.
        limits: ``waiting`` and ``seconds`` are kept here.
        metrics: Told about every request.
    """

    def __init__(
        self, app: ASGIApp, *, key: ApiKey | None, hosts: Collection[str], limits: Limits, metrics: Metrics
    ) -> None:
        self._app = app
        self._key = key
        self._hosts = frozenset(host.lower() for host in hosts)
        self._limits = limits
        self._metrics = metrics
        self._running = 0
        metrics.gauge("nearkin_requests_running", "Requests that are worked on.", lambda: {(): self._running})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = _Answer(send)
        started = time.perf_counter()
        self._running += 1
        try:
            await self._guarded(scope, receive, answer)
        finally:
            self._running -= 1
            self._tell(scope, answer, time.perf_counter() - started)

    async def _guarded(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        try:
            self._check(scope)
            with anyio.move_on_after(self._limits.seconds + _SPARE) as time_limit:
                await self._app(scope, receive, answer)
            if time_limit.cancelled_caught:
                await answer.refuse(_too_long(self._limits))
        except RequestError as error:
            await answer.refuse(error)
        except Exception as error:
            faults.error("a request failed: %s", type(error).__name__, exc_info=error)
            await answer.refuse(RequestError(500, "internal", "the server failed to answer: see its log"))

    def _check(self, scope: Scope) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if self._running > self._limits.waiting and scope["path"] != "/health":
            raise busy()
        if self._key is None:
            self._check_host(headers.get("host", ""))
        elif not _is_open(scope["path"]) and not self._key.admits(headers):
            raise RequestError(
                401,
                "no_key",
                "this server needs its API key: send Authorization: Bearer KEY",
                {"WWW-Authenticate": "Bearer"},
            )

    def _check_host(self, header: str) -> None:
        if self._hosts and _name(header) not in self._hosts:
            raise RequestError(
                421,
                "unknown_host",
                f"the server does not answer as {header[:100]!r}: start it with --allow-host or an API key",
            )

    def _tell(self, scope: Scope, answer: _Answer, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", None) or "other"
        self._metrics.seconds.observe(
            seconds, route=route, method=_method(scope["method"]), status=str(answer.status)
        )
        access.info(
            "%s %s %d %.1f ms %d bytes",
            _method(scope["method"]),
            route,
            answer.status,
            1e3 * seconds,
            answer.sent,
        )


class _Answer:
    """Sends an answer once, with the headers that all have, and remembers what it was."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 499  # unless something is sent: the client went away
        self.sent = 0
        self._begun = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._begun = True
            self.status = message["status"]
            own = {name.lower() for name, _ in message.get("headers", ())}
            more = [
                (name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in own
            ]
            message = {**message, "headers": [*message.get("headers", ()), *more]}
        elif message["type"] == "http.response.body":
            self.sent += len(message.get("body", b""))
        await self._send(message)

    async def refuse(self, error: RequestError) -> None:
        """Send an error, unless an answer has begun already."""
        if self._begun:
            return
        body = json.dumps(error.body(), ensure_ascii=False).encode()
        headers: list[tuple[bytes, bytes]] = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"cache-control", b"no-store"),
            *((name.lower().encode(), value.encode()) for name, value in error.headers.items()),
        ]
        start: dict[str, Any] = {"type": "http.response.start", "status": error.status, "headers": headers}
        await self(start)
        await self({"type": "http.response.body", "body": body})


def _is_open(path: str) -> bool:
    return path in _OPEN or path == "/" or path.startswith("/page/")


def _name(host: str) -> str:
    """A host without its port.

    >>> _name("localhost:8765"), _name("[::1]:80"), _name("Shop.example")
    ('localhost', '::1', 'shop.example')
    """
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _method(method: str) -> str:
    """A method as it is logged: clients can invent them."""
    return method if method in {"GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"} else "OTHER"


def _too_long(limits: Limits) -> RequestError:
    return RequestError(504, "too_slow", f"the answer took longer than {limits.seconds:g} seconds")
