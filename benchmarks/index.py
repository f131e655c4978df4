"""Exact and approximate search of an index beside faiss flat search and the reading of the vectors.

The same vectors, one process, taking turns; what the sides find is compared in the same run.

    python benchmarks/index.py                    # 100,000 × 512: float32 and int8, one query and a thousand
    python benchmarks/index.py --heavy            # and HNSW at 1,000,000 × 128, of CUB plus noise
    python benchmarks/index.py index --rows 20000 --dimension 128

Searches go through the whole store, as those of a user: filters, ids and all. The floor of a single query is
reading the vectors once from memory, that of a thousand queries their product with all vectors.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import faiss
import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

import harness
from harness import FLOOR, OURS, Benchmark, Options, Taken
from nearkin import data, networks
from nearkin.index import NewItem
from nearkin.index.embedded import EmbeddedStore

FAISS, FLOAT32, EXACT = "faiss", "float32", "exact"
K = 10
PAUSE = 0.01
"""Seconds before each turn: faiss's threads keep the processors busy for a while after a search. Not more:
after longer pauses virtual processors are slow to wake up, which costs every side milliseconds."""
QUERIES = 1000
CLASSES = 2000
ROWS, DIMENSION = 100_000, 512
LARGE_ROWS, LARGE_DIMENSION = 1_000_000, 128
SIZES = "NEARKIN_INDEX_SIZES"
"""Rows and dimension for the processes that measure, where the command line gives others."""


def sizes(options: Options, rows: int, dimension: int) -> tuple[int, int]:
    """How many vectors of which length."""
    given = os.environ.get(SIZES)
    if given:
        rows, dimension = map(int, given.split())
    return (2000, 32) if options.small else (rows, dimension)


def vectors_of_classes(count: int, dimension: int, seed: int) -> Tensor:
    """Unit rows around class centres, as a model makes them."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, dimension, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(CLASSES, (count,), generator=generator)
    return normalize(centres[labels] + torch.randn(count, dimension, generator=generator))


def filled(folder: Path, vectors: Tensor, **options: object) -> EmbeddedStore:
    """A store of these vectors, made by the first process and opened by the others."""
    if not EmbeddedStore.exists(folder):
        made = EmbeddedStore.create(folder, dimension=vectors.shape[1], **options)  # type: ignore[arg-type]
        for start in range(0, len(vectors), 50_000):
            rows = vectors[start : start + 50_000]
            made.add([NewItem(str(n), str(n)) for n in range(start, start + len(rows))], rows)
        made.close()
    return EmbeddedStore(folder)


def noting(found: dict[str, Tensor], side: str, run: Callable[[], object]) -> Callable[[], None]:
    """Keep what a side found, as rows."""

    def noted() -> None:
        result = run()
        found[side] = result.ids - 1 if hasattr(result, "ids") else torch.from_numpy(result[1])  # type: ignore[attr-defined]

    return noted


def shared(found: Tensor, expected: Tensor) -> float:
    """Share of the expected rows that were found."""
    hits = [len({*a} & {*b}) for a, b in zip(found.tolist(), expected.tolist(), strict=True)]
    return sum(hits) / expected.numel()


def exact(options: Options) -> Iterator[Taken]:
    """One query and a thousand, in float32 and in int8."""
    rows, dimension = sizes(options, ROWS, DIMENSION)
    vectors = vectors_of_classes(rows, dimension, seed=1)
    queries = vectors_of_classes(QUERIES, dimension, seed=2)
    full = filled(Path(options.folder) / "float32", vectors)
    small = filled(Path(options.folder) / "int8", vectors, precision="int8")
    flat = faiss.IndexFlatIP(dimension)
    flat.add(vectors.numpy())
    codes = torch.from_numpy(np.fromfile(small.folder / "vectors-1.int8", dtype=np.int8)).view(
        rows, dimension
    )
    as_numbers = codes.view(torch.float32)  # to read them as fast as others
    asked = queries.numpy()
    size = f"{rows:,} × {dimension}"
    for count in (1, QUERIES):
        some = queries[:count]
        found: dict[str, Tensor] = {}
        search = {
            FAISS: noting(found, FAISS, lambda count=count: flat.search(asked[:count], K)),
            FLOAT32: noting(found, FLOAT32, lambda some=some: full.search(some, K)),
            "int8": noting(found, "int8", lambda some=some: small.search(some, K)),
        }
        floor: dict[str, Callable[[], object]] = {"float32": vectors.sum, "int8": as_numbers.sum}
        if count > 1:
            floor = {
                "float32": lambda some=some: product(some, vectors),
                "int8": lambda count=count: torch._int_mm(codes[:count], codes.T),
            }
        sides = {
            "float32": {FLOOR: floor["float32"], OURS: search[FLOAT32], FAISS: search[FAISS]},
            "int8": {
                FLOOR: floor["int8"],
                OURS: search["int8"],
                FLOAT32: search[FLOAT32],
                FAISS: search[FAISS],
            },
        }
        words = "one query" if count == 1 else f"{count:,} queries"
        for precision, own in sides.items():
            rounds = 60 if count == 1 else 5
            taken = harness.take_turns(own, rounds=rounds, budget=20, seed=options.process, pause=PAUSE)
            same = shared(found[precision], found[FAISS])
            if same < 0.999:
                raise SystemExit(f"{words} in {precision} find {same:.4f} of what faiss finds")
            note = f"{same:.2%} of the {K} nearest that faiss finds"
            yield Taken(f"{words}, {precision}, {size}", taken, note=note, facts={"shared": same})


