"""Training the last two stages of EfficientNet-Lite0 on CUB: full epochs beside epochs on a cached trunk.

    python benchmarks/trunk.py [--images 64] [--threads 1]

Needs the real birds and weights in ../shared. Three ways to run an epoch take turns in one process:
*full* decodes, augments, and trains the whole network; *frozen* decodes, augments, runs the trunk without
gradients, and trains what comes after ``blocks.4``; *cached* reads the trunk's activations instead. The table
shows medians of images per second; an epoch of CUB has 5,864 images.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn.functional import cross_entropy, normalize

from nearkin import data, networks

SHARED = Path(__file__).resolve().parents[2] / "shared"
RESULTS = Path(__file__).parent / "results" / "trunk.md"
STAGE, BATCH, EPOCH, REPEATS = "blocks.4", 32, 5_864, 3


def build() -> networks.EmbeddingNetwork:
    network = networks.build(
        "timm:tf_efficientnet_lite0",
        embedding_dim=512,
        pooling="avg+max",
        weights=SHARED / "weights" / "tf_efficientnet_lite0.safetensors",
    )
    networks.freeze_batch_norm(network)
    # On CPUs this memory order is up to twice as fast, for all three ways.
    return network.to(memory_format=torch.channels_last)


def epoch(
    batches: data.Loader, network: networks.EmbeddingNetwork, trunk: nn.Module | None = None
) -> Callable[[], None]:
    """A pass of training over all batches; the loss is cheap, so that the network is what is measured."""
    optimiser = torch.optim.AdamW(network.param_groups(1e-5))
    network.train()

    def run() -> None:
        for batch in batches:
            images = batch.inputs if trunk is None else trunk(batch.inputs)
            optimiser.zero_grad()
            cross_entropy(network(images), batch.labels).backward()
            optimiser.step()

    return run


def medians(epochs: dict[str, Callable[[], None]], images: int) -> dict[str, float]:
    """Images per second of passes that take turns, after one pass to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in epochs}
    for repeat in range(REPEATS + 1):
        for name, run in epochs.items():
            start = time.perf_counter()
            run()
            if repeat:
                seconds[name].append(time.perf_counter() - start)
    return {name: images / statistics.median(times) for name, times in seconds.items()}


def largest_difference(birds: data.SampleSet, folder: Path) -> float:
    """Between unit embeddings of the same images, through the cache and past it."""
    network = build()
    activations, rest = networks.cache_activations(network, STAGE, birds, folder)
    cached = networks.embed(rest, activations, transform=networks.ActivationTransform())
    return float((normalize(cached) - normalize(networks.embed(network, birds))).abs().max())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=64, help="images per pass")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    images = arguments.images
    torch.set_num_threads(arguments.threads)
    birds = data.build("cub200", root=SHARED / "datasets").train
    birds = birds.select(torch.linspace(0, len(birds) - 1, images).long())
    with tempfile.TemporaryDirectory() as temporary:
        difference = largest_difference(birds, Path(temporary))
        whole, halved, cut = build(), build(), build()
        trunk, after = halved.split(STAGE)
        activations, rest = networks.cache_activations(cut, STAGE, birds, temporary)
        transform = data.training_transform(whole.preprocessing)
        epochs = {
            "full": epoch(data.loader(birds, transform, batch_size=BATCH), whole),
            "frozen": epoch(data.loader(birds, transform, batch_size=BATCH), after, trunk),
            "cached": epoch(
                data.loader(activations, networks.ActivationTransform(flip=0.5), batch_size=BATCH), rest
            ),
        }
        speeds = medians(epochs, images)
    write(speeds, difference)


def write(speeds: dict[str, float], difference: float) -> None:
    console = Console()
    table = Table("epoch", "images per second", "minutes per CUB epoch", "cached is faster by")
    lines = [
        "| epoch | images per second | minutes per CUB epoch | cached is faster by |",
        "|---|---:|---:|---:|",
    ]
    for name, speed in speeds.items():
        cells = (name, f"{speed:.1f}", f"{EPOCH / speed / 60:.1f}", f"{speeds['cached'] / speed:.1f} ×")
        table.add_row(*cells)
        lines.append(f"| {' | '.join(cells)} |")
    console.print(table)
    closeness = f"Largest difference of a unit embedding's numbers, cached or not: {difference:.1e}."
    console.print(closeness)
    versions = (
        f"torch {torch.__version__}, Python {platform.python_version()}, {torch.get_num_threads()} threads"
    )
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(
        "# EfficientNet-Lite0 on CUB with a cached trunk\n\n"
        f"Medians of {REPEATS} passes that take turns in one process; {versions}. "
        "Written by `benchmarks/trunk.py`, which says what is compared.\n\n"
        + "\n".join(lines)
        + f"\n\n{closeness}\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
