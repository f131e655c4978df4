"""Miners and samplers beside pytorch-metric-learning's, in one process, taking turns.

    python benchmarks/mining.py

prints a table and writes ``benchmarks/results/mining.md``. Every row starts from what both sides start from:
embeddings and labels for miners, labels for samplers. Times are medians; a ratio above 1 means we are faster.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import statistics
import time
from collections.abc import Callable, Sized
from pathlib import Path
from typing import NamedTuple

import torch
from pytorch_metric_learning import miners as pml_miners
from pytorch_metric_learning.distances import CosineSimilarity
from pytorch_metric_learning.samplers import MPerClassSampler
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.functional import normalize

from nearkin import mining, sampling

RESULTS = Path(__file__).parent / "results" / "mining.md"
PACKAGES = ("nearkin", "torch", "pytorch-metric-learning")


class Contest(NamedTuple):
    """Two ways to do one thing, and what is worth knowing about the comparison."""

    task: str
    ours: Callable[[], object]
    theirs: Callable[[], object]
    note: str


class Outcome(NamedTuple):
    """How long each side took, in the median."""

    contest: Contest
    our_seconds: float
    their_seconds: float

    @property
    def ratio(self) -> float:
        """How many times faster we are."""
        return self.their_seconds / self.our_seconds


def embeddings_and_labels(images: int, images_per_class: int, dim: int) -> tuple[Tensor, Tensor]:
    """Loose clusters in families of four classes, some close, some wide, as half-trained networks have."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(images) // images_per_class
    families = labels // 4
    family_centres = torch.randn(len(families.unique()), dim, generator=generator)
    family_widths = torch.linspace(0.3, 1.5, len(family_centres))
    class_offsets = torch.randn(len(labels.unique()), dim, generator=generator)
    noise = torch.randn(images, dim, generator=generator)
    spread = class_offsets[labels] + 0.7 * noise
    return family_centres[families] + family_widths[families].unsqueeze(1) * spread, labels


