"""The store in a folder: items in SQLite, vectors in files that only grow.

The file ``index.sqlite`` has three tables. ``about`` holds what the index is, as JSON under a key each.
``items`` holds ``id`` (never given twice), ``row`` (of the vector), ``name`` (of one item only), ``label``,
``metadata`` (JSON), ``path``, ``content`` (SHA-256 of what was embedded) and ``checksum`` (CRC-32 of the
vector). ``removed`` holds the rows whose items are gone. ``vectors-N.float32`` holds the vectors, row by row,
N being the key ``generation`` of ``about``; ``vectors-N.int8`` the same as bytes, where that is the
precision.

Vectors are on disk before the transaction that counts them: killed at any moment, the store has all that was
reported as added, and bytes behind the last row belong to nobody.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import numpy as np
import torch
from torch import Tensor

from nearkin.index.arrays import Codes, Matrix, Rows
from nearkin.index.checking import change_of, checked_queries, checked_vectors
from nearkin.index.database import connect, connected, filter_to_sql, marks, report
from nearkin.index.filters import Where
from nearkin.index.graph import Graph
from nearkin.index.items import Item, NewItem
from nearkin.index.scan import lengths_of, search_float32, search_int8, to_codes
from nearkin.index.sources import Progress
from nearkin.index.store import Change, Nearest
from nearkin.index.vector_file import VectorFile

Precision = Literal["float32", "int8"]
FORMAT = 1
DATABASE = "index.sqlite"
MODEL = "model"
"""The folder with the model."""
_SCHEMA = (
    "CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    """CREATE TABLE items (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        row INTEGER NOT NULL UNIQUE,
        name TEXT NOT NULL UNIQUE,
        label TEXT,
        metadata TEXT NOT NULL,
        path TEXT,
        content TEXT NOT NULL,
        checksum INTEGER NOT NULL
    )""",
    "CREATE INDEX items_by_content ON items (content)",
    "CREATE INDEX items_by_label ON items (label, row)",
    "CREATE TABLE removed (row INTEGER PRIMARY KEY)",
)
_COLUMNS = "id, name, label, metadata, path, content"
_AT_A_TIME = 500  # values in one statement
_MANY_ROWS = 2000  # whose ids are found faster by reading those of all
_FEWEST_REMOVED = 1000  # before the files are written anew
_MOST_EXCLUDED = 256  # items that an approximate search can leave out of what it found
_TRIES = 3

T = TypeVar("T")


@dataclass(frozen=True)
class _Snapshot:
    """What a reader sees, whatever others write in the meantime."""

    database: sqlite3.Connection
    version: int
    generation: int
    matrix: Matrix
    codes: Codes | None


class EmbeddedStore:
    """Items and vectors in a folder; see :class:`~nearkin.index.store.Store` and this module.

    Args:
        folder: One that :meth:`create` made.

    Raises:
        ValueError: There is no index, a damaged one, or one of a newer format.
    """

    at_a_time = 128

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = self.place = Path(folder)
        self._file = self.folder / DATABASE
        if not self._file.is_file():
            raise ValueError(
                f"{self.folder} is no index: it has no {DATABASE}; "
                "nearkin index MODEL FOLDER -o NAME.index makes one"
            )
        self._own = threading.local()
        self._connections: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        self._files: dict[str, VectorFile] = {}
        self._blocked: tuple[int, Rows] | None = None
        self._ids: tuple[int, Tensor] = (-1, torch.empty(0, dtype=torch.long))
        self._lengths: tuple[int, Matrix] = (-1, np.empty(0, dtype=np.float32))
        with report(self._file):
            told = dict(self._database().execute("SELECT key, value FROM about"))
        self._about = {key: json.loads(value) for key, value in told.items()}
        if self._about.get("format") != FORMAT:
            self.close()
            raise ValueError(
                f"{self.folder} is an index of format {self._about.get('format')}, and this nearkin reads "
                f"format {FORMAT}: use a newer nearkin, or build the index again"
            )
        self._graph = Graph(self.folder, self.dimension)
        with self._reading():
            pass  # says at once where vectors are missing

    @classmethod
    def create(
        cls,
        folder: str | os.PathLike[str],
        *,
        dimension: int,
        precision: Precision = "float32",
        about: Mapping[str, Any] | None = None,
    ) -> EmbeddedStore:
        """Make an empty store.

        Args:
            folder: A folder that holds no store, or none.
            dimension: D, the size of a vector.
            precision: What a search reads: the vectors, or a quarter of that (int8), with candidates
                compared in float32 afterwards.
            about: Anything that :attr:`about` shall tell, as plain values.

        Raises:
            FileExistsError: There is one.
        """
        if precision not in get_args(Precision):
            raise ValueError(f'precision={precision!r} must be "float32" or "int8"')
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        own = {"format": FORMAT, "dimension": dimension, "precision": precision}
        told = {**(about or {}), **own, "generation": 1, "rows": 0, "version": 0}
        with report(path / DATABASE), connected(path / DATABASE) as database:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("BEGIN EXCLUSIVE")
            if database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                raise FileExistsError(f"{path} holds an index already")
            for statement in _SCHEMA:
                database.execute(statement)
            rows = [(key, json.dumps(value)) for key, value in told.items()]
            database.executemany("INSERT INTO about VALUES (?, ?)", rows)
            database.execute("COMMIT")
        return cls(path)

    @staticmethod
    def exists(folder: str | os.PathLike[str]) -> bool:
        """Whether a folder holds a store; one whose making was broken off is none."""
        file = Path(folder) / DATABASE
        if not file.is_file():
            return False
        with report(file), closing(connect(file)) as database:
            return bool(database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])

    @property
    def about(self) -> Mapping[str, Any]:
        """What :meth:`create` was told, and format, dimension and precision."""
        return self._about

    @property
    def dimension(self) -> int:
        """D, the size of a vector."""
        return int(self._about["dimension"])

    @property
    def precision(self) -> Precision:
        """What a search reads."""
        precision: Precision = self._about["precision"]
        return precision

    # Writing.

    def add(self, items: Sequence[NewItem], vectors: Tensor) -> list[Change]:
        """Add items with unit vectors ``(n, D)``: all of them, for good, or none."""
        matrix = checked_vectors(items, vectors, self.dimension)
        with self._writing() as database:
            known = {item.name: item.content for item in _by_names(database, [item.name for item in items])}
            changes: list[Change] = [change_of(item, known) for item in items]
            kept = [place for place, change in enumerate(changes) if change != "known"]
            if not kept:
                return changes
            first = _number(database, "rows")
            self._write(_number(database, "generation"), first, matrix[kept])
            rows: dict[Change, list[tuple[Any, ...]]] = {"new": [], "changed": []}
            for row, place in enumerate(kept, start=first):
                checksum = zlib.crc32(matrix[place].tobytes())
                item = items[place]
                rows[changes[place]].append((row, *_values(item), item.content, checksum, item.name))
            database.executemany(
                "INSERT INTO removed SELECT row FROM items WHERE name = ?",
                [row[-1:] for row in rows["changed"]],
            )
            database.executemany(
                "UPDATE items SET row=?, label=?, metadata=?, path=?, content=?, checksum=? WHERE name=?",
                rows["changed"],
            )
            database.executemany(
                "INSERT INTO items (row, label, metadata, path, content, checksum, name) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                rows["new"],
            )
            _set(database, rows=first + len(kept))
        return changes

    def update(self, items: Sequence[Item]) -> None:
        """Change label, metadata and path of items, which are found by their ids."""
        if not items:
            return
        with self._writing() as database:
            database.executemany(
                "UPDATE items SET label=?, metadata=?, path=? WHERE id=?",
                [(*_values(item), item.id) for item in items],
            )
            _set(database)

    def remove(self, ids: Collection[int]) -> int:
        """Remove items; the files are written anew once a quarter of their rows is nobody's."""
        removed = 0
        with self._writing() as database:
            for some in _batches([int(one) for one in ids]):
                which = f"WHERE id IN ({marks(some)})"
                database.execute(f"INSERT INTO removed SELECT row FROM items {which}", some)  # noqa: S608
                removed += database.execute(f"DELETE FROM items {which}", some).rowcount  # noqa: S608
            if removed:
                _set(database)
            gone = database.execute("SELECT count(*) FROM removed").fetchone()[0]
            if gone >= max(_FEWEST_REMOVED, _number(database, "rows") // 4):
                self._write_anew(database)
        self._delete_old_files()
        return removed

    def _write(self, generation: int, first: int, matrix: Matrix) -> None:
        self._vector_file("float32", generation).write(first, matrix)
        if self.precision == "int8":
            self._vector_file("int8", generation).write(first, to_codes(matrix))

    def _write_anew(self, database: sqlite3.Connection) -> None:
        """Vectors without those of removed items, in new files: readers may still be in the old ones."""
        generation = _number(database, "generation")
        old = _integers(database.execute("SELECT row FROM items ORDER BY row"))
        matrix = self._vector_file("float32", generation).read(_number(database, "rows"))
        for start in range(0, len(old), 1 << 14):
            self._write(generation + 1, start, matrix[old[start : start + (1 << 14)]])
        # Rows only move down, in order, so that no row is ever another item's.
        database.executemany("UPDATE items SET row=? WHERE row=?", list(enumerate(old.tolist())))
        database.execute("DELETE FROM removed")
        _set(database, generation=generation + 1, rows=len(old))

    def _delete_old_files(self) -> None:
        with self._reading() as now:
            generation = now.generation
        for path in self.folder.glob("vectors-*.*"):
            number = path.stem.partition("-")[2]
            if number.isdecimal() and int(number) < generation:
                path.unlink(missing_ok=True)

    # Reading.

    def search(
        self,
        vectors: Tensor,
        k: int,
        *,
        where: Where | None = None,
        exclude: Collection[int] = (),
        approximate: bool = False,
    ) -> Nearest:
        """The ``k`` most similar items for every row of ``vectors`` ``(n, D)``.

        Approximate search is for the whole: under a filter, or with many items excluded, it is exact.
        """
        queries = checked_queries(vectors, k, self.dimension)
        with self._reading() as now:
            removed, excluded = self._removed(now), _rows_of(now.database, exclude)
            blocked = np.union1d(removed, excluded) if len(excluded) else removed
            allowed = None if where is None else _matching(now.database, where)
            if approximate and allowed is None and len(excluded) <= _MOST_EXCLUDED:
                found = self._graph.search(
                    now.matrix, now.generation, queries, k, removed=removed, excluded=excluded
                )
            elif now.codes is None:
                found = search_float32(now.matrix, queries, k, allowed=allowed, blocked=blocked)
            else:
                lengths = self._code_lengths(now.generation, now.codes)
                found = search_int8(
                    now.codes, lengths, now.matrix, queries, k, allowed=allowed, blocked=blocked
                )
            ids = self._ids_of(now, found.rows)
        return Nearest(ids, found.similarities.clamp(max=1.0))

    def make_graph(self, progress: Progress | None = None) -> None:
        """Make what approximate search needs, or add to it what is new; a search does so as well."""
        with self._reading() as now:
            self._graph.make(now.matrix, now.generation, removed=self._removed(now), progress=progress)

    def count(self, where: Where | None = None) -> int:
        """How many items there are."""
        condition, values = filter_to_sql(where)
        with self._reading() as now:
            counted = now.database.execute(f"SELECT count(*) FROM items {condition}", values)  # noqa: S608
            return int(counted.fetchone()[0])

    def labels(self) -> dict[str, int]:
        """Every label and how many items have it, in the order of the labels."""
        counted = "SELECT label, count(*) FROM items WHERE label IS NOT NULL GROUP BY label ORDER BY label"
        with self._reading() as now:
            return dict(now.database.execute(counted))

    def items(self, where: Where | None = None, *, offset: int = 0, limit: int | None = None) -> list[Item]:
        """Items in the order of their ids."""
        condition, values = filter_to_sql(where)
        query = f"SELECT {_COLUMNS} FROM items {condition} ORDER BY id LIMIT ? OFFSET ?"  # noqa: S608
        with self._reading() as now:
            found = now.database.execute(query, [*values, -1 if limit is None else limit, offset])
            return [_item(row) for row in found]

    def ids(self, where: Where | None = None) -> Tensor:
        """The ids of :meth:`items`, int64 ``(n,)``, without the rest."""
        condition, values = filter_to_sql(where)
        with self._reading() as now:
            found = now.database.execute(f"SELECT id FROM items {condition} ORDER BY id", values)  # noqa: S608
            return torch.from_numpy(_integers(found))

    def by_id(self, ids: Sequence[int]) -> dict[int, Item]:
        """Those of the ids that are there, with their items."""
        with self._reading() as now:
            return {item.id: item for item in _selected(now.database, "id", [int(one) for one in ids])}

    def by_name(self, names: Sequence[str]) -> dict[str, Item]:
        """Those of the names that are there, with their items."""
        with self._reading() as now:
            return {item.name: item for item in _by_names(now.database, names)}

    def by_content(self, contents: Sequence[str]) -> dict[str, int]:
        """Those of the contents that are there, with the id of an item that has it."""
        found: dict[str, int] = {}
        with self._reading() as now:
            for some in _batches(list(contents)):
                query = f"SELECT content, id FROM items WHERE content IN ({marks(some)})"  # noqa: S608
                found |= dict(now.database.execute(query, some))
        return found

    def vectors(self, ids: Sequence[int] | Tensor) -> Tensor:
        """Unit rows ``(n, D)``, float32, of the items of these ids."""
        wanted = ids.tolist() if isinstance(ids, Tensor) else [int(one) for one in ids]
        with self._reading() as now:
            rows: dict[int, int] = {}
            for some in _batches(wanted):
                query = f"SELECT id, row FROM items WHERE id IN ({marks(some)})"  # noqa: S608
                rows |= dict(now.database.execute(query, some))
            for one in wanted:
                if one not in rows:
                    raise KeyError(f"there is no item {one} in this index")
            return torch.from_numpy(now.matrix[[rows[one] for one in wanted]])

    def model_folder(self) -> Path:
        """A folder that holds the model."""
        return self.folder / MODEL

    def version(self) -> int:
        """A number that changes whenever items do."""
        with report(self._file):
            return _number(self._database(), "version")

    def damaged(self) -> list[str]:
        """The names of items whose vectors are not what was written; empty where all is well."""
        with self._reading() as now:
            rows = now.database.execute("SELECT row, checksum, name FROM items ORDER BY row")
            return [name for row, checksum, name in rows if zlib.crc32(now.matrix[row].tobytes()) != checksum]

    def close(self) -> None:
        """Let go of files and connections."""
        with self._lock:
            for connection in self._connections:
                connection.close()
            self._connections.clear()
            self._files.clear()
        self._own = threading.local()

    def _database(self) -> sqlite3.Connection:
        """This thread's connection."""
        connection: sqlite3.Connection | None = getattr(self._own, "connection", None)
        if connection is None:
            connection = connect(self._file)
            with self._lock:
                self._connections.append(connection)
            self._own.connection = connection
        return connection

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction, alone among all processes; what fails leaves nothing."""
        with report(self._file):
            database = self._database()
            database.execute("BEGIN IMMEDIATE")
            try:
                yield database
                database.execute("COMMIT")
            finally:
                if database.in_transaction:
                    with suppress(sqlite3.Error):  # the first error is the one to tell
                        database.execute("ROLLBACK")

    @contextmanager
    def _reading(self) -> Iterator[_Snapshot]:
        """One state of the store, for as long as the block takes."""
        with report(self._file):
            database = self._database()
            database.execute("BEGIN")
            try:
                yield self._snapshot(database)
            finally:
                if database.in_transaction:
                    database.execute("ROLLBACK")

    def _snapshot(self, database: sqlite3.Connection) -> _Snapshot:
        for _ in range(_TRIES):
            counted = {key: _number(database, key) for key in ("version", "generation", "rows")}
            try:
                matrix = self._read("float32", counted["generation"], counted["rows"])
                coded = self.precision == "int8"
                codes = self._read("int8", counted["generation"], counted["rows"]) if coded else None
                return _Snapshot(database, counted["version"], counted["generation"], matrix, codes)
            except FileNotFoundError:  # another process has just written the vectors anew
                database.execute("ROLLBACK")
                database.execute("BEGIN")
        name = f"vectors-{counted['generation']}.float32"
        raise ValueError(f"{self.folder} is damaged: {name} is missing; build the index again")

    def _read(self, kind: Precision, generation: int, count: int) -> Any:
        with self._lock:
            return self._vector_file(kind, generation).read(count)

    def _vector_file(self, kind: Precision, generation: int) -> VectorFile:
        file = self._files.get(kind)
        path = self.folder / f"vectors-{generation}.{kind}"
        if file is None or file.path != path:
            file = self._files[kind] = VectorFile(path, self.dimension, getattr(np, kind))
        return file

    def _code_lengths(self, generation: int, codes: Codes) -> Matrix:
        """The lengths of rows of bytes; those of rows that were there before are not computed again."""
        with self._lock:
            known = self._lengths[1] if self._lengths[0] == generation else np.empty(0, dtype=np.float32)
            if len(known) < len(codes):
                known = np.concatenate([known, lengths_of(codes[len(known) :])])
                self._lengths = generation, known
            return known[: len(codes)]

    def _ids_of(self, now: _Snapshot, rows: Tensor) -> Tensor:
        """The ids of the items at these rows, −1 where a row is −1."""
        remembered = self._ids
        if remembered[0] != now.version:
            if rows.numel() < _MANY_ROWS:  # rather than read all of them
                return _ids_of(now.database, rows)
            ids = np.full(len(now.matrix) + 1, -1, dtype=np.int64)  # the last is what a row of −1 finds
            pairs = chain.from_iterable(now.database.execute("SELECT row, id FROM items"))
            found = np.fromiter(pairs, dtype=np.int64).reshape(-1, 2)
            ids[found[:, 0]] = found[:, 1]
            remembered = self._ids = (now.version, torch.from_numpy(ids))
        return remembered[1][rows]

    def _removed(self, now: _Snapshot) -> Rows:
        """Rows that are nobody's, ascending."""
        remembered = self._blocked
        if remembered is None or remembered[0] != now.version:
            rows = _integers(now.database.execute("SELECT row FROM removed ORDER BY row"))
            remembered = self._blocked = (now.version, rows)
        return remembered[1]


def _values(item: NewItem | Item) -> tuple[str | None, str, str | None]:
    metadata = json.dumps(dict(item.metadata), ensure_ascii=False, allow_nan=False)
    return item.label, metadata, None if item.path is None else str(item.path)


def _item(row: tuple[Any, ...]) -> Item:
    number, name, label, metadata, path, content = row
    return Item(number, name, label, json.loads(metadata), None if path is None else Path(path), content)


def _number(database: sqlite3.Connection, key: str) -> int:
    return int(database.execute("SELECT value FROM about WHERE key = ?", [key]).fetchone()[0])


def _set(database: sqlite3.Connection, **values: int) -> None:
    """Change numbers in ``about``, of which ``version`` grows each time."""
    values["version"] = _number(database, "version") + 1
    rows = [(str(value), key) for key, value in values.items()]
    database.executemany("UPDATE about SET value = ? WHERE key = ?", rows)


def _integers(found: sqlite3.Cursor) -> Rows:
    return np.fromiter((row[0] for row in found), dtype=np.int64)


def _batches(values: list[T]) -> Iterator[list[T]]:
    for start in range(0, len(values), _AT_A_TIME):
        yield values[start : start + _AT_A_TIME]


def _selected(database: sqlite3.Connection, column: str, values: Sequence[Any]) -> Iterator[Item]:
    for some in _batches(list(values)):
        query = f"SELECT {_COLUMNS} FROM items WHERE {column} IN ({marks(some)})"  # noqa: S608
        yield from map(_item, database.execute(query, some))


def _by_names(database: sqlite3.Connection, names: Sequence[str]) -> Iterator[Item]:
    return _selected(database, "name", names)


def _matching(database: sqlite3.Connection, where: Where) -> Rows:
    condition, values = filter_to_sql(where)
    return _integers(database.execute(f"SELECT row FROM items {condition} ORDER BY row", values))  # noqa: S608


def _rows_of(database: sqlite3.Connection, ids: Collection[int]) -> Rows:
    rows: list[int] = []
    for some in _batches([int(one) for one in ids]):
        found = database.execute(f"SELECT row FROM items WHERE id IN ({marks(some)})", some)  # noqa: S608
        rows += [row for (row,) in found]
    return np.array(rows, dtype=np.int64)


def _ids_of(database: sqlite3.Connection, rows: Tensor) -> Tensor:
    """The ids of the items at these rows, −1 where a row is −1."""
    distinct, places = rows.unique(return_inverse=True)
    ids = {-1: -1}
    for some in _batches(distinct.tolist()):
        ids |= dict(database.execute(f"SELECT row, id FROM items WHERE row IN ({marks(some)})", some))  # noqa: S608
    return torch.tensor([ids[row] for row in distinct.tolist()], dtype=torch.long)[places]
