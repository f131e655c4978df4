"""Connections to PostgreSQL, and transactions that outlive them.

Where the connection is lost, another one is made, for as long as the address's ``patience``, and the
transaction is done once more. Every transaction that writes leaves a note in the database: whether a COMMIT
that was not answered took place is looked up there. PostgreSQL's own numbers of transactions would not do:
the number of one that is lost in a crash may be given to another.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any, TypeVar
from uuid import UUID, uuid4

from nearkin.extras import require
from nearkin.index.address import Address
from nearkin.index.patience import attempts
from nearkin.index.server_store import first_line, unreachable

_LOST = ("08", "57P01", "57P02", "57P03", "40001", "40P01")
"""SQLSTATEs after which the same transaction may well succeed: no connection, a server that stops or starts,
and transactions that got into each other's way."""

R = TypeVar("R")


class PostgresServer:
    """Connections, one per thread, and transactions that outlive them.

    Attributes:
        patient: Whether to wait for a server that is gone: not before it has answered once.
    """

    def __init__(self, address: Address) -> None:
        self._psycopg = package("psycopg")
        self._address = address
        self._own = threading.local()
        self._all: list[Any] = []
        self._lock = threading.Lock()
        self.patient = False

    def transaction(self, work: Callable[[Any], R], *, alone_in: str | None = None) -> R:
        """Do some work in a transaction, again where the connection is lost.

        Args:
            work: Called with a connection.
            alone_in: The index to which no other process may write meanwhile.
        """
        token = uuid4()
        unsure: list[R] = []  # the result of a transaction whose COMMIT was not answered
        lost: Exception | None = None
        with self._told():
            for _ in attempts(self._address.patience if self.patient else 0.0):
                try:
                    connection = self._connection()
                    with connection.transaction():
                        if alone_in is not None:
                            _lock_index(connection, alone_in)
                            if unsure and _was_committed(connection, token):
                                return unsure[0]
                            _note_write(connection, token)
                        unsure.clear()
                        result = work(connection)
                        unsure.append(result)
                    return result
                except (self._psycopg.OperationalError, self._psycopg.InterfaceError) as error:  # noqa: PERF203
                    if not self._is_lost(error):
                        raise
                    lost = error
                    self._forget()
        raise unreachable("PostgreSQL", self._address, lost, waited=self.patient) from lost

    def close(self) -> None:
        """Close the connections of all threads."""
        with self._lock:
            for connection in self._all:
                connection.close()
            self._all.clear()
        self._own = threading.local()

    def _connection(self) -> Any:
        """This thread's connection."""
        connection = getattr(self._own, "connection", None)
        if connection is None:
            connection = _connect(self._psycopg, self._address)
            with self._lock:
                self._all.append(connection)
            self._own.connection = connection
        if not getattr(self._own, "knows_vectors", False):
            self._own.knows_vectors = _register_vectors(connection)
        return connection

    def _forget(self) -> None:
        connection = getattr(self._own, "connection", None)
        self._own.connection, self._own.knows_vectors = None, False
        if connection is not None:
            with suppress(Exception):
                connection.close()
            with self._lock, suppress(ValueError):
                self._all.remove(connection)

    def _is_lost(self, error: Any) -> bool:
        connection = getattr(self._own, "connection", None)
        state = getattr(error, "sqlstate", None)
        return connection is None or bool(connection.closed) or bool(state and state.startswith(_LOST))

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turn PostgreSQL's errors into sentences that name the place and what to do.

        Raises:
            PermissionError: The user may not do that.
            OSError: The server's disk is full.
            ValueError: It cannot hold what it was given.
        """
        errors, where = self._psycopg.errors, self._address.server
        try:
            yield
        except errors.InsufficientPrivilege as error:
            raise PermissionError(
                f"PostgreSQL at {where} does not allow that: {first_line(error)}"
            ) from error
        except errors.FeatureNotSupported as error:
            if "vector" not in str(error):
                raise
            raise ValueError(
                f"PostgreSQL at {where} has no pgvector: install the extension on the server, see "
                "https://github.com/pgvector/pgvector"
            ) from error
        except (errors.DiskFull, errors.OutOfMemory) as error:
            full = OSError(
                f"PostgreSQL at {where} has no space left ({first_line(error)}): everything that was "
                "reported as added is kept; make space and add the rest again"
            )
            full.errno = errno.ENOSPC
            raise full from error
        except self._psycopg.DataError as error:
            raise ValueError(f"PostgreSQL cannot hold what it was given: {first_line(error)}") from error


def package(module: str) -> ModuleType:
    """A package of the extra ``postgres``."""
    return require(module, extra="postgres", purpose="an index in PostgreSQL")


def _connect(psycopg: ModuleType, address: Address) -> Any:
    own = {key: value for key, value in address.options.items() if key != "patience"}
    told: dict[str, Any] = {
        "host": address.host,
        "port": address.port,
        "user": address.user,
        "dbname": address.database,
    }
    # What is not told comes from the environment, as libpq has it. A host that no longer answers is noticed.
    told = {"connect_timeout": 10, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3} | {
        key: value for key, value in told.items() if value
    }
    connection = psycopg.connect(**(told | own), application_name="nearkin", autocommit=True)
    connection.execute("SET jit = off")
    return connection


def _register_vectors(connection: Any) -> bool:
    """Teach a connection pgvector's types; whether the database has them."""
    there = connection.execute("SELECT to_regtype('vector') IS NOT NULL").fetchone()[0]
    if there:
        package("pgvector.psycopg").register_vector(connection)
    return bool(there)


def _lock_index(connection: Any, name: str) -> None:
    query = "SELECT 1 FROM nearkin.indexes WHERE name = %s FOR UPDATE"
    if connection.execute(query, [name]).fetchone() is None:
        raise ValueError(f"the index {name} is no longer there")


def _note_write(connection: Any, token: UUID) -> None:
    """Leave a note of a transaction, which is there when it was committed; older ones go."""
    connection.execute("DELETE FROM nearkin.writes WHERE at < now() - interval '1 day'")
    connection.execute("INSERT INTO nearkin.writes (token) VALUES (%s)", [token])


def _was_committed(connection: Any, token: UUID) -> bool:
    """Whether a transaction took place; called with the index locked, and so when the other has ended."""
    query = "SELECT 1 FROM nearkin.writes WHERE token = %s"
    return connection.execute(query, [token]).fetchone() is not None
