"""Ranking losses beside the B³ way to compute them, and the later losses beside pytorch-metric-learning.

    python benchmarks/ranking.py                  # all three
    python benchmarks/ranking.py ranking_b1024

"B³" is what public codes do: a sigmoid for every query, every other sample as the one that is ranked and
every third one, from which those of positives are then chosen; by autograd. All at once needs more memory
than most machines have, so that it is done for some queries at a time, which is no slower. PML has Smooth-AP
and PNP in that way, all at once: it is compared on the smaller batch.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from pytorch_metric_learning import losses as pml
from torch import Tensor

import harness
import losses as earlier
from harness import FLOOR, OURS, Benchmark, Options, Taken
from losses import PML, Case, Step, floor, step
from nearkin import losses
from nearkin.allocation import keep_freed_memory

CUBED = "B³"
RANKING = ["smooth_ap", "sup_ap", "recall_at_k", "pnp"]
LARGE = Case("B 1,024 (256 × 4)", 256, 4, 256)
LARGEST = Case("B 4,096 (1,024 × 4)", 1024, 4, 1024)
QUERIES_AT_ONCE = 16
COUNTERPARTS: dict[str, Callable[[], torch.nn.Module]] = {
    "smooth_ap": pml.SmoothAPLoss,
    "pnp": lambda: pml.PNPLoss(variant="Dq", alpha=4),
    "circle": pml.CircleLoss,
    "supcon": pml.SupConLoss,
    "info_nce": lambda: pml.NTXentLoss(temperature=0.05),
    "tuplet_margin": pml.TupletMarginLoss,
    "ranked_list": lambda: pml.RankedListLoss(margin=0.4, Tn=5, alpha=1.2),
    "angular": lambda: pml.AngularLoss(alpha=45),
    "fast_ap": pml.FastAPLoss,
    "histogram": lambda: pml.HistogramLoss(n_bins=200),
}


def ours(name: str, case: Case) -> Step:
    return step(losses.build(name), [], case)


def theirs(name: str, case: Case) -> Step:
    return step(COUNTERPARTS[name](), [], case)


def cubed(name: str, case: Case) -> Step:
    """Every sigmoid of every three samples, some queries at a time."""
    x, y = case.inputs()
    x.requires_grad_()
    same = y.unsqueeze(1) == y
    others = ~torch.eye(len(y), dtype=torch.bool)

    def run() -> None:
        x.grad = None
        S = (z := torch.nn.functional.normalize(x)) @ z.T
        rows = S.detach().requires_grad_()
        for some in torch.arange(len(y)).split(QUERIES_AT_ONCE):
            of_ranks(name, rows[some], same[some] & others[some], ~same[some]).sum().div(len(y)).backward()
        S.backward(rows.grad)

    return run


def of_ranks(name: str, S: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    """The loss of each query from ranks of everything ``(Q, B)``, as public codes have it."""
    nearer = S.unsqueeze(1) - S.unsqueeze(2)
    steps = torch.sigmoid(nearer / 0.01)
    before = (_sup_steps(nearer, steps) if name == "sup_ap" else steps) * negative.unsqueeze(1)
    if name == "sup_ap":
        steps = (nearer > 0).to(S.dtype)
    not_itself = ~torch.eye(S.shape[1], dtype=torch.bool)
    among = 1 + (steps * (positive.unsqueeze(1) & not_itself)).sum(dim=2)
    behind = before.sum(dim=2)
    count = positive.sum(dim=1)
    if name == "pnp":
        return ((1 - (1 + behind) ** -4) * positive).sum(dim=1) / count
    if name == "recall_at_k":
        found = [
            (torch.sigmoid(k - among - behind) * positive).sum(dim=1).clamp_max(k) / count.clamp_max(k)
            for k in (1, 2, 4, 8, 16)
        ]
        return 1 - torch.stack(found).mean(dim=0)
    return 1 - (among / (among + behind) * positive).sum(dim=1) / count


def _sup_steps(nearer: Tensor, steps: Tensor) -> Tensor:
    at_shift = torch.sigmoid(torch.tensor(5.0))
    beyond = 100 * (nearer - 0.05) + 0.5 + at_shift
    return torch.where(nearer > 0.05, beyond, steps + 0.5 * (nearer > 0))


def ranking(options: Options) -> Iterator[Taken]:
    """The four losses on a large batch."""
    keep_freed_memory()
    rounds = 3 if options.small else 7
    for name in RANKING:
        case = Case("small", 4, 4, 16, 32) if options.small else LARGE
        sides = {FLOOR: floor(name, case), OURS: ours(name, case), CUBED: cubed(name, case)}
        taken = harness.take_turns(sides, rounds=rounds, budget=60, seed=options.process)
        yield Taken(f"{name}, {case.name}", taken)


def pairs(options: Options) -> Iterator[Taken]:
    """The losses that pytorch-metric-learning has as well."""
    keep_freed_memory()
    case = Case("small", 4, 4, 16, 32) if options.small else earlier.CASES["b180"]
    for name in COUNTERPARTS:
        sides = {FLOOR: floor(name, case), OURS: ours(name, case), PML: theirs(name, case)}
        rounds = 3 if options.small else 25
        yield Taken(name, harness.take_turns(sides, rounds=rounds, budget=1.5, seed=options.process))


MEMORY_CASES = {"small": Case("small", 4, 4, 16, 32), "b1024": LARGE, "b4096": LARGEST}
HYPERBOLIC = "contrastive, hyperbolic"


def memory(options: Options) -> Iterator[Taken]:
    """Extra megabytes at the peak of one step, each in a process of its own."""
    for name in RANKING[:1] if options.small else [*RANKING, HYPERBOLIC]:
        for key in ("small",) if options.small else ("b1024", "b4096"):
            peaks = {who: [peak_memory(name, who, key)] for who in (FLOOR, OURS)}
            yield Taken(f"{name}, {MEMORY_CASES[key].name}", peaks, "MB")


def peak_memory(name: str, who: str, key: str) -> float | None:
    done = subprocess.run(
        [sys.executable, __file__, "--peak", name, who, key], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return float(done.stdout.split()[-1])


def report_peak(name: str, who: str, key: str) -> None:
    """The child's part of ``peak_memory``: warm up small, note the memory, take one large step."""

    def make(case: Case) -> Step:
        if who == FLOOR:
            return floor("contrastive", case)
        metric = {"metric": "hyperbolic"} if name == HYPERBOLIC else {}
        return step(losses.build(name.partition(",")[0], **metric), [], case)

    small, large = make(MEMORY_CASES["small"]), make(MEMORY_CASES[key])
    small()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    before = pages * resource.getpagesize() / 2**20
    large()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before)


PRODUCTS = "normalisation and the product of all with all, forward and back"
BENCHMARKS = [
    Benchmark(
        "ranking_b1024",
        "Ranking losses: one step, forward and backward",
        PRODUCTS,
        ranking,
        packages=("torch",),
    ),
    Benchmark(
        "ranking_memory",
        "Ranking losses and the hyperbolic metric: extra memory at the peak of one step",
        f"{PRODUCTS}, and what they allocate",
        memory,
        packages=("torch",),
    ),
    Benchmark(
        "losses_more_b180",
        f"Later losses: one step, forward and backward; {earlier.CASES['b180'].name}",
        PRODUCTS,
        pairs,
        "In PML's Smooth-AP and PNP a query is its own first positive. Its ranked list has a small constant "
        "in its denominators, its angular loss leaves the negatives' lengths as they are.",
        packages=("torch", "pytorch-metric-learning"),
    ),
]

if __name__ == "__main__":
    if sys.argv[1:2] == ["--peak"]:
        report_peak(*sys.argv[2:])
    else:
        harness.main(BENCHMARKS, __file__, __doc__)
