"""Start a server: the Python twin of ``nearkin serve``."""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import uvicorn

from nearkin.serving.app import create_app
from nearkin.serving.keys import ApiKey
from nearkin.serving.limits import Limits
from nearkin.serving.pictures import silence_bomb_warnings

if TYPE_CHECKING:
    from nearkin.index import Index

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def serve(
    paths: Sequence[str | os.PathLike[str]],
    *,
    host: str = "127.0.0.1",
    port: int = 8765,
    key: ApiKey | None = None,
    limits: Limits | None = None,
    allow_hosts: Sequence[str] = (),
    without_key: bool = False,
    ready: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve indexes over HTTP until the process is told to stop; requests that run are answered first.

    Args:
        paths: The folders of one index or several, or addresses on servers, each with a name of its own.
        host: The address to listen on; one that others can reach needs a key.
        port: The port to listen on; 0 is any that is free.
        key: That requests need.
        limits: Of a request, and of all together.
        allow_hosts: Further names under which the server may be called without a key, such as that of a
            reverse proxy.
        without_key: Listen on an address that others can reach without a key, all the same.
        ready: Told the page's address once the server answers.

    Raises:
        ValueError: Two indexes have one name, or others could reach a server without a key.
        OSError: The port is taken, or the address is not one of this machine.
    """
    check_reachable(host, key, without_key=without_key)
    with _listen(host, port) as listening, suppress(KeyboardInterrupt):  # raised when everything has ended
        show_requests()
        silence_bomb_warnings()
        hosts = () if without_key and not is_loopback(host) else (*_LOOPBACK, host, *allow_hosts)
        limits = limits or Limits()
        app = create_app(open_indexes(paths), key=key, limits=limits, hosts=hosts)
        settings = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_graceful_shutdown=int(limits.seconds) + 5,
        )
        _Server(settings, ready).run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise OSError(
            f"cannot listen on {host}, port {port}: {(error.strerror or str(error)).lower()}; choose another "
            "with --host or --port"
        ) from None


class _Server(uvicorn.Server):
    """uvicorn's server, which says when it answers and under which address."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[str], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[Any] | None = None) -> None:
        await super().startup(sockets)
        if self.started and sockets:
            host, port = sockets[0].getsockname()[:2]
            self._ready(f"http://{f'[{host}]' if ':' in host else host}:{port}/")


def open_indexes(paths: Sequence[str | os.PathLike[str]]) -> Mapping[str, Index]:
    """Open indexes for reading, by the names that their folders or addresses have.

    Raises:
        ValueError: There is none, or two have one name.
    """
    # What is served may be another kind of index.
    from nearkin.index import Index  # noqa: PLC0415
    from nearkin.index.stores import name_of  # noqa: PLC0415

    if not paths:
        raise ValueError("there is nothing to serve: name an index")
    found: dict[str, Index] = {}
    for path in paths:
        name = name_of(path)
        if name in found:
            raise ValueError(f"two indexes are called {name}: rename one of the folders")
        found[name] = Index.open(path)
    return found


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("0.0.0.0"), is_loopback("example.com")
    (True, True, False, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_reachable(host: str, key: ApiKey | None, *, without_key: bool) -> None:
    """Refuse to show an index to others by mistake.

    Raises:
        ValueError: Others can reach the address, there is no key, and nobody insists.
    """
    if key is None and not is_loopback(host) and not without_key:
        raise ValueError(
            f"others can reach {host}: set NEARKIN_API_KEY or --api-key-file, or insist with --without-key"
        )


def show_requests() -> None:
    """One line per request and per fault on standard error."""
    logger = logging.getLogger("nearkin.serving")
    if not logger.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
