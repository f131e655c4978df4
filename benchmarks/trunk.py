"""Training the last two stages of EfficientNet-Lite0 on CUB: full epochs beside epochs on a cached trunk.

    python benchmarks/trunk.py [--shared FOLDER]

Needs the real birds and weights in ../shared. Ways to run an epoch, taking turns: *full* decodes, augments,
and trains the whole network; *frozen* decodes, augments, runs the trunk without gradients, and trains what
comes after ``blocks.4``; *ours* reads the trunk's activations from the cache instead. The floor trains the
same part on activations that lie in memory. Times are per image; an epoch of CUB has 5,864 images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize

import harness
from harness import FLOOR, OURS, Benchmark, Options, Taken
from nearkin import data, networks

STAGE, BATCH = "blocks.4", 32


def build(options: Options) -> networks.EmbeddingNetwork:
    network = networks.build(
        "timm:tf_efficientnet_lite0",
        embedding_dim=512,
        pooling="avg+max",
        weights=Path(options.shared) / "weights" / "tf_efficientnet_lite0.safetensors",
    )
    networks.freeze_batch_norm(network)
    # On CPUs this memory order is up to twice as fast, for all of them.
    return network.to(memory_format=torch.channels_last)


def epoch(
    batches: Iterable[data.Batch], network: networks.EmbeddingNetwork, trunk: nn.Module | None = None
) -> Callable[[], None]:
    """A pass of training over all batches; the loss is cheap, so that the network is what is measured."""
    optimiser = torch.optim.AdamW(network.param_groups(1e-5))
    network.train()

    def run() -> None:
        for batch in batches:
            inputs = batch.inputs if trunk is None else trunk(batch.inputs)
            optimiser.zero_grad()
            cross_entropy(network(inputs), batch.labels).backward()
            optimiser.step()

    return run


def largest_difference(birds: data.SampleSet, options: Options) -> float:
    """Between unit embeddings of the same images, through the cache and past it."""
    network = build(options)
    activations, rest = networks.cache_activations(network, STAGE, birds, Path(options.folder))
    cached = networks.embed(rest, activations, transform=networks.ActivationTransform())
    return float((normalize(cached) - normalize(networks.embed(network, birds))).abs().max())


def measure(options: Options) -> Iterator[Taken]:
    """All ways, over the same images; milliseconds per image."""
    torch.set_num_threads(1)
    images = 4 if options.small else 64
    birds = data.build("cub200", root=Path(options.shared) / "datasets").train
    birds = birds.select(torch.linspace(0, len(birds) - 1, images).long())
    difference = largest_difference(birds, options)
    whole, halved, cut, bare = (build(options) for _ in range(4))
    trunk, after = halved.split(STAGE)
    activations, rest = networks.cache_activations(cut, STAGE, birds, options.folder)
    transform = data.training_transform(whole.preprocessing)
    cached = data.loader(activations, networks.ActivationTransform(flip=0.5), batch_size=BATCH)
    sides = {
        FLOOR: epoch(list(cached), bare.split(STAGE)[1]),
        OURS: epoch(cached, rest),
        "frozen": epoch(data.loader(birds, transform, batch_size=BATCH), after, trunk),
        "full": epoch(data.loader(birds, transform, batch_size=BATCH), whole),
    }
    taken = harness.take_turns(sides, rounds=2, least=2, seed=options.process, scale=1000 / images)
    note = f"largest difference of a unit embedding's numbers, cached or not: {difference:.1e}"
    yield Taken("epoch on a cached trunk", taken, "ms per image", note, {"largest difference": difference})


def missing(options: Options) -> str | None:
    needed = [Path(options.shared) / "datasets" / "CUB_200_2011", Path(options.shared) / "weights"]
    return (
        None if all(path.exists() for path in needed) else "it needs ../shared: datasets, weights (--shared)"
    )


BENCHMARKS = [
    Benchmark(
        "trunk",
        "EfficientNet-Lite0 on CUB with a cached trunk",
        "the same part trained on activations that lie in memory",
        measure,
        threads=1,
        packages=("torch", "timm"),
        missing=missing,
    )
]

if __name__ == "__main__":
    harness.main(BENCHMARKS, __file__, __doc__)
