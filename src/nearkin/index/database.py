"""SQLite, as an index uses it: connections, filters as SQL, errors as sentences."""

from __future__ import annotations

import errno
import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from nearkin.index.filters import COLUMNS, Where, conditions

_PATIENCE = 120.0  # seconds that a writer waits for another
_ACCESS = ("mode=rw", "mode=ro", "mode=ro&immutable=1")
_NO_ACCESS = ("unable to open", "readonly")
_FULL = ("disk is full", "disk I/O error")


def connect(file: Path) -> sqlite3.Connection:
    """Open a database that exists, to write where that is allowed, to read where it is not."""
    for access in _ACCESS:
        database = sqlite3.connect(
            f"{file.absolute().as_uri()}?{access}",
            uri=True,
            timeout=_PATIENCE,
            isolation_level=None,
            check_same_thread=False,  # whoever closes the store closes the connections of all threads
        )
        try:
            database.execute("PRAGMA synchronous = FULL")
            database.execute("SELECT count(*) FROM sqlite_master").fetchone()
            return database
        except sqlite3.Error as error:
            database.close()
            if access == _ACCESS[-1] or not any(sign in str(error) for sign in _NO_ACCESS):
                raise
    raise AssertionError


@contextmanager
def connected(file: Path) -> Iterator[sqlite3.Connection]:
    """A database for the time of a block, made where there is none."""
    with closing(sqlite3.connect(file, timeout=_PATIENCE, isolation_level=None)) as database:
        yield database


@contextmanager
def report(file: Path) -> Iterator[None]:
    """Turn SQLite's errors into sentences that name the file and what to do.

    Raises:
        OSError: The disk is full, or another process keeps the index.
        ValueError: The file is damaged.
    """
    try:
        yield
    except sqlite3.OperationalError as error:
        told = str(error)
        if any(sign in told for sign in _FULL):
            raise _full(file, told) from error
        if "locked" in told:
            raise TimeoutError(f"another process has been writing to {file.parent} for too long") from error
        if "readonly" in told:
            raise PermissionError(f"{file} cannot be written to: {told}") from error
        raise ValueError(f"{file} cannot be read: {told}") from error
    except sqlite3.DatabaseError as error:
        raise ValueError(f"{file} is damaged ({error}): build the index again") from error
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise _full(file, error.strerror or "") from error


def _full(file: Path, told: str) -> OSError:
    sentence = (
        f"there is no space left for {file.parent} ({told}): everything that was reported as added is kept; "
        "make space and add the rest again"
    )
    full = OSError(sentence)
    full.errno = errno.ENOSPC
    return full


def marks(values: Sequence[Any]) -> str:
    """As many question marks as there are values.

    >>> marks([1, 2, 3])
    '?,?,?'
    """
    return ",".join("?" * len(values))


def _path_of(key: str) -> str:
    """SQLite's path to a key of the metadata, escaped as the metadata are."""
    return f"$.{json.dumps(key, ensure_ascii=False)}"


def filter_to_sql(where: Where | None) -> tuple[str, list[Any]]:
    """A filter as the end of a statement, and its values.

    >>> filter_to_sql({"label": "cat"})
    ('WHERE (label IS ?)', ['cat'])
    """
    parts: list[str] = []
    values: list[Any] = []
    for key, operator, wanted in conditions(where):
        column, path = (key, []) if key in COLUMNS else ("json_extract(metadata, ?)", [_path_of(key)])
        if operator == "=":
            parts.append(" OR ".join([f"{column} IS ?"] * len(wanted)) or "0")
        elif operator == "!=":
            parts.append(" AND ".join([f"{column} IS NOT ?"] * len(wanted)) or "1")
        else:  # SQLite takes every text for larger than every number
            kinds = "('text')" if isinstance(wanted, str) else "('integer', 'real')"
            parts.append(f"typeof({column}) IN {kinds} AND {column} {operator} ?")
            values += [*path, *path, wanted]
            continue
        for value in wanted:
            values += [*path, value]
    return ("WHERE " + " AND ".join(f"({part})" for part in parts) if parts else ""), values
