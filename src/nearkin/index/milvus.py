"""The store in Milvus: a collection per index; the same client serves one machine or a cluster.

The collection ``nearkin_items_NAME`` holds the items: ``key`` (a hash of the name, and the primary key),
``id``, ``name``, ``label``, ``metadata`` (JSON, as a text), ``path``, ``content``, hashes of these and
``facts`` for filters (see :mod:`nearkin.index.milvus_filters`), ``checksum`` (CRC-32 of the vector) and
``embedding``.
Its description is what the index is, as JSON. ``nearkin_about_NAME`` holds the model's files in parts, and a
number that changes with the items.

Milvus has no transactions. Rows are written by upsert under their names' hashes: whoever does the same again,
after a lost connection or beside another writer, changes nothing. What is added together is split into pieces
that Milvus takes as one message (about 2 MB), each of which is there as a whole or not at all. Ids come from
the clock and grow with it; where two writers drew the same one, the later one draws again.

Everything but a search sees all that was written before, by anybody. A search sees what this process wrote
and what others wrote until the index was opened; what they wrote since may take a second or two to appear.
The token comes from ``MILVUS_TOKEN`` or from the file that ``MILVUS_TOKEN_FILE`` names.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
import threading
import time
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearkin.index.address import Address, as_address
from nearkin.index.checking import change_of, checked_queries, checked_vectors
from nearkin.index.filters import Where
from nearkin.index.items import Item, NewItem
from nearkin.index.milvus_filters import (
    EVERYTHING,
    facts_of,
    filter_to_expression,
    fits,
    one_of,
    token,
)
from nearkin.index.milvus_server import MilvusServer, package
from nearkin.index.model_files import Part, parts_of
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

MOST_FOUND = 16_384
"""Milvus's limit of hits per query."""
_LONGEST = 65_535  # bytes of a text
_PART = 48_000  # bytes of a file that fit into a text as base64
_PARTS_AT_A_TIME = 200
_PIECE = 2 << 20  # bytes of rows that Milvus takes as one message
_ANSWER = 16 << 20  # bytes of vectors that travel together
_AT_A_TIME = 5_000  # values in one expression
_SCANNED = 20_000  # rows that one query lists
_QUERIES = 64  # searched for together
_TIMEOUT = 60.0  # seconds of one call
_ITEM = ("id", "name", "label", "labelled", "metadata", "path", "content")
_VERSION = "version"
Row = dict[str, Any]


