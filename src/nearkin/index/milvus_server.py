"""A connection to Milvus, and calls that outlive it.

Where the connection is lost, the same call is made again, for as long as the address's ``patience``: only
what may be done twice is called so.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from nearkin.extras import require
from nearkin.index.address import Address
from nearkin.index.patience import attempts
from nearkin.index.server_store import first_line, unreachable

_FINAL = re.compile(
    "auth|permission|privilege|denied|cannot parse|invalid|illegal|mismatch|already exist|not support",
    re.IGNORECASE,
)
"""What Milvus says where trying again would not help, unless it also says that the server is gone."""
_GONE = re.compile("unavailable|connect|timeout|deadline|not ready", re.IGNORECASE)

R = TypeVar("R")


class MilvusServer:
    """A connection, and calls that outlive it.

    Attributes:
        patient: Whether to wait for a server that is gone: not before it has answered once.
    """

    def __init__(self, address: Address) -> None:
        self._pymilvus = package("pymilvus")
        # It prints a traceback of pages for every call that is then made again; what ends one is told here.
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
        self._address = address
        self._client: Any = None
        self._lock = threading.Lock()
        self.patient = False

    def call(self, work: Callable[[Any], R]) -> R:
        """Do something that may be done twice, again where the connection is lost."""
        lost: Exception | None = None
        for _ in attempts(self._address.patience if self.patient else 0.0):
            try:
                return work(self._connected())
            except self._pymilvus.MilvusException as error:  # noqa: PERF203
                if _FINAL.search(str(error)) and not _GONE.search(str(error)):
                    raise _told(error, self._address) from error
                lost = error
        if lost is not None and not _GONE.search(str(lost)):
            raise _told(lost, self._address) from lost
        raise unreachable("Milvus", self._address, lost, waited=self.patient) from lost

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            if self._client is not None:
                self._client.close()
            self._client = None

    def _connected(self) -> Any:
        with self._lock:
            if self._client is None:
                secure = self._address.options.get("secure", "false").lower() in ("true", "1", "yes")
                host = f"[{self._address.host}]" if ":" in self._address.host else self._address.host
                place = f"{host or 'localhost'}:{self._address.port or 19530}"
                self._client = self._pymilvus.MilvusClient(
                    uri=f"{'https' if secure else 'http'}://{place}",
                    db_name=self._address.database,
                    token=_token(),
                    timeout=10,
                    dedicated=True,
                )
            return self._client


def package(module: str) -> ModuleType:
    """A package of the extra ``milvus``."""
    return require(module, extra="milvus", purpose="an index in Milvus")


def _token() -> str:
    """The secret that lets the user in; empty where the server asks for none."""
    file = os.environ.get("MILVUS_TOKEN_FILE")
    return Path(file).read_text(encoding="utf-8").strip() if file else os.environ.get("MILVUS_TOKEN", "")


def _told(error: Exception, address: Address) -> Exception:
    """An error as a sentence that names the place."""
    told = first_line(error)
    if re.search(r"auth|permission|privilege|denied", told, re.IGNORECASE):
        return PermissionError(f"Milvus at {address.server} does not allow that: {told}")
    return ValueError(f"Milvus at {address.server} refuses: {told}")
