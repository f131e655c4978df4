"""What a step costs as the number of classes grows: loss, gradients and optimiser, C from 10⁴ to 10⁶.

Every side of every size runs in a process of its own, which tells the time of each step and the memory at its
peak; what needs more than the limit is stopped. B 512, D 128, AdamW.

    python benchmarks/classes.py
    python benchmarks/classes.py --small --anyway

Ours compares a batch with its own classes and 1 % of the others; dense compares it with all, in tiles where
they do not fit at once; "2 processes" divides the classes among two processes of one thread each, and tells
the memory of both together. ``nn.Linear`` is a linear layer without bias and cross-entropy.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from math import log

import torch
import torch.distributed as dist
from pytorch_metric_learning import losses as pml
from torch import Tensor, nn

import harness
from harness import FLOOR, OURS, Benchmark, Options, Taken
from nearkin import losses
from nearkin.allocation import keep_freed_memory
from nearkin.training.lazy_optimizers import AdamW

Step = Callable[[], object]
DENSE, TOGETHER, PML, LINEAR = "dense", "2 processes", "PML", "nn.Linear"
NAMES = ("arcface", "proxy_anchor")
SIZES = (10_000, 100_000, 1_000_000)
BATCH, DIM, SAMPLE = 512, 128, 0.01
PROCESSES, ROUNDS, BUDGET, LIMIT_GB = 2, 5, 60.0, 16
NOTE = f"""\
A step is loss, gradients and AdamW; the embeddings themselves are given. What takes more than {LIMIT_GB} GB
is stopped. The slope is that of time over C, both as logarithms, from the smallest to the largest size: 1
is time in proportion to C, 0 time that does not depend on it."""


def batches(classes: int) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    while True:
        x = torch.randn(BATCH, DIM, generator=generator).requires_grad_()
        yield x, torch.randint(classes, (BATCH,), generator=generator)


def stepping(loss: nn.Module, optimizer: torch.optim.Optimizer, classes: int) -> Step:
    drawn = batches(classes)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss(*next(drawn)).backward()
        optimizer.step()

    return step


class Linear(nn.Module):
    """What everybody writes first."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(DIM, classes, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The mean over samples."""
        return nn.functional.cross_entropy(self.linear(x), y)


def products(classes: int) -> Step:
    """The floor: the products with the compared proxies, forward and back."""
    compared = BATCH + round(SAMPLE * classes)
    proxies, drawn = torch.randn(compared, DIM), batches(classes)

    def step() -> None:
        x = next(drawn)[0].detach()
        S = x @ proxies.T
        S @ proxies
        S.T @ x

    return step


def made(name: str, side: str, classes: int) -> Step:
    if side == FLOOR:
        return products(classes)
    if side in (PML, LINEAR):
        theirs = {"arcface": pml.ArcFaceLoss, "proxy_anchor": pml.ProxyAnchorLoss}
        loss = Linear(classes) if side == LINEAR else theirs[name](num_classes=classes, embedding_size=DIM)
        return stepping(loss, torch.optim.AdamW(loss.parameters(), lr=0.01), classes)
    sample = {"sample": SAMPLE} if side == OURS else {}
    ours = losses.build(name, num_classes=classes, embedding_dim=DIM, **sample)
    if side == TOGETHER:
        ours.shard(dist.get_rank(), dist.get_world_size())  # type: ignore[operator]
    return stepping(ours, AdamW(ours.parameters(), lr=0.01), classes)


def report(name: str, side: str, classes: int) -> None:
    """A child's part: milliseconds of each step and the memory at its peak, as JSON."""
    keep_freed_memory()
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_GB * 2**30, LIMIT_GB * 2**30))
    step = made(name, side, classes)
    step()
    taken: list[float] = []
    begin = time.perf_counter()
    while len(taken) < ROUNDS and not (taken and time.perf_counter() - begin > BUDGET):
        start = time.perf_counter()
        step()
        taken.append(1000 * (time.perf_counter() - start))
    print(json.dumps([taken, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))


def report_together(name: str, classes: int, rank: int, meeting: str) -> None:
    """The same of one of several processes."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=PROCESSES,
        timeout=timedelta(minutes=10),
    )
    report(name, TOGETHER, classes)
    sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # threads of gloo's may abort a process while Python shuts down


def told(process: subprocess.Popen[str]) -> tuple[list[float], float] | None:
    out, errors = process.communicate()
    if process.returncode == 0:
        taken, peak = json.loads(out.splitlines()[-1])
        return taken, peak
    if not any(sign in errors for sign in ("DefaultCPUAllocator", "MemoryError", "bad_alloc")):
        raise SystemExit(errors)
    return None


def measured(name: str, side: str, classes: int) -> tuple[list[float], float] | None:
    """Milliseconds of steps and megabytes at the peak; None where it was stopped."""
    with tempfile.TemporaryDirectory() as folder:
        ends = [[str(rank), f"{folder}/meeting"] for rank in range(PROCESSES)] if side == TOGETHER else [[]]
        started = [
            subprocess.Popen(
                [sys.executable, __file__, "--step", name, side, str(classes), *end],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for end in ends
        ]
        found = [told(process) for process in started]
    whole = [one for one in found if one is not None]
    return (whole[0][0], sum(peak for _, peak in whole)) if len(whole) == len(found) else None


def measure(options: Options) -> Iterator[Taken]:
    """Time and memory of every loss, size and side, and the slopes in C."""
    sizes = (200, 2000) if options.small else SIZES
    for name in NAMES:
        sides = [FLOOR, OURS, DENSE, TOGETHER, PML, *([LINEAR] if name == NAMES[0] else [])]
        found = {(side, C): measured(name, side, C) for C in sizes for side in sides}
        slopes = {side: slope(found[side, sizes[0]], found[side, sizes[-1]], sizes) for side in sides}
        for C in sizes:
            rows = {side: found[side, C] for side in sides}
            times = {side: [None] if one is None else list(one[0]) for side, one in rows.items()}
            peaks = {side: [None if one is None else one[1]] for side, one in rows.items()}
            last = sizes[-1] == C
            yield Taken(f"{name}, C {C:,}", times, "ms", facts={"slope": slopes} if last else {})
            yield Taken(f"{name}, C {C:,}, memory", peaks, "MB")


def slope(
    small: tuple[list[float], float] | None, large: tuple[list[float], float] | None, sizes: tuple[int, ...]
) -> float | None:
    """Of time over C, both as logarithms."""
    if small is None or large is None:
        return None
    ratio = statistics.median(large[0]) / statistics.median(small[0])
    return round(log(ratio) / log(sizes[-1] / sizes[0]), 3)


BENCHMARKS = [
    Benchmark(
        "classes",
        f"Classes: one step of B {BATCH}, D {DIM}; ours compares {SAMPLE:.0%} of the other classes",
        "the products of the batch with the compared proxies, forward and back",
        measure,
        NOTE,
        packages=("torch", "pytorch-metric-learning"),
        heavy=True,
    )
]

if __name__ == "__main__":
    if sys.argv[1:2] == ["--step"]:
        loss_name, which, count, *together = sys.argv[2:]
        if together:
            report_together(loss_name, int(count), int(together[0]), together[1])
        else:
            report(loss_name, which, int(count))
    else:
        harness.main(BENCHMARKS, __file__, __doc__)
