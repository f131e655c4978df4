"""Where an index lives on a server: ``postgresql://host/database/birds`` or ``milvus://host/birds``.

An address never holds a password: addresses are shown, logged and kept in shell histories.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

Scheme = Literal["postgresql", "milvus"]

_SCHEMES: dict[str, Scheme] = {"postgresql": "postgresql", "postgres": "postgresql", "milvus": "milvus"}
_FORMS = "postgresql://host/database/name or milvus://host/name"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,47}")
_BOTH = ("patience",)
_OPTIONS: dict[Scheme, tuple[str, ...]] = {
    "postgresql": (
        "connect_timeout",
        "host",
        "passfile",
        "port",
        "service",
        "sslcert",
        "sslkey",
        "sslmode",
        "sslrootcert",
        "target_session_attrs",
        *_BOTH,
    ),
    "milvus": ("search", "secure", *_BOTH),
}
_REMEDIES: dict[Scheme, str] = {
    "postgresql": "set PGPASSWORD, or use a passfile (~/.pgpass, PGPASSFILE or ?passfile=)",
    "milvus": "set MILVUS_TOKEN to user:password or an API key, or MILVUS_TOKEN_FILE to a file that holds it",
}
_PATIENCE = 180.0


@dataclass(frozen=True)
class Address:
    """An index on a server, without any secret.

    Attributes:
        scheme: Which kind of server.
        name: Of the index, and of its table or collection there.
        host: Of the server; empty where the environment says it (``PGHOST``) or ``?host=`` does.
        port: ``None`` is the usual one.
        user: ``None`` is the one of the environment.
        database: Empty is the usual one.
        options: What follows the question mark.
    """

    scheme: Scheme
    name: str
    host: str = ""
    port: int | None = None
    user: str | None = None
    database: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def patience(self) -> float:
        """Seconds that work which has begun waits for a server that is gone to come back."""
        return float(self.options.get("patience", _PATIENCE))

    @property
    def server(self) -> str:
        """The server and the database, for messages."""
        return str(self).rpartition(f"/{self.name}")[0]

    def __str__(self) -> str:
        user = "" if self.user is None else f"{self.user}@"
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port is None else f":{self.port}"
        database = f"/{self.database}" if self.database else ""
        options = f"?{urlencode(self.options, safe='/')}" if self.options else ""
        return f"{self.scheme}://{user}{host}{port}{database}/{self.name}{options}"


def is_address(place: object) -> bool:
    """Whether a place is an address, and not a folder.

    >>> is_address("postgresql://localhost/shop/birds"), is_address("birds.index")
    (True, False)
    """
    return isinstance(place, str) and re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", place) is not None


def parse_address(text: str | os.PathLike[str]) -> Address:
    """Take an address apart.

    >>> parse_address("postgresql://anna@db.example.com:5433/shop/birds?sslmode=require").database
    'shop'
    >>> parse_address("milvus://localhost:19530/birds").name
    'birds'

    Raises:
        ValueError: It is none, it names no index, or it holds a password, which is not repeated then.
    """
    scheme, _, rest = str(text).partition("://")
    if scheme.lower() not in _SCHEMES:
        raise ValueError(f"{scheme[:20]}:// is no kind of index: give a folder, {_FORMS}")
    kind = _SCHEMES[scheme.lower()]
    try:
        parts = urlsplit(f"{kind}://{rest}")
        port, password = parts.port, parts.password
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:  # what urllib says may repeat a password
        raise ValueError(f"this is no address of an index: write {_FORMS}") from None
    _refuse_password(kind, password, options)
    _check_options(kind, options)
    folders = [unquote(part) for part in parts.path.strip("/").split("/") if part]
    least, most = (2, 2) if kind == "postgresql" else (1, 2)
    if not least <= len(folders) <= most or parts.fragment:
        raise ValueError(f"the address names no index: write {_FORMS}")
    name = folders.pop()
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name[:60]!r} cannot be the name of an index on a server: use up to 48 letters, digits and _, "
            "and no digit first"
        )
    user = unquote(parts.username) if parts.username else None
    if kind == "milvus" and user is not None:
        raise ValueError(f"milvus:// takes no user: {_REMEDIES['milvus']}")
    return Address(kind, name, parts.hostname or "", port, user, folders[0] if folders else "", options)


def as_address(given: str | Address) -> Address:
    """An address as it is, or a text taken apart."""
    return given if isinstance(given, Address) else parse_address(given)


def _refuse_password(kind: Scheme, password: str | None, options: Mapping[str, str]) -> None:
    secret = [key for key in options if key != "passfile" and re.search("pass|token|secret", key.lower())]
    if password or secret:
        raise ValueError(
            "the address holds a password, which would be shown and kept where it should not be: leave it "
            f"out and {_REMEDIES[kind]}"
        )


def _check_options(kind: Scheme, options: Mapping[str, str]) -> None:
    for key in options:
        if key not in _OPTIONS[kind]:
            known = ", ".join(_OPTIONS[kind])
            raise ValueError(f"{kind}:// has no option {key[:40]!r}: it has {known}")
    try:
        seconds = float(options.get("patience", _PATIENCE))
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise ValueError("patience= must be a number of seconds, such as patience=60")