class MilvusStore(ServerStore[MilvusServer]):
    """Items and vectors in Milvus; see :class:`~nearkin.index.store.Store` and this module.

    Args:
        address: ``milvus://host[:port][/database]/name``, of an index that :meth:`create` made.

    Raises:
        ValueError: There is no such index, one of a newer format, or the address is none.
        ConnectionError: The server cannot be reached, or does not let the user in.
    """

    at_a_time = 1024
    precision = "float32"

    def __init__(self, address: str | Address) -> None:
        self._numbers = _Numbers()
        self._items, self._notes = _collections(as_address(address).name)
        super().__init__(address, MilvusServer)

    def _make_ready(self) -> None:
        for collection in (self._notes, self._items):
            self._server.call(partial(_load, collection=collection, about=self._about))
        self.count()  # from here on, searches see what is there now

    @classmethod
    def create(
        cls,
        address: str | Address,
        *,
        dimension: int,
        precision: str = "float32",
        about: Mapping[str, Any] | None = None,
        model: Model | None = None,
    ) -> MilvusStore:
        """Make an empty store.

        Args:
            address: Of an index that is not there; with ``?search=hnsw`` all its searches are approximate.
            dimension: D, the size of a vector.
            precision: ``float32``.
            about: Anything that :attr:`about` shall tell, as plain values.
            model: Whose files are kept in the store.

        Raises:
            FileExistsError: There is one.
        """
        if precision != "float32":
            raise ValueError(f'precision={precision!r} must be "float32" in Milvus')
        where = as_address(address)
        search = where.options.get("search", "exact")
        if search not in ("exact", "hnsw"):
            raise ValueError(f"search={search[:20]} must be exact or hnsw")
        own = {"format": FORMAT, "dimension": dimension, "precision": precision, "search": search}
        told = {**(about or {}), **own}
        items, notes = _collections(where.name)
        with closing(MilvusServer(where)) as server:
            if server.call(partial(_has, collection=items)):
                raise FileExistsError(f"there is an index {where.name} already")
            # The items come last: an index is there when they are, and its model is there before.
            server.call(partial(_create_notes, collection=notes))
            if model is not None:
                _keep_model(server, notes, model)
            server.call(partial(_create_items, collection=items, about=told))
        return cls(where)

    @staticmethod
    def exists(address: str | Address) -> bool:
        """Whether there is an index at this address."""
        where = as_address(address)
        with closing(MilvusServer(where)) as server:
            return server.call(partial(_has, collection=_collections(where.name)[0]))

    def drop(self) -> None:
        """Remove the index from the server, for good, and close the store."""
        for collection in (self._items, self._notes):
            self._server.call(lambda client, one=collection: client.drop_collection(one, timeout=_TIMEOUT))  # type: ignore[misc]
        self.close()

    def _read_about(self) -> dict[str, Any] | None:
        if not self._server.call(partial(_has, collection=self._items)):
            return None
        told = self._server.call(lambda client: client.describe_collection(self._items, timeout=_TIMEOUT))
        about: dict[str, Any] = json.loads(told["description"])
        return about

    def _checked(self, about: dict[str, Any] | None) -> dict[str, Any]:
        checked = super()._checked(about)
        if self.address.options.get("search", checked["search"]) != checked["search"]:
            raise ValueError(
                f"{self.place} was made with search={checked['search']}, which cannot be changed: leave it "
                "out, or build another index"
            )
        return checked

    def _model_parts(self) -> Iterator[Part]:
        fingerprint = str(self._about["fingerprint"])
        listed = self._query(EVERYTHING, ["key"], collection=self._notes)
        own = re.compile(rf"{re.escape(fingerprint)}/[A-Za-z0-9_./-]+/\d{{8}}")
        keys = sorted(
            (str(row["key"]) for row in listed if own.fullmatch(str(row["key"]))),
            key=lambda key: ("/card.json/" in key, key),  # which says that the others are there
        )
        for start in range(0, len(keys), _PARTS_AT_A_TIME):
            some = keys[start : start + _PARTS_AT_A_TIME]
            found = self._query(one_of("key", some), ["key", "data"], collection=self._notes)
            data = {row["key"]: row["data"] for row in found}
            for key in some:
                path, _, number = key.partition("/")[2].rpartition("/")
                yield Part(path, int(number), base64.b64decode(data[key]))

    # Writing.

    def add(self, items: Sequence[NewItem], vectors: Tensor) -> list[Change]:
        """Add items with unit vectors ``(n, D)``, for good; see the module for what happens in between."""
        matrix = checked_vectors(items, vectors, self.dimension)
        there = self.by_name([item.name for item in items])
        known = {name: item.content for name, item in there.items()}
        changes = [change_of(item, known) for item in items]
        kept = [place for place, change in enumerate(changes) if change != "known"]
        numbers = iter(self._numbers.take(changes.count("new")))
        rows = [
            _row(items[place], there[items[place].name].id if changes[place] == "changed" else next(numbers))
            | {"embedding": matrix[place], "checksum": zlib.crc32(matrix[place].tobytes())}
            for place in kept
        ]
        self._write(rows)
        self._draw_again(rows)
        return changes

    def _write(self, rows: Sequence[Row]) -> None:
        """Write rows in pieces, and say that something has changed."""
        size = 4 * self.dimension + 2_000
        piece = max(_PIECE // size, 1)
        for start in range(0, len(rows), piece):
            _upsert(self._server, self._items, list(rows[start : start + piece]))
        if rows:
            self._count_up()

    def _draw_again(self, rows: Sequence[Row]) -> None:
        """Give new ids to rows whose ids another writer has given to other items at the same time."""
        own = {row["key"]: row for row in rows}
        found = self._query_in("id", [row["id"] for row in rows], ["key", "id"])
        holders: dict[int, set[str]] = {}
        for row in found:
            holders.setdefault(int(row["id"]), set()).add(str(row["key"]))
        twice = [own[key] for keys in holders.values() if len(keys) > 1 for key in sorted(keys) if key in own]
        if twice:
            self._numbers = _Numbers()
            for row, number in zip(twice, self._numbers.take(len(twice)), strict=True):
                row["id"] = number
            self._write(twice)
            self._draw_again(twice)

    def _count_up(self) -> None:
        note = {"key": _VERSION, "data": str(self._numbers.take(1)[0]), "nothing": [0.0, 0.0]}
        _upsert(self._server, self._notes, [note])

    def update(self, items: Sequence[Item]) -> None:
        """Change label, metadata and path of items, which are found by their ids."""
        there = {
            row["id"]: row
            for row in self._query_in("id", [item.id for item in items], [*_ITEM, "checksum", "embedding"])
        }
        self._write(
            [
                _row(item, item.id, name=there[item.id]["name"], content=there[item.id]["content"])
                | {key: there[item.id][key] for key in ("checksum", "embedding")}
                for item in items
                if item.id in there
            ]
        )

    def remove(self, ids: Collection[int]) -> int:
        """Remove items; how many of them were there."""
        keys = [row["key"] for row in self._query_in("id", [int(one) for one in ids], ["key"])]
        for some in batches(keys, _AT_A_TIME):
            self._server.call(partial(_delete, collection=self._items, which=one_of("key", some)))
        if keys:
            self._count_up()
        return len(keys)

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

        Milvus has one way to search a collection: exactly, or by HNSW where the index was made with
        ``?search=hnsw``, whatever ``approximate`` says.
        """
        queries = checked_queries(vectors, k, self.dimension)
        if k > MOST_FOUND:
            raise ValueError(f"k={k}: Milvus finds {MOST_FOUND:,} items at most")
        expression = self._decided(where)
        if exclude:
            expression = f"({expression}) and (not ({one_of('id', [int(one) for one in exclude])}))"
        ids = torch.full((len(queries), k), -1, dtype=torch.long)
        similarities = torch.full((len(queries), k), float("-inf"))
        for start in range(0, len(queries), _QUERIES):
            asked = queries[start : start + _QUERIES]
            for place, hits in enumerate(self._nearest(asked, k, expression), start=start):
                for column, (similarity, one) in enumerate(hits):
                    ids[place, column], similarities[place, column] = one, similarity
        return Nearest(ids, similarities.clamp(max=1.0))

    def _nearest(self, queries: Tensor, k: int, expression: str) -> list[list[tuple[float, int]]]:
        expansion = {"ef": max(EXPANSION_SEARCH, 2 * k)} if self._about["search"] == "hnsw" else {}
        found = self._server.call(
            lambda client: client.search(
                self._items,
                data=queries.tolist(),
                anns_field="embedding",
                filter="" if expression == EVERYTHING else expression,
                limit=k,
                output_fields=["id"],
                search_params={"metric_type": "IP", "params": expansion},
                consistency_level="Session",
                timeout=_TIMEOUT,
            )
        )
        hits = [[(float(hit["distance"]), int(hit["entity"]["id"])) for hit in row] for row in found]
        return [sorted(row, key=lambda hit: (-hit[0], hit[1])) for row in hits]

    def count(self, where: Where | None = None) -> int:
        """How many items there are."""
        (found,) = self._query(self._decided(where), ["count(*)"])
        return int(found["count(*)"])

    def labels(self) -> dict[str, int]:
        """Every label and how many items have it, in the order of the labels."""
        counts: dict[str, int] = {}
        for row in self._scan(EVERYTHING, ["label", "labelled"]):
            if row["labelled"]:
                counts[row["label"]] = counts.get(row["label"], 0) + 1
        return dict(sorted(counts.items(), key=lambda one: one[0].encode()))

    def items(self, where: Where | None = None, *, offset: int = 0, limit: int | None = None) -> list[Item]:
        """Items in the order of their ids."""
        if not offset and limit is None:
            found = [_item(row) for row in self._scan(self._decided(where), _ITEM)]
        else:
            stop = None if limit is None else offset + limit
            found = list(self.by_id(self.ids(where)[offset:stop].tolist()).values())
        return sorted(found, key=lambda item: item.id)

    def ids(self, where: Where | None = None) -> Tensor:
        """The ids of :meth:`items`, int64 ``(n,)``, without the rest."""
        found = sorted(int(row["id"]) for row in self._scan(self._decided(where), ["id"]))
        return torch.tensor(found, dtype=torch.long)

    def by_id(self, ids: Sequence[int]) -> dict[int, Item]:
        """Those of the ids that are there, with their items, in the order of the ids."""
        found = [_item(row) for row in self._query_in("id", [int(one) for one in ids], _ITEM)]
        return {item.id: item for item in sorted(found, key=lambda item: item.id)}

    def by_name(self, names: Sequence[str]) -> dict[str, Item]:
        """Those of the names that are there, with their items."""
        found = (_item(row) for row in self._query_in("key", [token(name) for name in names], _ITEM))
        return {item.name: item for item in found}

    def by_content(self, contents: Sequence[str]) -> dict[str, int]:
        """Those of the contents that are there, with the id of an item that has it."""
        found: dict[str, int] = {}
        for row in self._query_in("content_key", [token(one) for one in contents], ["content", "id"]):
            found[row["content"]] = min(int(row["id"]), found.get(row["content"], int(row["id"])))
        return found

    def _vectors_of(self, ids: Sequence[int]) -> dict[int, Tensor]:
        rows = self._query_in("id", ids, ["id", "embedding"], most=self._most_vectors)
        return {int(row["id"]): torch.tensor(row["embedding"], dtype=torch.float32) for row in rows}

    def version(self) -> int:
        """A number that changes whenever items do."""
        found = self._query(one_of("key", [_VERSION]), ["data"], collection=self._notes)
        written = found[0]["data"] if found else ""
        # The count notices a writer that was killed before it could say that something had changed.
        digest = hashlib.sha256(f"{written} {self.count()}".encode()).digest()
        return int.from_bytes(digest[:6], "big")

    def damaged(self) -> list[str]:
        """The names of items whose vectors are not what was written; empty where all is well."""
        damaged: list[str] = []
        for some in batches(self.ids().tolist(), self._most_vectors):
            damaged += [
                row["name"]
                for row in self._query_in("id", some, ["name", "checksum", "embedding"])
                if zlib.crc32(np.asarray(row["embedding"], dtype=np.float32).tobytes()) != row["checksum"]
            ]
        return damaged

    @property
    def _most_vectors(self) -> int:
        return max(min(_ANSWER // (4 * self.dimension), _AT_A_TIME), 1)

    def _decided(self, where: Where | None) -> str:
        """A filter as an expression; comparisons of texts are made here, and become a list of rows."""
        expression = filter_to_expression(where)
        if not expression.left:
            return expression.text
        fields = {key for key, _, _ in expression.left}
        wanted = ["key", *({"name", "label", "path", "content"} & fields), "labelled", "metadata"]
        rows = self._scan(expression.text, wanted)
        return one_of("key", [row["key"] for row in rows if fits(_values(row), expression.left)])

    def _scan(self, expression: str, fields: Sequence[str]) -> list[Row]:
        """All rows that fit, in several answers where they are many: by the first digits of their keys."""
        (counted,) = self._query(expression, ["count(*)"])
        digits = 0
        while counted["count(*)"] > _SCANNED * 16**digits:
            digits += 1
        if not digits:
            return self._query(expression, fields)
        found: list[Row] = []
        for number in range(16**digits):
            found += self._query(f'({expression}) and key like "{number:0{digits}x}%"', fields)
        return found

    def _query_in(
        self, field: str, values: Sequence[Any], fields: Sequence[str], *, most: int = _AT_A_TIME
    ) -> list[Row]:
        """The rows in which a field has one of the values."""
        found: list[Row] = []
        for some in batches(values, most):
            found += self._query(one_of(field, some), fields)
        return found

    def _query(self, expression: str, fields: Sequence[str], *, collection: str | None = None) -> list[Row]:
        rows = self._server.call(
            lambda client: client.query(
                collection or self._items,
                filter=expression,
                output_fields=list(fields),
                consistency_level="Strong",
                timeout=_TIMEOUT,
            )
        )
        return [dict(row) for row in rows]


class _Numbers:
    """Numbers that grow with the clock, below 2⁵³ (what a web page can hold) until the year 2042."""

    _BEGIN = 1_735_689_600_000_000_000  # 2025, in nanoseconds
    _TICK = 16_000
    _WRITERS = 256

    def __init__(self) -> None:
        self._writer = secrets.randbelow(self._WRITERS)
        self._last = 0
        self._lock = threading.Lock()

    def take(self, count: int) -> list[int]:
        """So many numbers that this writer has not given before."""
        with self._lock:
            first = max((time.time_ns() - self._BEGIN) // self._TICK, self._last + 1)
            self._last = first + count - 1
        return [(first + number) * self._WRITERS + self._writer for number in range(count)]


def _collections(name: str) -> tuple[str, str]:
    return f"nearkin_items_{name}", f"nearkin_about_{name}"


def _has(client: Any, *, collection: str) -> bool:
    return bool(client.has_collection(collection, timeout=_TIMEOUT))


def _delete(client: Any, *, collection: str, which: str) -> None:
    client.delete(collection, filter=which, timeout=_TIMEOUT)


def _create_items(client: Any, collection: str, about: Mapping[str, Any]) -> None:
    kind = package("pymilvus").DataType
    schema = client.create_schema(
        auto_id=False, enable_dynamic_field=False, description=json.dumps(dict(about), allow_nan=False)
    )
    schema.add_field("key", kind.VARCHAR, is_primary=True, max_length=32)
    schema.add_field("id", kind.INT64)
    for text in ("name", "label", "metadata", "path", "content"):
        schema.add_field(text, kind.VARCHAR, max_length=_LONGEST)
    for hashed in ("label_key", "path_key", "content_key"):
        schema.add_field(hashed, kind.VARCHAR, max_length=32)
    schema.add_field("labelled", kind.BOOL)
    schema.add_field("facts", kind.JSON)
    schema.add_field("checksum", kind.INT64)
    schema.add_field("embedding", kind.FLOAT_VECTOR, dim=int(about["dimension"]))
    _create_collection(client, collection, schema)


def _create_notes(client: Any, collection: str) -> None:
    kind = package("pymilvus").DataType
    schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("key", kind.VARCHAR, is_primary=True, max_length=512)
    schema.add_field("data", kind.VARCHAR, max_length=_LONGEST)
    schema.add_field("nothing", kind.FLOAT_VECTOR, dim=2)  # Milvus holds no rows without a vector
    _create_collection(client, collection, schema)


def _create_collection(client: Any, collection: str, schema: Any) -> None:
    """Make a collection, unless it is there: another process may make the same one at the same time."""
    try:
        if not _has(client, collection=collection):
            # One shard: what one message adds is there as a whole or not at all.
            client.create_collection(collection, schema=schema, num_shards=1, consistency_level="Strong")
    except package("pymilvus").MilvusException:
        if not _has(client, collection=collection):
            raise


def _load(client: Any, collection: str, about: Mapping[str, Any]) -> None:
    """Make what a collection needs to be searched, if it is not there, and have it loaded."""
    vector = "embedding" if collection.startswith("nearkin_items_") else "nothing"
    if not client.list_indexes(collection):
        wanted = client.prepare_index_params()
        graph = vector == "embedding" and about["search"] == "hnsw"
        wanted.add_index(
            field_name=vector,
            index_type="HNSW" if graph else "FLAT",
            metric_type="IP",
            params={"M": CONNECTIVITY, "efConstruction": EXPANSION_ADD} if graph else {},
        )
        client.create_index(collection, wanted, timeout=_TIMEOUT)
    client.load_collection(collection, timeout=_TIMEOUT)


def _keep_model(server: MilvusServer, notes: str, model: Model) -> None:
    fingerprint = model.fingerprint
    rows = (
        {
            "key": f"{fingerprint}/{part.file}/{part.number:08d}",
            "data": base64.b64encode(part.data).decode(),
            "nothing": [0.0, 0.0],
        }
        for part in parts_of(model, _PART)
    )
    some: list[Row] = []
    for row in rows:
        some.append(row)
        if len(some) == _PIECE // _LONGEST:
            _upsert(server, notes, some)
            some = []
    _upsert(server, notes, some)


def _upsert(server: MilvusServer, collection: str, rows: list[Row]) -> None:
    if rows:
        server.call(lambda client: client.upsert(collection, rows, timeout=_TIMEOUT))


def _row(item: NewItem | Item, number: int, *, name: str | None = None, content: str | None = None) -> Row:
    """An item as Milvus holds it, but for the vector.

    Raises:
        ValueError: A text is longer than Milvus allows.
    """
    name, content = name or item.name, content or item.content
    path = None if item.path is None else str(item.path)
    metadata = json.dumps(dict(item.metadata), ensure_ascii=False, allow_nan=False)
    texts = {
        "name": name,
        "label": item.label or "",
        "metadata": metadata,
        "path": path or "",
        "content": content,
    }
    for key, text in texts.items():
        if len(text.encode()) > _LONGEST:
            raise ValueError(f"{name[:60]!r}: Milvus holds a {key} of {_LONGEST:,} bytes at most")
    return {
        **texts,
        "key": token(name),
        "id": number,
        "labelled": item.label is not None,
        "label_key": token(item.label),
        "path_key": token(path),
        "content_key": token(content),
        "facts": facts_of(item),
    }


def _item(row: Row) -> Item:
    return Item(
        int(row["id"]),
        row["name"],
        row["label"] if row["labelled"] else None,
        json.loads(row["metadata"]),
        Path(row["path"]) if row["path"] else None,
        row["content"],
    )


def _values(row: Row) -> dict[str, Any]:
    """What comparisons of texts look at."""
    own: dict[str, Any] = {key: row[key] for key in ("name", "content") if key in row}
    own |= {"label": row["label"]} if row["labelled"] and "label" in row else {}
    own |= {"path": row["path"]} if row.get("path") else {}
    return {**json.loads(row["metadata"]), **own}
