"""Every loss beside its counterpart in pytorch-metric-learning, and beside the floor of its products.

One step is forward and backward, mining included. Ours, theirs and the floor take turns step by step.

    python benchmarks/losses.py              # the three timed cases and the memory case
    python benchmarks/losses.py losses_b180

The floor is what no loss of its kind can do without. One that compares the images of a batch: normalise, the
product of all with all, and one product back. One with proxies: normalise both, the product with all proxies,
and two back, to the images and to the proxies. ``npair`` in its form of one pair per class: that product and
two back.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pytorch_metric_learning import distances, miners, regularizers
from pytorch_metric_learning import losses as pml

import harness
from figures import THESIS
from harness import FLOOR, OURS, Benchmark, Options, Taken
from nearkin import losses
from nearkin.allocation import keep_freed_memory

Step = Callable[[], object]
PML = "PML"

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    # What pytorch-metric-learning calls NPairsLoss: one pair of each class, no term for the length.
    "npair": ("npair", {"pairs": "one_per_class", "l2": 0.0}),
    "npair_all": ("npair", {}),
    "triplet_all": ("triplet", {"mining": "all"}),
}
COUNTERPARTS = [*THESIS, "proxy_nca_pp", "softmax"]
NOTE = """\
Not every row compares equal computations. PML's semi-hard miner keeps every triplet within the margin,
ours the hardest of each pair (`triplet`); its lifted structure has no scales; its ProxyNCA keeps the
positive in the denominator (`proxy_nca`); `npair` is its form, one pair per class without the length
term, and `npair_all` is our default, which does more work; with very many classes its SoftTriple runs
without the regulariser. The embeddings are noisy on purpose: on easy batches the miners select nothing,
and speed-ups are smaller. They are larger where each side takes many steps in a row and finds its own data in
the caches; here the sides alternate step by step, as a loss does with a network's backward pass."""
MEMORY_LIMIT_GB = 8


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


def floor(name: str, case: Case) -> Step:
    """The products that no loss of this kind can do without; see the module's docstring."""
    x, y = case.inputs()
    if name == "npair":
        order = torch.argsort(y, stable=True).reshape(case.classes_in_batch, case.per_class)
        return partial(_products, x[order[:, 0]], x[order[:, 1]], normalise=False)
    name, keywords = VARIANTS.get(name, (name, {}))
    loss = losses.build(name, num_classes=case.num_classes, embedding_dim=case.embedding_dim, **keywords)
    proxies = [p.detach().flatten(0, -2) for p in loss.parameters() if p.shape[-1:] == (case.embedding_dim,)]
    return partial(_products, x, torch.cat(proxies) if proxies else None)


def _products(x: torch.Tensor, others: torch.Tensor | None, *, normalise: bool = True) -> None:
    z = torch.nn.functional.normalize(x) if normalise else x
    if others is None:
        (z @ z.T) @ z
        return
    p = torch.nn.functional.normalize(others) if normalise else others
    S = z @ p.T
    S @ p
    S.T @ z


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


def timed(key: str, options: Options) -> Iterator[Taken]:
    """Every loss of a case, in one process."""
    keep_freed_memory()  # as our commands do: else the system zeroes every large tensor's pages anew
    case = Case("small", 4, 4, 16, 32) if options.small else CASES[key]
    names = list(dict.fromkeys([*THESIS, *VARIANTS, *losses.names()]))
    if key == "sop":  # only those that have a counterpart: the proxy graph alone takes a minute
        names = COUNTERPARTS
    for name in names:
        made = {FLOOR: floor(name, case), OURS: ours(name, case), PML: theirs(name, case)}
        sides = {side: run for side, run in made.items() if run is not None}
        rounds = 3 if options.small else 25
        yield Taken(name, harness.take_turns(sides, rounds=rounds, budget=1.5, seed=options.process))


def memory(options: Options) -> Iterator[Taken]:
    """Extra megabytes at the peak of one step, each in a process of its own; None where it was stopped."""
    floor_peak = peak_memory(MEMORY_LOSSES[0], FLOOR)  # none has proxies: all share it
    for name in MEMORY_LOSSES[:1] if options.small else MEMORY_LOSSES:
        peaks = {who: [peak_memory(name, who)] for who in (OURS, PML)}
        yield Taken(name, {FLOOR: [floor_peak], **peaks}, "MB")


def peak_memory(name: str, who: str) -> float | None:
    done = subprocess.run(
        [sys.executable, __file__, "--peak", name, who], capture_output=True, text=True, check=False
    )
    out_of_memory = ("DefaultCPUAllocator", "MemoryError", "bad_alloc")
    if done.returncode and not any(sign in done.stderr for sign in out_of_memory):
        raise SystemExit(done.stderr)
    return float(done.stdout.split()[-1]) if done.returncode == 0 else None


def report_peak(name: str, who: str) -> None:
    """The child's part of ``peak_memory``: warm up small, note the memory, take one large step."""
    make = {FLOOR: floor, OURS: ours, PML: theirs}[who]
    small, large = make(name, Case("warm-up", 4, 4, 16)), make(name, MEMORY_CASE)
    assert small is not None
    assert large is not None
    small()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_GB * 2**30, MEMORY_LIMIT_GB * 2**30))
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    before = pages * resource.getpagesize() / 2**20
    large()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before)


BENCHMARKS = [
    *(
        Benchmark(
            f"losses_{key}",
            f"Losses: one step, forward and backward, mining included; {case.name}",
            "normalisation and the products with the batch or the proxies, forward and back",
            partial(timed, key),
            NOTE,
            packages=("torch", "pytorch-metric-learning"),
        )
        for key, case in CASES.items()
    ),
    Benchmark(
        "losses_memory",
        f"Losses: extra memory at the peak of one step; {MEMORY_CASE.name}",
        "the product of all with all and one product back, and what they allocate",
        memory,
        f"{NOTE} What takes more than {MEMORY_LIMIT_GB} GB is stopped.",
        packages=("torch", "pytorch-metric-learning"),
    ),
]

if __name__ == "__main__":
    if sys.argv[1:2] == ["--peak"]:
        report_peak(*sys.argv[2:])
    else:
        harness.main(BENCHMARKS, __file__, __doc__)