def product(queries: Tensor, vectors: Tensor) -> None:
    """By NumPy's BLAS, which is the faster one on some processors."""
    asked, rows = queries.numpy(), vectors.numpy()
    for start in range(0, len(rows), 20_000):
        asked @ rows[start : start + 20_000].T


def birds(options: Options) -> tuple[Tensor, Tensor]:
    """Unit embeddings of CUB's test birds by the pretrained network, and labels; made once."""
    file = Path(options.folder) / "birds.pt"
    if not file.exists():
        found = data.build("cub200", root=Path(options.shared) / "datasets").require_test()
        if options.small:
            found = found.select(torch.linspace(0, len(found) - 1, 40).long())
        network = networks.build(
            "timm:tf_efficientnet_lite0",
            embedding_dim=512,
            pooling="avg+max",
            weights=Path(options.shared) / "weights" / "tf_efficientnet_lite0.safetensors",
        )
        torch.save((normalize(networks.embed(network, found, what="features")), found.labels), file)
    embeddings, labels = torch.load(file)
    return embeddings, labels


def recall_at_1(options: Options) -> Iterator[Taken]:
    """What int8 costs in Recall@1 on CUB: every test bird searches among the others."""
    embeddings, labels = birds(options)
    sides: dict[str, Callable[[], object]] = {}
    scores: dict[str, float] = {}
    for precision in ("float32", "int8"):
        store = filled(Path(options.folder) / f"birds-{precision}", embeddings, precision=precision)

        def search(store: EmbeddedStore = store, precision: str = precision) -> None:
            found = store.search(embeddings, 2).ids - 1
            own = torch.arange(len(labels))
            first = torch.where(found[:, 0] == own, found[:, 1], found[:, 0])
            scores[precision] = float((labels[first] == labels).double().mean())

        sides[OURS if precision == "int8" else FLOAT32] = search
    sides[FLOOR] = lambda: product(embeddings, embeddings)
    taken = harness.take_turns(sides, rounds=3, seed=options.process)
    cost = 100 * (scores["float32"] - scores["int8"])
    note = f"Recall@1 {scores['float32']:.4f} in float32, {scores['int8']:.4f} in int8: {cost:+.2f} points"
    yield Taken(
        f"all of {len(labels):,} birds, int8", taken, note=note, facts={"points lost": cost, **scores}
    )


def approximate(options: Options) -> Iterator[Taken]:
    """HNSW beside exact search, one query at a time."""
    rows, dimension = sizes(options, LARGE_ROWS, LARGE_DIMENSION)
    embeddings, _ = birds(options)
    centred = embeddings - embeddings.mean(dim=0)
    axes = torch.linalg.svd(centred, full_matrices=False).Vh[:dimension]
    generator = torch.Generator().manual_seed(0)
    points = normalize(centred @ axes.T)
    chosen = torch.randint(len(points), (rows + QUERIES,), generator=generator)
    spread = 0.5 / points.shape[1] ** 0.5  # noise of half a unit's length
    noisy = points[chosen] + spread * torch.randn(len(chosen), points.shape[1], generator=generator)
    vectors, queries = normalize(noisy).split([rows, QUERIES])
    store = filled(Path(options.folder) / "large", vectors)
    store.search(queries[:1], K, approximate=True)  # makes the graph, in the first process
    near = store.search(queries, K, approximate=True).ids
    recall = shared(near, store.search(queries, K).ids)
    turn = iter(range(10**9))

    def one(**how: bool) -> Callable[[], object]:
        return lambda: store.search(queries[next(turn) % QUERIES][None], K, **how)

    sides = {FLOOR: vectors.sum, OURS: one(approximate=True), EXACT: one()}
    taken = harness.take_turns(sides, rounds=200, budget=60, seed=options.process, pause=PAUSE)
    note = f"recall@{K} {recall:.3f} of exact search; the graph is made before"
    size = f"{rows:,} × {points.shape[1]}"
    yield Taken(f"one query, HNSW, {size}", taken, note=note, facts={"recall": recall})


def missing(options: Options) -> str | None:
    needed = [Path(options.shared) / "datasets" / "CUB_200_2011", Path(options.shared) / "weights"]
    return (
        None if all(path.exists() for path in needed) else "it needs ../shared: datasets, weights (--shared)"
    )


_PACKAGES = ("torch", "numpy", "numkong", "usearch", "faiss-cpu")
_FLOOR = "reading the vectors once from memory for one query, their product for many"
BENCHMARKS = [
    Benchmark("index", "Exact search of an index", _FLOOR, exact, packages=_PACKAGES),
    Benchmark(
        "index_cub",
        "What int8 costs on CUB",
        "the product of all with all",
        recall_at_1,
        packages=_PACKAGES,
        heavy=True,
        missing=missing,
    ),
    Benchmark(
        "index_large",
        "Approximate search of an index",
        "reading the vectors once from memory",
        approximate,
        packages=_PACKAGES,
        heavy=True,
        missing=missing,
    ),
]


def take_sizes() -> None:
    """Take ``--rows`` and ``--dimension`` off the command line, for this process and those it starts."""
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--rows", type=int, default=ROWS)
    own.add_argument("--dimension", type=int, default=DIMENSION)
    found, sys.argv[1:] = own.parse_known_args()
    if (found.rows, found.dimension) != (ROWS, DIMENSION):
        os.environ[SIZES] = f"{found.rows} {found.dimension}"


if __name__ == "__main__":
    take_sizes()
    harness.main(BENCHMARKS, __file__, __doc__)
