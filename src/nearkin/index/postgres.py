"""The store in PostgreSQL with pgvector: a table per index, answers as the embedded store gives them.

In the schema ``nearkin`` the table ``indexes`` holds a row per index: ``name``, ``about`` (JSON: format,
dimension, precision, the model's fingerprint) and ``version``. ``model_files`` holds the model's files in
parts, ``writes`` a note of every transaction of the last day. ``items_NAME`` holds the items: ``id`` (never
given twice), ``key`` (SHA-256 of the name, which may be longer than PostgreSQL's indexes allow), ``name``,
``label``, ``metadata`` (jsonb), ``path``, ``content`` (SHA-256 of what was embedded), ``checksum`` (CRC-32 of
the vector) and ``embedding`` (``vector`` or ``halfvec``).

Writers take turns: each locks the row of its index. Everything a call writes is one transaction, which is
done again where the connection is lost, and never twice: see :mod:`nearkin.index.postgres_server`. Passwords
come from libpq: ``PGPASSWORD``, or a passfile.
"""

from __future__ import annotations

import errno
import hashlib
import json
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from nearkin.index.address import Address, as_address
from nearkin.index.arrays import Matrix
from nearkin.index.checking import change_of, checked_queries, checked_vectors
from nearkin.index.filters import Where
from nearkin.index.items import Item, NewItem
from nearkin.index.model_files import Part, parts_of
from nearkin.index.postgres_filters import filter_to_sql
from nearkin.index.postgres_server import PostgresServer, package
from nearkin.index.server_store import (
    CONNECTIVITY,
    EXPANSION_ADD,
    EXPANSION_SEARCH,
    FORMAT,
    ServerStore,
    batches,
)
from nearkin.index.store import Change, Nearest
from nearkin.model import Model

HalfOrFull = Literal["float32", "float16"]
_MOST_EXPANSION = 1000  # pgvector's limit of hnsw.ef_search, and so of what an approximate search finds
_MOST_EXCLUDED = 256
_MOST_DIMENSIONS = {"float32": 2000, "float16": 4000}  # of a graph
_IN_THE_ROW = 6000  # bytes of a vector that stay in the row: reading them elsewhere takes much longer
_AT_A_TIME = 10_000  # rows that travel together
_FURTHER = 10  # candidates beyond k whose halves are compared anew
_PART = 8 << 20
_MOST_MEMORY = 2 << 30  # bytes for making a graph
_TYPES = {"float32": "vector", "float16": "halfvec"}
_SCHEMA = (
    "CREATE EXTENSION IF NOT EXISTS vector",
    "CREATE SCHEMA IF NOT EXISTS nearkin",
    """CREATE TABLE IF NOT EXISTS nearkin.indexes (
        name text PRIMARY KEY,
        about jsonb NOT NULL,
        version bigint NOT NULL DEFAULT 0
    )""",
    """CREATE TABLE IF NOT EXISTS nearkin.model_files (
        index_name text NOT NULL REFERENCES nearkin.indexes (name) ON DELETE CASCADE,
        file text NOT NULL,
        part integer NOT NULL,
        data bytea NOT NULL,
        PRIMARY KEY (index_name, file, part)
    )""",
    """CREATE TABLE IF NOT EXISTS nearkin.writes (
        at timestamptz NOT NULL DEFAULT now(),
        token uuid NOT NULL,
        PRIMARY KEY (at, token)
    )""",
)
_COLUMNS = "id, name, label, metadata, path, content"
R = TypeVar("R")


