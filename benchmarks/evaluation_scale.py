"""Retrieval scores of a million embeddings by several processes: seconds, and memory at the peak.

    python benchmarks/evaluation_scale.py evaluation_million     # about an hour on two idle cores
    python benchmarks/evaluation_scale.py --small --anyway

The processes' scores are those of one, which is compared at a tenth of the size in the same run. The floor of
the seconds is the product of all with all above the diagonal; at a million rows a tenth of its blocks is
measured, and counted ten times. Memory is what all processes hold together, pages that they share counted
once; its floor is the embeddings.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import psutil
import torch
from torch import Tensor
from torch.nn.functional import normalize

import harness
from harness import FLOOR, OURS, Benchmark, Options, Taken
from nearkin.evaluation import retrieval_scores, retrieval_scores_by_processes
from nearkin.workers import available_cores

ROWS, DIMENSION, PER_CLASS = 1_000_000, 128, 5
ONE = "one process"
BLOCK = 2000
EVERY = 10  # which of the floor's blocks are measured
LOOK_EVERY = 0.5  # seconds between two looks at the memory


def embeddings(rows: int) -> tuple[Tensor, Tensor]:
    """Unit rows around class centres."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randperm(rows, generator=generator) // PER_CLASS
    points = torch.randn(rows, DIMENSION, generator=generator)
    points += torch.randn(rows // PER_CLASS + 1, DIMENSION, generator=generator)[labels]
    return normalize(points), labels


def half_product(points: Tensor, every: int = 1) -> Callable[[], float]:
    """Seconds of the product of all with all above the diagonal, from some of its blocks."""

    def run() -> float:
        starts = range(0, len(points), BLOCK)
        measured = starts[every // 2 :: every]
        begin = time.perf_counter()
        for start in measured:
            points[start : start + BLOCK] @ points[start:].T
        share = sum(len(points) - start for start in measured) / sum(len(points) - one for one in starts)
        return (time.perf_counter() - begin) / share

    return run


class Memory:
    """The most that this process and its children held together, in GB, while the block ran."""

    def __enter__(self) -> Memory:
        self.peak, self._over = 0.0, threading.Event()
        self._looking = threading.Thread(target=self._look)
        self._looking.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._looking.join()

    def _look(self) -> None:
        while not self._over.wait(LOOK_EVERY):
            held = 0
            for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
                with suppress(psutil.Error):  # it has just ended
                    held += process.memory_full_info().pss
            self.peak = max(self.peak, held / 1e9)


def measure(options: Options) -> Iterator[Taken]:
    rows = 5_000 if options.small else ROWS
    processes = max(2, available_cores())
    points, labels = embeddings(rows)
    yield compared(points[: rows // 10], labels[: rows // 10] % (rows // 50), processes)
    floor = half_product(points, EVERY if len(points) > EVERY * BLOCK else 1)()
    begin = time.perf_counter()
    with Memory() as memory:
        scores = retrieval_scores_by_processes(points, labels, processes=processes)
    seconds = time.perf_counter() - begin
    size = f"{rows:,} × {DIMENSION}, {processes} processes"
    note = f"Recall@1 {100 * scores.recall_at[1]:.2f} %, MAP@R {100 * scores.map_at_r:.2f} %"
    yield Taken(f"all retrieval scores, {size}", {FLOOR: [floor], OURS: [seconds]}, "s", note)
    held = points.numel() * points.element_size() / 1e9
    yield Taken(f"memory at the peak, {size}", {FLOOR: [held], OURS: [memory.peak]}, "GB")


def compared(points: Tensor, labels: Tensor, processes: int) -> Taken:
    """Several processes beside one, whose scores must be the same."""
    found = {}

    def noting(side: str, run: Callable[[], object]) -> Callable[[], None]:
        return lambda: found.__setitem__(side, run())

    sides = {
        FLOOR: half_product(points),
        OURS: noting(OURS, lambda: retrieval_scores_by_processes(points, labels, processes=processes)),
        ONE: noting(ONE, lambda: retrieval_scores(points, labels)),
    }
    taken = harness.take_turns(sides, rounds=3, scale=1.0)
    if found[OURS].to_dict() != found[ONE].to_dict():
        raise SystemExit(f"the scores differ: {found}")
    size = f"{len(points):,} × {DIMENSION}, {processes} processes"
    return Taken(f"all retrieval scores, {size}", taken, "s", "the scores are equal")


BENCHMARKS = [
    Benchmark(
        "evaluation_million",
        "Retrieval scores by several processes",
        "the product of all with all above the diagonal, once; of memory, the embeddings",
        measure,
        packages=("torch", "psutil"),
        heavy=True,
    )
]

if __name__ == "__main__":
    harness.main(BENCHMARKS, __file__, __doc__)
