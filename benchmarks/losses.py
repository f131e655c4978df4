"""Every loss beside its counterpart in pytorch-metric-learning, and beside the floor of two products.

One step is forward and backward, mining included. Ours, theirs and the floor run in one process, in turn, a
few steps each, and the table gives medians and ratios. What one leaves in the caches would be charged to the
next, so the first two steps of a turn are not counted; with ``--turn 1`` they take turns step by step. Run on
an otherwise idle machine:

    python benchmarks/losses.py              # the three timed cases and the memory case
    python benchmarks/losses.py --case b1024 --loss multi_similarity
"""

from __future__ import annotations

import argparse
import math
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytorch_metric_learning
import torch
from pytorch_metric_learning import distances, miners, regularizers
from pytorch_metric_learning import losses as pml
from rich.console import Console
from rich.table import Table

from nearkin import losses
from nearkin.allocation import keep_freed_memory
from nearkin.atomic import write_json, write_text

Step = Callable[[], object]

THESIS = [
    "contrastive",
    "triplet",
    "lifted_structure",
    "npair",
    "proxy_nca",
    "arcface",
    "margin",
    "multi_similarity",
    "soft_triple",
    "proxy_anchor",
]
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    # What pytorch-metric-learning calls NPairsLoss: one pair of each class, no term for the length.
    "npair": ("npair", {"pairs": "one_per_class", "l2": 0.0}),
    "npair_all": ("npair", {}),
    "triplet_all": ("triplet", {"mining": "all"}),
}
COUNTERPARTS = [*THESIS, "proxy_nca_pp", "softmax"]
RESULTS = Path(__file__).parent / "results"
NOTE = """\
Not every row compares equal computations. PML's semi-hard miner keeps every triplet within the margin,
ours the hardest of each pair (`triplet`); its lifted structure has no scales; its ProxyNCA keeps the
positive in the denominator (`proxy_nca`); `npair` is its form, one pair per class without the length
term, and `npair_all` is our default, which does more work; with very many classes its SoftTriple runs
without the regulariser. The embeddings are noisy on purpose: on easy batches the miners select nothing,
and speed-ups are smaller. They are smaller too where the two alternate step by step (`--turn 1`): each finds
the other's data in the caches, or none of its own, as after a network's backward pass."""