class PostgresStore(ServerStore[PostgresServer]):
    """Items and vectors in PostgreSQL; see :class:`~nearkin.index.store.Store` and this module.

    Args:
        address: ``postgresql://[user@]host[:port]/database/name``, of an index that :meth:`create` made.

    Raises:
        ValueError: There is no such index, one of a newer format, or the address is none.
        ConnectionError: The server cannot be reached, or does not let the user in.
    """

    at_a_time = 128

    def __init__(self, address: str | Address) -> None:
        super().__init__(address, PostgresServer)

    @classmethod
    def create(
        cls,
        address: str | Address,
        *,
        dimension: int,
        precision: str = "float32",
        about: Mapping[str, Any] | None = None,
        model: Model | None = None,
    ) -> PostgresStore:
        """Make an empty store: all of it or, where something fails, nothing.

        Args:
            address: Of an index that is not there.
            dimension: D, the size of a vector.
            precision: ``float32``, or ``float16``, which needs half the space (pgvector's halfvec).
            about: Anything that :attr:`about` shall tell, as plain values.
            model: Whose files are kept in the store.

        Raises:
            FileExistsError: There is one.
        """
        if precision not in get_args(HalfOrFull):
            raise ValueError(f'precision={precision!r} must be "float32" or "float16" in PostgreSQL')
        where = as_address(address)
        told = {**(about or {}), "format": FORMAT, "dimension": dimension, "precision": precision}
        with closing(PostgresServer(where)) as server:
            server.transaction(partial(_create, name=where.name, about=told, model=model))
        return cls(where)

    @staticmethod
    def exists(address: str | Address) -> bool:
        """Whether there is an index at this address."""
        where = as_address(address)
        with closing(PostgresServer(where)) as server:
            return server.transaction(partial(_about_of, name=where.name)) is not None

    def drop(self) -> None:
        """Remove the index from the server, for good, and close the store."""

        def work(connection: Any) -> None:
            connection.execute("DELETE FROM nearkin.indexes WHERE name = %s", [self.name])
            connection.execute(_statement("DROP TABLE IF EXISTS {items}", self.name))

        self._server.transaction(work)
        self.close()

    @property
    def precision(self) -> str:
        """What the vectors are kept and searched in."""
        return str(self._about["precision"])

    def _read_about(self) -> dict[str, Any] | None:
        return self._server.transaction(partial(_about_of, name=self.name))

    def _model_parts(self) -> Iterator[Part]:
        query = (
            "SELECT file, part, data FROM nearkin.model_files WHERE index_name = %s "
            "ORDER BY file = 'card.json', file, part"
        )

        def work(connection: Any) -> list[Part]:
            return [Part(*row) for row in connection.execute(query, [self.name])]

        yield from self._reading(work)

    # Writing.

    def add(self, items: Sequence[NewItem], vectors: Tensor) -> list[Change]:
        """Add items with unit vectors ``(n, D)``: all of them, for good, or none."""
        matrix = checked_vectors(items, vectors, self.dimension)
        return self._writing(partial(self._add, items=items, matrix=matrix))

    def _add(self, connection: Any, *, items: Sequence[NewItem], matrix: Matrix) -> list[Change]:
        known = {item.name: item.content for item in self._by_names(connection, [one.name for one in items])}
        changes = [change_of(item, known) for item in items]
        rows = {
            place: (_key(item.name), item.name, *_values(item), item.content, *self._stored(matrix[place]))
            for place, item in enumerate(items)
            if changes[place] != "known"
        }
        self._copy(connection, [row for place, row in rows.items() if changes[place] == "new"])
        changed = [row for place, row in rows.items() if changes[place] == "changed"]
        if changed:
            statement = (
                "UPDATE {items} SET label=%s, metadata=%s, path=%s, content=%s, checksum=%s, embedding=%s "
                "WHERE key=%s"
            )
            values = [(*row[2:], row[0]) for row in changed]
            connection.cursor().executemany(_statement(statement, self.name), values)
        if rows:
            self._count_up(connection)
        return changes

    def _copy(self, connection: Any, rows: Sequence[tuple[Any, ...]]) -> None:
        """Load new rows by COPY, in PostgreSQL's binary format."""
        if not rows:
            return
        statement = (
            "COPY {items} (key, name, label, metadata, path, content, checksum, embedding) "
            "FROM STDIN (FORMAT BINARY)"
        )
        kinds = ["bytea", "text", "text", "jsonb", "text", "text", "int8", _TYPES[self.precision]]
        with connection.cursor().copy(_statement(statement, self.name)) as copy:
            copy.set_types(kinds)
            for row in rows:
                copy.write_row(row)

    def _stored(self, vector: Matrix) -> tuple[int, Any]:
        """The checksum and the value of a vector as the table holds it."""
        kept = vector.astype(np.float16 if self.precision == "float16" else np.float32)
        return _checksum(kept), _vector_type(self.precision)(kept)

    def _count_up(self, connection: Any) -> None:
        connection.execute("UPDATE nearkin.indexes SET version = version + 1 WHERE name = %s", [self.name])

    def update(self, items: Sequence[Item]) -> None:
        """Change label, metadata and path of items, which are found by their ids."""

        def work(connection: Any) -> None:
            statement = _statement("UPDATE {items} SET label=%s, metadata=%s, path=%s WHERE id=%s", self.name)
            connection.cursor().executemany(statement, [(*_values(item), item.id) for item in items])
            self._count_up(connection)

        if items:
            self._writing(work)

    def remove(self, ids: Collection[int]) -> int:
        """Remove items; how many of them were there."""

        def work(connection: Any) -> int:
            done = connection.execute(_statement("DELETE FROM {items} WHERE id = ANY(%s)", self.name), [gone])
            if done.rowcount:
                self._count_up(connection)
            return int(done.rowcount)

        gone = [int(one) for one in ids]
        return self._writing(work) if gone else 0

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

        Approximate search is for the whole, as in the embedded store: under a filter, with many items
        excluded or for very many hits it is exact. Its graph is made by the first one that needs it.
        """
        queries = checked_queries(vectors, k, self.dimension)
        further = _FURTHER if self.precision == "float16" else 0
        wanted = k + further + (len(exclude) if approximate else 0)
        graph = approximate and where is None and len(exclude) <= _MOST_EXCLUDED and wanted <= _MOST_EXPANSION
        if graph and self._has_graph():
            work = partial(self._nearest, queries=queries, k=wanted, condition="", values=[], graph=True)
        else:
            condition, values = filter_to_sql(where)
            if exclude:
                condition += " AND " if condition else "WHERE "
                condition += "(id <> ALL(%s))"
                values.append([int(one) for one in exclude])
            work = partial(
                self._nearest, queries=queries, k=k + further, condition=condition, values=values, graph=False
            )
        found = self._reading(work)
        if self.precision == "float16":
            found = self._compared_anew(found, queries)
        return _as_nearest(found, len(queries), k, exclude)

    def _nearest(
        self, connection: Any, *, queries: Tensor, k: int, condition: str, values: list[Any], graph: bool
    ) -> list[tuple[int, int, float]]:
        """Place of the query, id and similarity of what is nearest, in order."""
        if graph:
            searched = str(max(EXPANSION_SEARCH, k))
            connection.execute("SELECT set_config('hnsw.ef_search', %s, true)", [searched])
            order = "embedding <#> asked.query"
        else:
            connection.execute("SET LOCAL enable_indexscan = off")  # which would be the graph
            order = "embedding <#> asked.query, id"
        # The condition is made of fixed texts, and its values are parameters: see postgres_filters.
        statement = (
            "SELECT asked.place - 1, found.id, found.similarity "  # noqa: S608
            "FROM unnest(%s::{type}[]) WITH ORDINALITY AS asked (query, place) CROSS JOIN LATERAL ("
            "SELECT id, -(embedding <#> asked.query) AS similarity FROM {items} "
            + condition
            + f" ORDER BY {order} LIMIT %s) AS found "
            "ORDER BY asked.place, found.similarity DESC, found.id"
        )
        kind = _vector_type(self.precision)
        asked = [kind(row) for row in queries.numpy()]
        typed = _statement(statement, self.name, type=_TYPES[self.precision])
        found: list[tuple[int, int, float]] = connection.execute(typed, [asked, *values, k]).fetchall()
        return found

    def _compared_anew(
        self, found: Sequence[tuple[int, int, float]], queries: Tensor
    ) -> list[tuple[int, int, float]]:
        """What was found in float16, compared with the queries in float32."""
        rows = self._vectors_of(sorted({one for _, one, _ in found}))
        again = [(place, one, float(queries[place] @ rows[one])) for place, one, _ in found if one in rows]
        return sorted(again, key=lambda one: (one[0], -one[2], one[1]))

    def _has_graph(self) -> bool:
        """Whether there is an HNSW graph now; it is made where the dimension and the rights allow it."""
        if self.dimension > _MOST_DIMENSIONS[self.precision]:
            return False
        there = "SELECT 1 FROM pg_indexes WHERE schemaname = 'nearkin' AND indexname = %s"
        name = f"graph_{self.name}"

        def look(connection: Any) -> bool:
            return connection.execute(there, [name]).fetchone() is not None

        def make(connection: Any, most_memory: int) -> None:
            size = self.dimension * (2 if self.precision == "float16" else 4)
            _give_memory(connection, self.name, size, most_memory)
            statement = (
                "CREATE INDEX IF NOT EXISTS {graph} ON {items} USING hnsw (embedding {operators}) "
                f"WITH (m = {CONNECTIVITY}, ef_construction = {EXPANSION_ADD})"
            )
            operators = f"{_TYPES[self.precision]}_ip_ops"
            connection.execute(_statement(statement, self.name, graph=name, operators=operators))

        if not self._reading(look):
            try:
                self._writing(partial(make, most_memory=_MOST_MEMORY))
            except PermissionError:  # a reader's account: its searches are exact
                return False
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                self._writing(partial(make, most_memory=0))  # the server has not as much to share
        return True

    def count(self, where: Where | None = None) -> int:
        """How many items there are."""
        ((count,),) = self._select("SELECT count(*) FROM {items} {where}", where)
        return int(count)

    def labels(self) -> dict[str, int]:
        """Every label and how many items have it, in the order of the labels."""
        counted = "SELECT label, count(*) FROM {items} WHERE label IS NOT NULL GROUP BY label ORDER BY label"
        return dict(self._select(counted))

    def items(self, where: Where | None = None, *, offset: int = 0, limit: int | None = None) -> list[Item]:
        """Items in the order of their ids."""
        query = f"SELECT {_COLUMNS} FROM {{items}} {{where}} ORDER BY id LIMIT %s OFFSET %s"  # noqa: S608
        return [_item(row) for row in self._select(query, where, [limit, offset])]

    def ids(self, where: Where | None = None) -> Tensor:
        """The ids of :meth:`items`, int64 ``(n,)``, without the rest."""
        found = self._select("SELECT id FROM {items} {where} ORDER BY id", where)
        return torch.tensor([one for (one,) in found], dtype=torch.long)

    def by_id(self, ids: Sequence[int]) -> dict[int, Item]:
        """Those of the ids that are there, with their items, in the order of the ids."""
        query = f"SELECT {_COLUMNS} FROM {{items}} WHERE id = ANY(%s) ORDER BY id"  # noqa: S608
        return {row[0]: _item(row) for row in self._select(query, values=[[int(one) for one in ids]])}

    def by_name(self, names: Sequence[str]) -> dict[str, Item]:
        """Those of the names that are there, with their items."""
        return {item.name: item for item in self._reading(partial(self._by_names, names=names))}

    def _by_names(self, connection: Any, names: Sequence[str]) -> list[Item]:
        query = _statement(f"SELECT {_COLUMNS} FROM {{items}} WHERE key = ANY(%s)", self.name)  # noqa: S608
        return [_item(row) for row in connection.execute(query, [[_key(name) for name in names]])]

    def by_content(self, contents: Sequence[str]) -> dict[str, int]:
        """Those of the contents that are there, with the id of an item that has it."""
        query = "SELECT content, min(id) FROM {items} WHERE content = ANY(%s) GROUP BY content"
        return dict(self._select(query, values=[list(contents)]))

    def _vectors_of(self, ids: Sequence[int]) -> dict[int, Tensor]:
        found: dict[int, Tensor] = {}
        query = "SELECT id, embedding FROM {items} WHERE id = ANY(%s)"
        for some in batches(ids, _AT_A_TIME):
            rows = self._select(query, values=[list(some)], binary=True)
            if rows:
                matrix = torch.from_numpy(np.stack([one.to_numpy() for _, one in rows])).float()
                if self.precision == "float16":  # halves do not have length 1
                    matrix = normalize(matrix)
                found |= dict(zip([one for one, _ in rows], matrix, strict=True))
        return found

    def version(self) -> int:
        """A number that changes whenever items do."""
        ((version,),) = self._select(
            "SELECT version FROM nearkin.indexes WHERE name = %s", values=[self.name]
        )
        return int(version)

    def damaged(self) -> list[str]:
        """The names of items whose vectors are not what was written; empty where all is well."""
        query = "SELECT name, checksum, embedding FROM {items} WHERE id = ANY(%s) ORDER BY id"
        damaged: list[str] = []
        for some in batches(self.ids().tolist(), _AT_A_TIME):
            rows = self._select(query, values=[some], binary=True)
            damaged += [name for name, checksum, vector in rows if _checksum(vector.to_numpy()) != checksum]
        return damaged

    def _select(
        self,
        query: str,
        where: Where | None = None,
        values: Sequence[Any] = (),
        *,
        binary: bool = False,
    ) -> list[tuple[Any, ...]]:
        """The rows of a query, whose ``{where}`` is a filter and whose values follow those of the filter."""
        condition, own = filter_to_sql(where)
        statement = _statement(query.replace("{where}", condition), self.name)

        def work(connection: Any) -> list[tuple[Any, ...]]:
            rows: list[tuple[Any, ...]] = connection.execute(
                statement, [*own, *values], binary=binary
            ).fetchall()
            return rows

        return self._reading(work)

    def _writing(self, work: Callable[[Any], R]) -> R:
        return self._server.transaction(work, alone_in=self.name)

    def _reading(self, work: Callable[[Any], R]) -> R:
        return self._server.transaction(work)


def _vector_type(precision: str) -> Any:
    """The class of a vector in this precision."""
    pgvector = package("pgvector")
    return pgvector.HalfVector if precision == "float16" else pgvector.Vector


def _statement(template: str, index: str, *, size: int = 0, **names: str) -> Any:
    """A statement with names put in as PostgreSQL quotes them; values are parameters.

    Args:
        template: With ``{items}`` for the table, ``{size}`` for a number and any of ``names``.
        index: Whose table.
        size: Of a vector, where a statement takes no parameters.
        **names: Of types, graphs and operators.
    """
    sql = package("psycopg.sql")
    quoted = {key: sql.Identifier(value) for key, value in names.items()}
    table = sql.Identifier("nearkin", f"items_{index}")
    return sql.SQL(template).format(items=table, size=sql.Literal(size), **quoted)


def _create(connection: Any, *, name: str, about: Mapping[str, Any], model: Model | None) -> None:
    # Two that create at once: PostgreSQL's IF NOT EXISTS alone lets one of them fail.
    connection.execute("SELECT pg_advisory_xact_lock(hashtext('nearkin'))")
    for statement in _SCHEMA:
        connection.execute(statement)
    told = json.dumps(dict(about), allow_nan=False)
    made = connection.execute(
        "INSERT INTO nearkin.indexes (name, about) VALUES (%s, %s) ON CONFLICT DO NOTHING", [name, told]
    )
    if not made.rowcount:
        raise FileExistsError(f"there is an index {name} already")
    half = about["precision"] == "float16"
    size = int(about["dimension"])
    statement = (
        "CREATE TABLE {items} (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
        'key bytea NOT NULL UNIQUE, name text COLLATE "C" NOT NULL, label text COLLATE "C", '
        'metadata jsonb NOT NULL, path text COLLATE "C", content text COLLATE "C" NOT NULL, '
        "checksum bigint NOT NULL, embedding {type}({size}) NOT NULL)"
    )
    connection.execute(_statement(statement, name, type="halfvec" if half else "vector", size=size))
    if size * (2 if half else 4) <= _IN_THE_ROW:
        connection.execute(_statement("ALTER TABLE {items} ALTER embedding SET STORAGE PLAIN", name))
    for column in ("content", "label"):
        connection.execute(_statement(f"CREATE INDEX ON {{items}} USING hash ({column})", name))
    insert = "INSERT INTO nearkin.model_files (index_name, file, part, data) VALUES (%s, %s, %s, %s)"
    for part in () if model is None else parts_of(model, _PART):
        connection.execute(insert, [name, *part])


def _give_memory(connection: Any, name: str, size: int, most: int) -> None:
    """Let a graph be made in memory, which takes a fraction of the time.

    Args:
        connection: In a transaction, for whose time it holds.
        name: Of the index.
        size: Bytes of a vector.
        most: Bytes that may be taken.
    """
    ((count,),) = connection.execute(_statement("SELECT count(*) FROM {items}", name)).fetchall()
    links = 2 * CONNECTIVITY * 16  # bytes, as pgvector holds them while it makes a graph
    needed = min(int(1.5 * count * (size + links)), most) >> 10
    ((given,),) = connection.execute(
        "SELECT setting::bigint FROM pg_settings WHERE name = 'maintenance_work_mem'"
    ).fetchall()
    if needed > given:
        connection.execute("SELECT set_config('maintenance_work_mem', %s, true)", [f"{needed}kB"])


def _about_of(connection: Any, *, name: str) -> dict[str, Any] | None:
    """What is known of an index; ``None`` where there is none."""
    there = "SELECT to_regclass('nearkin.indexes') IS NOT NULL"
    if not connection.execute(there).fetchone()[0]:
        return None
    found = connection.execute("SELECT about FROM nearkin.indexes WHERE name = %s", [name]).fetchone()
    return None if found is None else dict(found[0])


def _key(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


def _values(item: NewItem | Item) -> tuple[str | None, Any, str | None]:
    json_ = package("psycopg.types.json")
    metadata = json_.Jsonb(dict(item.metadata), dumps=partial(json.dumps, allow_nan=False))
    return item.label, metadata, None if item.path is None else str(item.path)


def _item(row: tuple[Any, ...]) -> Item:
    number, name, label, metadata, path, content = row
    return Item(number, name, label, metadata, None if path is None else Path(path), content)


def _as_nearest(
    found: Sequence[tuple[int, int, float]], queries: int, k: int, exclude: Collection[int]
) -> Nearest:
    ids = torch.full((queries, k), -1, dtype=torch.long)
    similarities = torch.full((queries, k), float("-inf"))
    excluded, filled = {int(one) for one in exclude}, [0] * queries
    for place, one, similarity in found:
        column = filled[place]
        if column < k and one not in excluded:
            ids[place, column], similarities[place, column] = one, similarity
            filled[place] += 1
    return Nearest(ids, similarities.clamp(max=1.0))


def _checksum(vector: NDArray[Any]) -> int:
    return zlib.crc32(np.ascontiguousarray(vector).tobytes())
