"""Retrieval scores beside pytorch-metric-learning's calculator, faiss flat search and the plain product.

Same embeddings, one process, taking turns; the numbers are compared in the same run.

    python benchmarks/evaluation.py             # 20,000 × 512, 3,777 classes
    python benchmarks/evaluation.py --heavy     # and 60,502 rows, ours alone, with its memory

The floor is the part of the product of all with all above the diagonal, in blocks: what no exact search can
do without. The plain product computes the part below it, too.
"""

from __future__ import annotations

import resource
import warnings
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

import harness
from harness import FLOOR, OURS, Benchmark, Options, Taken
from nearkin.evaluation import recall_scores, retrieval_scores

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import faiss
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

THEIR_NAMES = {
    "mean_average_precision_at_r": "map_at_r",
    "r_precision": "r_precision",
    "precision_at_1": "precision_at_1",
}
PML, FAISS, PRODUCT = "PML", "faiss", "plain product"
ALL, RECALL = "all retrieval scores", "Recall@1, 2, 4, 8"
BLOCK = 2000
Numbers = dict[str, float]


def embeddings_like_sop(rows: int, dim: int, classes: int) -> tuple[Tensor, Tensor]:
    """Unit rows around class centres, as noisy as a good model on Stanford Online Products."""
    generator = torch.Generator().manual_seed(0)
    labels = (torch.arange(rows) % classes)[torch.randperm(rows, generator=generator)]
    centres = torch.randn(classes, dim, generator=generator)
    points = centres[labels] + 2.4 * torch.randn(rows, dim, generator=generator)
    return torch.nn.functional.normalize(points), labels


def half_product(points: Tensor) -> None:
    for start in range(0, len(points), BLOCK):
        points[start : start + BLOCK] @ points[start:].T


def plain_product(points: Tensor) -> None:
    for start in range(0, len(points), BLOCK):
        points[start : start + BLOCK] @ points.T


def flat_search(points: Tensor, labels: Tensor, k: int) -> Numbers:
    array = points.numpy()
    index = faiss.IndexFlatIP(array.shape[1])
    index.add(array)
    _, found = index.search(array, k)
    others = torch.from_numpy(found)
    hit = (labels[others] == labels[:, None]) & (others != torch.arange(len(points))[:, None])
    itself = others == torch.arange(len(points))[:, None]
    # The row itself stands somewhere in its own list: ranks behind it move up by one.
    rank = torch.arange(1, k + 1) - itself.cumsum(dim=1)
    first = torch.where(hit, rank, k + 1).amin(dim=1)
    return {f"recall_at_{n}": float((first <= n).double().mean()) for n in (1, 10, 100, 1000)}


def scores(options: Options) -> Iterator[Taken]:
    """All scores, then recall alone; the numbers of all sides must agree."""
    rows, classes = (1500, 300) if options.small else (20_000, 3_777)
    points, labels = embeddings_like_sop(rows, 512, classes)
    calculator = AccuracyCalculator(include=tuple(THEIR_NAMES), k="max_bin_count")
    numbers: dict[str, Numbers] = {}

    def noting(name: str, run: Callable[[], Numbers]) -> Callable[[], None]:
        return lambda: numbers.__setitem__(name, run())

    def calculated() -> Numbers:
        return {THEIR_NAMES[name]: v for name, v in calculator.get_accuracy(points, labels).items()}

    products = {FLOOR: lambda: half_product(points), PRODUCT: lambda: plain_product(points)}
    every = {
        **products,
        OURS: noting(OURS, lambda: retrieval_scores(points, labels, recall_at=(1, 10, 100, 1000)).to_dict()),
        PML: noting(PML, calculated),
        FAISS: noting(FAISS, lambda: flat_search(points, labels, 1001)),
    }
    recall = {**products, OURS: noting(RECALL, lambda: recall_scores(points, labels).to_dict())}
    seed = options.process
    size = f"{rows:,} × 512"
    # Two rounds after the one that warms up: a round takes half a minute.
    taken = harness.take_turns(every, rounds=2, least=2, seed=seed)
    recall_taken = harness.take_turns(recall, rounds=5, seed=seed)
    largest = largest_difference(numbers)
    same = f"largest difference between the sides' numbers: {largest:.1e}"
    note = f"PML: three scores; faiss: flat search, k = 1,001; {same}"
    yield Taken(f"{ALL}, {size}", taken, note=note, facts={"largest difference": largest})
    yield Taken(f"{RECALL}, {size}", recall_taken)


def largest_difference(numbers: dict[str, Numbers]) -> float:
    """Between our numbers and theirs; a real one is an error."""
    ours = numbers[OURS]
    differences = [abs(ours[name] - value) for peer in (PML, FAISS) for name, value in numbers[peer].items()]
    differences.append(abs(ours["recall_at_1"] - numbers[RECALL]["recall_at_1"]))
    # One query of 20,000 whose two best neighbours differ by less than the round-off, or a few of them.
    if max(differences) > 2e-4:
        raise SystemExit(f"the numbers differ by {max(differences):.1e}: {numbers}")
    return max(differences)


def large(options: Options) -> Iterator[Taken]:
    """Ours alone, once for each process, with the memory it adds."""
    rows, classes = (3000, 600) if options.small else (60_502, 11_316)
    points, labels = embeddings_like_sop(rows, 512, classes)
    sides: dict[str, Callable[[], object]] = {
        FLOOR: lambda: half_product(points),
        OURS: lambda: retrieval_scores(points, labels, recall_at=(1, 10, 100, 1000)),
    }
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    sides[OURS]()
    added = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10 - before
    yield Taken(f"{ALL}, {rows:,} × 512", harness.take_turns(sides, rounds=1, least=1, seed=options.process))
    yield Taken(f"memory added, {rows:,} × 512", {OURS: [added]}, "MB")


_ABOUT = (
    "the product of all with all above the diagonal, once",
    ("torch", "faiss-cpu", "pytorch-metric-learning"),
)
BENCHMARKS = [
    Benchmark("evaluation", "Retrieval scores", _ABOUT[0], scores, packages=_ABOUT[1]),
    Benchmark(
        "evaluation_large",
        "Retrieval scores of 60,502 embeddings",
        _ABOUT[0],
        large,
        packages=_ABOUT[1],
        heavy=True,
    ),
]

if __name__ == "__main__":
    harness.main(BENCHMARKS, __file__, __doc__)
