"""Miners and samplers beside pytorch-metric-learning's.

    python benchmarks/mining.py

Every row starts from what both sides start from: embeddings and labels for miners, labels for samplers. The
floor of a miner is the similarity of all with all, of a sampler one random order of all images as a list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized

import torch
from pytorch_metric_learning import miners as pml_miners
from pytorch_metric_learning.distances import CosineSimilarity
from pytorch_metric_learning.samplers import MPerClassSampler
from torch import Tensor
from torch.nn.functional import normalize

import harness
from harness import FLOOR, OURS, Benchmark, Options, Taken
from nearkin import mining, sampling

PML = "PML"
TheirMiner = Callable[[Tensor, Tensor], object]


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


def similarity(embeddings: Tensor) -> Tensor:
    unit = normalize(embeddings, dim=1)
    return unit @ unit.T


def contest(
    task: str, our_name: str, their_miner: TheirMiner, *, x: Tensor, y: Tensor, note: str, options: Options
) -> Taken:
    """One miner of ours and one of theirs, on the same batch."""
    mine = our_miner(our_name, x, y)
    sides = {FLOOR: lambda: similarity(x), OURS: mine, PML: lambda: their_miner(x, y)}
    for side in (OURS, PML):
        found = sides[side]()
        assert isinstance(found, Sized)
        assert len(found) > 0
    rounds = 3 if options.small else 25
    return Taken(task, harness.take_turns(sides, rounds=rounds, budget=2.0, seed=options.process), note=note)


def miners(batch: int, options: Options) -> Iterator[Taken]:
    """Every miner that both sides have, for batches of ``batch`` images, four of a class."""
    x, y = embeddings_and_labels(batch, images_per_class=4, dim=512)
    scattered = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    size = f"B {batch:,}"
    cosine = CosineSimilarity()
    weighted = pml_miners.DistanceWeightedMiner()
    hard = pml_miners.BatchHardMiner(distance=cosine)
    multi_similarity = pml_miners.MultiSimilarityMiner()
    within_margin = pml_miners.TripletMarginMiner(margin=0.2, type_of_triplets="semihard", distance=cosine)
    per_anchor = pml_miners.BatchEasyHardMiner(pos_strategy="hard", neg_strategy="semihard", distance=cosine)
    every = "TripletMarginMiner: every semi-hard triplet within a margin; ours: the hardest of each pair"
    one = "BatchEasyHardMiner: one pair per anchor; ours: every positive pair, more work"
    for task, name, theirs, points, note in (
        ("distance_weighted, scattered", "distance_weighted", weighted, scattered, coverage(scattered, y)),
        ("distance_weighted", "distance_weighted", weighted, x, coverage(x, y)),
        ("semi_hard, TripletMarginMiner", "semi_hard", within_margin, x, every),
        ("semi_hard, BatchEasyHardMiner", "semi_hard", per_anchor, x, one),
        ("hard", "hard", hard, x, agreement("hard", hard, x, y)),
        (
            "multi_similarity",
            "multi_similarity",
            multi_similarity,
            x,
            agreement("multi_similarity", multi_similarity, x, y),
        ),
    ):
        yield contest(f"{task}, {size}", name, theirs, x=points, y=y, note=note, options=options)


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


def samplers(options: Options) -> Iterator[Taken]:
    """An epoch of balanced batches, with both ways to use theirs."""
    labels = stanford_online_products_labels()
    ours = sampling.build("balanced", labels, batch_size=100, images_per_class=5)
    for keywords, how in [({"batch_size": 100}, "with batch_size"), ({}, "without batch_size")]:
        theirs = MPerClassSampler(labels, m=5, length_before_new_iter=len(labels), **keywords)
        sides = {
            FLOOR: lambda: torch.randperm(len(labels)).tolist(),
            OURS: lambda: list(ours),
            PML: lambda theirs=theirs: list(theirs),
        }
        shown = f"different images shown: ours {ours.images_per_epoch:,}, theirs {len(set(theirs)):,}"
        yield Taken(
            f"balanced, one epoch of SOP, {how}",
            harness.take_turns(sides, rounds=2 if options.small else 7, seed=options.process),
            note=f"MPerClassSampler {how}; {shown}",
        )


def measure(options: Options) -> Iterator[Taken]:
    """Miners of small and large batches, then samplers."""
    for batch in (64,) if options.small else (128, 1024):
        yield from miners(batch, options)
    yield from samplers(options)


BENCHMARKS = [
    Benchmark(
        "mining",
        "Mining and sampling, beside pytorch-metric-learning",
        "the similarity of all with all (miners), one random order of all images (samplers)",
        measure,
        "Embeddings are loose clusters in families of classes; *scattered* ones are random directions.",
        packages=("torch", "pytorch-metric-learning"),
    )
]

if __name__ == "__main__":
    harness.main(BENCHMARKS, __file__, __doc__)