@dataclass(frozen=True)
class Case:
    """A batch of ``classes_in_batch × per_class`` embeddings of 512 numbers, of ``num_classes`` classes."""

    name: str
    classes_in_batch: int
    per_class: int
    num_classes: int
    embedding_dim: int = 512

    @property
    def batch_size(self) -> int:
        """B."""
        return self.classes_in_batch * self.per_class

    def inputs(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Embeddings around their classes' directions, so loosely that there is much left to learn."""
        generator = torch.Generator().manual_seed(0)
        chosen = torch.randperm(self.num_classes, generator=generator)[: self.classes_in_batch]
        labels = chosen.repeat_interleave(self.per_class)
        labels = labels[torch.randperm(len(labels), generator=generator)]
        centres = torch.randn(self.num_classes, self.embedding_dim, generator=generator)
        noise = torch.randn(len(labels), self.embedding_dim, generator=generator)
        return centres[labels] + 2 * noise, labels


CASES = {
    "b180": Case("B 180 (36 × 5), C 100", 36, 5, 100),
    "b1024": Case("B 1,024 (256 × 4), C 1,000", 256, 4, 1000),
    "sop": Case("B 180 (36 × 5), C 11,318", 36, 5, 11_318),
}
TURNS = {"b180": 10, "b1024": 3, "sop": 3}
MEMORY_CASE = Case("B 4,096 (1,024 × 4)", 1024, 4, 4096)
MEMORY_LOSSES = ["triplet_all", "lifted_structure", "multi_similarity", "contrastive", "triplet", "margin"]


def ours(name: str, case: Case) -> Step:
    name, keywords = VARIANTS.get(name, (name, {}))
    loss = losses.build(name, num_classes=case.num_classes, embedding_dim=case.embedding_dim, **keywords)
    return step(loss, list(loss.parameters()), case)


def theirs(name: str, case: Case) -> Step | None:
    """The nearest thing in pytorch-metric-learning: same family, same miner, same sizes."""
    sizes = {"num_classes": case.num_classes, "embedding_size": case.embedding_dim}
    cosine = distances.CosineSimilarity()
    inner_product = distances.DotProductSimilarity(normalize_embeddings=False)

    def soft_triple() -> pml.SoftTripleLoss:
        if case.num_classes > 2000:  # its mask of all pairs of centres would take more than 10 GB
            return pml.SoftTripleLoss(**sizes)
        sparse = regularizers.SparseCentersRegularizer(case.num_classes, 10)
        return pml.SoftTripleLoss(**sizes, weight_regularizer=sparse, weight_reg_weight=0.2)

    makers: dict[str, Callable[[], tuple[torch.nn.Module, torch.nn.Module | None]]] = {
        "contrastive": lambda: (pml.ContrastiveLoss(1, 0.5, distance=cosine), None),
        "triplet": lambda: (
            pml.TripletMarginLoss(0.1, distance=cosine),
            miners.TripletMarginMiner(0.1, "semihard", distance=cosine),
        ),
        "triplet_all": lambda: (pml.TripletMarginLoss(0.1, distance=cosine), None),
        "lifted_structure": lambda: (
            pml.GeneralizedLiftedStructureLoss(distance=cosine),
            miners.MultiSimilarityMiner(0.1),
        ),
        "npair": lambda: (pml.NPairsLoss(distance=inner_product), None),
        "proxy_nca": lambda: (pml.ProxyNCALoss(**sizes, softmax_scale=9), None),
        "proxy_nca_pp": lambda: (pml.ProxyNCALoss(**sizes, softmax_scale=9), None),
        "arcface": lambda: (pml.ArcFaceLoss(**sizes), None),
        "margin": lambda: (pml.MarginLoss(learn_beta=True), miners.DistanceWeightedMiner()),
        "multi_similarity": lambda: (pml.MultiSimilarityLoss(2, 50, 0.5), miners.MultiSimilarityMiner(0.1)),
        "nca": lambda: (pml.NCALoss(), None),
        "softmax": lambda: (pml.NormalizedSoftmaxLoss(**sizes, temperature=1 / 16), None),
        "soft_triple": lambda: (soft_triple(), None),
        "proxy_anchor": lambda: (pml.ProxyAnchorLoss(**sizes), None),
    }
    if name not in makers:
        return None
    loss, miner = makers[name]()
    loss_of = (lambda x, y: loss(x, y, miner(x, y))) if miner else loss
    return step(loss_of, list(loss.parameters()), case)


def floor(case: Case) -> Step:
    """What no pair loss can do without: normalise, one B × B × D product, and one back."""

    def products(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        z = torch.nn.functional.normalize(x)
        return (z @ z.T) @ z

    x, y = case.inputs()
    return lambda: products(x, y)


def step(
    loss_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    parameters: list[torch.nn.Parameter],
    case: Case,
) -> Step:
    x, y = case.inputs()
    x.requires_grad_()

    def run() -> None:
        for tensor in (x, *parameters):
            tensor.grad = None
        loss_of(x, y).backward()

    return run


@dataclass
class Row:
    """Medians in milliseconds."""

    loss: str
    ours: float
    theirs: float | None
    floor: float

    @property
    def speed_up(self) -> float | None:
        """How many times faster we are."""
        return None if self.theirs is None else self.theirs / self.ours


def measure(name: str, case: Case, budget: float, turn: int) -> Row:
    """Let all take their turns until the budget (in seconds) is spent, at least three times each."""
    candidates = {"ours": ours(name, case), "theirs": theirs(name, case), "floor": floor(case)}
    steps = {who: run for who, run in candidates.items() if run is not None}
    times: dict[str, list[float]] = {who: [] for who in steps}
    started = time.perf_counter()
    rounds = 0
    while rounds < 4 or (time.perf_counter() - started < budget and rounds < 200):
        for who, run in steps.items():
            taken = [timed(run) for _ in range(turn)]
            if rounds > 0:  # the first round warms up
                times[who] += taken[min(2, turn - 1) :]
        rounds += 1
    medians = {who: statistics.median(taken) for who, taken in times.items()}
    return Row(name, medians["ours"], medians.get("theirs"), medians["floor"])


def timed(run: Step) -> float:
    """Milliseconds of one step."""
    begin = time.perf_counter()
    run()
    return 1000 * (time.perf_counter() - begin)


def geometric_mean(values: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def peak_memory(name: str, who: str) -> float | None:
    """Extra megabytes at the peak of one step of the memory case, in its own process; None if it dies."""
    command = [sys.executable, __file__, "--peak", name, "--who", who]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return float(done.stdout.split()[-1]) if done.returncode == 0 else None


def report_peak(name: str, who: str, limit_gb: float) -> None:
    """The child's part of ``peak_memory``: warm up small, note the memory, take one large step."""
    make = ours if who == "ours" else theirs
    small = make(name, Case("warm-up", 4, 4, 16))
    large = make(name, MEMORY_CASE)
    assert small is not None
    assert large is not None
    small()
    resource.setrlimit(resource.RLIMIT_AS, (int(limit_gb * 2**30), int(limit_gb * 2**30)))
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    before = pages * resource.getpagesize() / 2**20
    large()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before)


def show(title: str, header: list[str], rows: list[list[str]], console: Console) -> str:
    """Print a table and give it back as markdown."""
    table = Table(title=title)
    for column in header:
        table.add_column(column, justify="left" if column == "loss" else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    lines = [f"## {title}", "", "| " + " | ".join(header) + " |"]
    lines.append("|" + "|".join(["---"] + ["---:"] * (len(header) - 1)) + "|")
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def timed_table(case: Case, rows: list[Row], console: Console) -> str:
    table = []
    for row in rows:
        theirs_, ratio = ("–", "–") if row.theirs is None else (f"{row.theirs:.2f}", f"{row.speed_up:.1f} ×")
        table.append([row.loss, f"{row.ours:.2f}", theirs_, ratio, f"{row.ours / row.floor:.2f} ×"])
    thesis = [row.speed_up for row in rows if row.loss in THESIS and row.speed_up is not None]
    if thesis:
        mean = f"geometric mean of {len(thesis)} thesis losses"
        table.append([mean, "", "", f"{geometric_mean(thesis):.1f} ×", ""])
    header = ["loss", "ours (ms)", "PML (ms)", "speed-up", "ours / floor"]
    return show(
        f"{case.name}; floor {statistics.median(r.floor for r in rows):.2f} ms", header, table, console
    )


def memory_table(console: Console, names: list[str]) -> tuple[str, dict[str, Any]]:
    peaks = {name: {who: peak_memory(name, who) for who in ("ours", "theirs")} for name in names}
    table = [
        [name, *(f"{mb:,.0f}" if mb is not None else "more than 8 GB: stopped" for mb in peak.values())]
        for name, peak in peaks.items()
    ]
    title = f"{MEMORY_CASE.name}: extra memory at the peak of one step"
    return show(title, ["loss", "ours (MB)", "PML (MB)"], table, console), peaks


def versions(key: str, turn: int | None) -> dict[str, str | int]:
    """What the figures depend on besides the code."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "pytorch-metric-learning": pytorch_metric_learning.__version__,
        "threads": torch.get_num_threads(),
        **({} if key == "memory" else {"steps in a turn": turn or TURNS[key]}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", action="append", choices=[*CASES, "memory"])
    parser.add_argument("--loss", action="append")
    parser.add_argument("--budget", type=float, default=2.0, help="seconds per loss and case")
    parser.add_argument("--turn", type=int, help="steps in a turn; 10 for small batches and 3 for large ones")
    parser.add_argument("--threads", type=int, help="of torch; as many as there are cores if not given")
    parser.add_argument("--write", action="store_true", help="write the tables to benchmarks/results/")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    parser.add_argument("--who", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peak:
        report_peak(arguments.peak, arguments.who, limit_gb=8)
        return
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    keep_freed_memory()  # as our commands do: else the system zeroes every large tensor's pages anew
    console = Console()
    chosen = arguments.case or [*CASES, "memory"]
    names = arguments.loss or list(dict.fromkeys([*THESIS, *VARIANTS, *losses.names()]))
    for key in chosen:
        if key == "memory":
            table, record = memory_table(console, arguments.loss or MEMORY_LOSSES)
        else:
            # With very many classes only those that have a counterpart: the proxy graph alone takes a minute.
            chosen_losses = [n for n in names if key != "sop" or n in COUNTERPARTS]
            turn = arguments.turn or TURNS[key]
            rows = [measure(name, CASES[key], arguments.budget, turn) for name in chosen_losses]
            table, record = timed_table(CASES[key], rows, console), {row.loss: asdict(row) for row in rows}
        if arguments.write:
            conditions = versions(key, arguments.turn)
            ran_on = ", ".join(f"{what} {version}" for what, version in conditions.items())
            heading = "# Losses: one step, forward and backward, mining included"
            write_text(RESULTS / f"losses_{key}.md", f"{heading}\n\n{ran_on}\n\n{NOTE}\n\n{table}")
            write_json(RESULTS / f"losses_{key}.json", {"versions": conditions, "losses": record})


if __name__ == "__main__":
    main()