def stanford_online_products_labels() -> Tensor:
    """59,551 images in 11,318 classes of 2 to 12 images, the sizes of the training half of SOP."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(2, 13, (11_318,), generator=generator)
    while (surplus := int(sizes.sum()) - 59_551) != 0:
        movable = (sizes > 2) if surplus > 0 else (sizes < 12)
        chosen = torch.multinomial(
            movable.float(), min(abs(surplus), int(movable.sum())), generator=generator
        )
        sizes[chosen] -= 1 if surplus > 0 else -1
    return torch.arange(len(sizes)).repeat_interleave(sizes)


def our_miner(name: str, embeddings: Tensor, labels: Tensor) -> Callable[[], mining.Mined]:
    miner = mining.build(name)
    generator = torch.Generator().manual_seed(0)

    def mine() -> mining.Mined:
        unit = normalize(embeddings, dim=1)
        positive = labels.unsqueeze(1) == labels
        negative = ~positive
        positive.fill_diagonal_(False)
        return miner(
            unit @ unit.T, positive, negative, embedding_dim=embeddings.shape[1], generator=generator
        )

    return mine


def miner_contests(batch: int, images_per_class: int, dim: int) -> list[Contest]:
    x, y = embeddings_and_labels(batch, images_per_class, dim)
    scattered = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    size = f"B {batch:,}, D {dim}"

    def contest(name: str, their_miner: Callable[[Tensor, Tensor], object], note: str) -> Contest:
        return Contest(f"{name}, {size}", our_miner(name, x, y), lambda: their_miner(x, y), note)

    cosine = CosineSimilarity()
    distance_weighted = pml_miners.DistanceWeightedMiner()
    return [
        Contest(
            f"distance_weighted, {size}, scattered",
            our_miner("distance_weighted", scattered, y),
            lambda: distance_weighted(scattered, y),
            coverage(scattered, y),
        ),
        contest("distance_weighted", distance_weighted, coverage(x, y)),
        contest(
            "semi_hard",
            pml_miners.TripletMarginMiner(margin=0.2, type_of_triplets="semihard", distance=cosine),
            "TripletMarginMiner: every semi-hard triplet within a margin; ours: the hardest of each pair",
        ),
        contest(
            "semi_hard",
            pml_miners.BatchEasyHardMiner(pos_strategy="hard", neg_strategy="semihard", distance=cosine),
            "BatchEasyHardMiner: one pair per anchor; ours: every positive pair, more work",
        ),
        contest("hard", hard := pml_miners.BatchHardMiner(distance=cosine), agreement("hard", hard, x, y)),
        contest(
            "multi_similarity",
            multi_similarity := pml_miners.MultiSimilarityMiner(),
            agreement("multi_similarity", multi_similarity, x, y),
        ),
    ]


def agreement(name: str, their_miner: Callable[[Tensor, Tensor], object], x: Tensor, y: Tensor) -> str:
    """How many positive and negative pairs both sides select, of all that either does."""
    mined = mining.as_masks(our_miner(name, x, y)(), torch.Size((len(x), len(x))))
    theirs = their_miner(x, y)
    assert isinstance(theirs, tuple)
    a1, p, a2, n = theirs if len(theirs) == 4 else (theirs[0], theirs[1], theirs[0], theirs[2])
    their_masks = torch.zeros(2, len(x), len(x), dtype=torch.bool)
    their_masks[0, a1, p] = True
    their_masks[1, a2, n] = True
    our_masks = torch.stack(tuple(mined))
    both, either = int((our_masks & their_masks).sum()), int((our_masks | their_masks).sum())
    return f"{type(their_miner).__name__}: {both:,} of {either:,} pairs are the same"


def coverage(x: Tensor, y: Tensor) -> str:
    """How many triplets, of how many anchors: theirs loses those whose weights underflow."""
    ours, theirs = our_miner("distance_weighted", x, y)(), pml_miners.DistanceWeightedMiner()(x, y)
    assert isinstance(ours, mining.Triplets)
    triplets = f"ours {len(ours.anchor):,}, theirs {len(theirs[0]):,}"
    anchors = f"ours {len(ours.anchor.unique()):,}, theirs {len(theirs[0].unique()):,}"
    return f"DistanceWeightedMiner; triplets: {triplets}; anchors with one: {anchors}"


def sampler_contests() -> list[Contest]:
    labels = stanford_online_products_labels()
    ours = sampling.build("balanced", labels, batch_size=100, images_per_class=5)
    contests = []
    for keywords, note in [({"batch_size": 100}, "with batch_size"), ({}, "without batch_size")]:
        theirs = MPerClassSampler(labels, m=5, length_before_new_iter=len(labels), **keywords)
        shown = f"different images shown: ours {ours.images_per_epoch:,}, theirs {len(set(theirs)):,}"
        contests.append(
            Contest(
                "balanced, SOP, one epoch",
                lambda: list(ours),
                lambda theirs=theirs: list(theirs),
                f"MPerClassSampler {note}; {shown}",
            )
        )
    return contests


def seconds(run: Callable[[], object]) -> float:
    """The second of two runs: in use, a miner follows itself, and finds its memory where it left it."""
    run()
    start = time.perf_counter()
    result = run()
    elapsed = time.perf_counter() - start
    assert isinstance(result, Sized)
    assert len(result) > 0
    return elapsed


def settle(contest: Contest, rounds: int) -> Outcome:
    """Take turns, so that whatever else the machine does falls on both."""
    times = [(seconds(contest.ours), seconds(contest.theirs)) for _ in range(rounds)]
    ours, theirs = zip(*times, strict=True)
    return Outcome(contest, statistics.median(ours), statistics.median(theirs))


def show(outcomes: list[Outcome]) -> None:
    table = Table(title="Mining and sampling, beside pytorch-metric-learning")
    for column in ("task", "ours", "theirs", "ratio"):
        table.add_column(column, justify="left" if column == "task" else "right")
    table.add_column("what was compared")
    for row in rows(outcomes):
        table.add_row(*row)
    Console().print(table)


def rows(outcomes: list[Outcome]) -> list[tuple[str, str, str, str, str]]:
    return [
        (
            outcome.contest.task,
            f"{1e3 * outcome.our_seconds:.1f} ms",
            f"{1e3 * outcome.their_seconds:.1f} ms",
            f"{outcome.ratio:.1f} ×",
            outcome.contest.note,
        )
        for outcome in outcomes
    ]


def write(outcomes: list[Outcome], rounds: int) -> None:
    versions = ", ".join(f"{package} {version(package)}" for package in PACKAGES)
    lines = [
        "# Mining and sampling, beside pytorch-metric-learning",
        "",
        f"Medians of {rounds} rounds, taking turns in one process. {versions}, Python "
        f"{platform.python_version()}, threads: {torch.get_num_threads()}. Written by benchmarks/mining.py. "
        "Embeddings are loose clusters in families of classes; *scattered* ones are random directions.",
        "",
        "| task | ours | theirs | ratio | what was compared |",
        "|---|---:|---:|---:|---|",
        *("| " + " | ".join(row) + " |" for row in rows(outcomes)),
    ]
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


def version(package: str) -> str:
    if package == "nearkin":
        import nearkin  # noqa: PLC0415 - may run from a checkout that is not installed

        return nearkin.__version__
    return importlib.metadata.version(package)


def main() -> None:
    parser = argparse.ArgumentParser(description="Miners and samplers beside pytorch-metric-learning's.")
    parser.add_argument("--rounds", type=int, default=7, help="how often each side is timed (default: 7)")
    parser.add_argument("--threads", type=int, help="threads for torch (default: torch's own choice)")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    contests = [
        *miner_contests(batch=128, images_per_class=4, dim=512),
        *miner_contests(batch=1024, images_per_class=4, dim=512),
        *sampler_contests(),
    ]
    outcomes = [settle(contest, arguments.rounds) for contest in contests]
    show(outcomes)
    write(outcomes, arguments.rounds)


if __name__ == "__main__":
    main()
