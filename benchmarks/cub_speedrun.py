"""The CUB speedrun: seconds from images to Recall@1 = 62 % and 65 % with EfficientNet-Lite0.

    python benchmarks/cub_speedrun.py --target 62 [--runs 5] [--shared FOLDER]

The clock starts with JPEG files and ImageNet weights on disk and an empty cache, and runs while images are
decoded, the trunk computes its activations, and what comes after it is trained. It stands still while the 100
test classes are scored: they are looked at once per run, at the end. A recipe below is fixed before the clock
starts; a target is reached if the *mean* Recall@1 of all runs, each with its own seed, is at least that.
FLOPs are counted beside the seconds, since those depend on the machine, whose name is printed. A record is a
recipe in this file, and a line of its output.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from nearkin import data, losses, networks, sampling
from nearkin.evaluation import retrieval_scores
from nearkin.networks.embedding import initialise_head_with_pca
from nearkin.training.mixed_precision import MixedPrecision, steps_are_faster_in_bf16
from nearkin.training.schedules import Cosine, Schedule
from nearkin.training.settings import Precision

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Recipe:
    """All that may be changed for a record."""

    stage: str  # what comes after it is trained, on activations that are computed once
    epochs: int
    lr: float
    loss_lr: float = 1e-2
    flips: bool = True
    size: int = 256
    embedding_dim: int = 512
    batch_size: int = 120
    loss: str = "proxy_anchor"
    precision: Precision = "bf16" if steps_are_faster_in_bf16() else "fp32"


# The defaults for photographs with fewer epochs, and a first guess.
RECIPES = {
    62: Recipe(stage="blocks.4", epochs=4, lr=2e-4),
    65: Recipe(stage="blocks.3", epochs=16, lr=1e-4),
}


@dataclass(frozen=True)
class Lap:
    """What one run took and reached."""

    seed: int
    trunk_seconds: float
    training_seconds: float
    flops: float
    recall_at_1: float
    map_at_r: float

    @property
    def seconds(self) -> float:
        """What the clock said."""
        return self.trunk_seconds + self.training_seconds


def run(recipe: Recipe, birds: data.DataSet, weights: Path, seed: int) -> Lap:
    """Train once and score the test classes once."""
    torch.manual_seed(seed)
    with tempfile.TemporaryDirectory() as cache:
        started = time.perf_counter()
        network = networks.build(
            "timm:tf_efficientnet_lite0",
            embedding_dim=recipe.embedding_dim,
            pooling="avg+max",
            weights=weights,
            size=recipe.size,
        ).to(memory_format=torch.channels_last)
        networks.freeze_batch_norm(network)
        pixels = data.evaluation_transform(network.preprocessing)
        trunk_flops = flops_of(network.split(recipe.stage)[0], birds.train, pixels)
        seen, rest = networks.cache_activations(network, recipe.stage, birds.train, cache, flips=recipe.flips)
        trunk_seconds = time.perf_counter() - started
        steps = train(recipe, rest, seen, seed)
        training_seconds = time.perf_counter() - started - trunk_seconds
        # The clock stands still.
        test, _ = networks.cache_activations(network, recipe.stage, birds.test, cache, flips=False)
        scores = retrieval_scores(embedded(rest, test), birds.test.labels)
        part_flops = flops_of(rest, seen, networks.ActivationTransform())
        passes = (1 + recipe.flips) * len(birds.train)
        flops = trunk_flops * passes + 3 * part_flops * steps * recipe.batch_size  # backward is twice forward
    return Lap(seed, trunk_seconds, training_seconds, flops, scores.recall_at[1], scores.map_at_r)


def train(recipe: Recipe, network: networks.EmbeddingNetwork, seen: data.SampleSet, seed: int) -> int:
    """Train what comes after the trunk; the number of steps."""
    initialise_head_with_pca(network, embedded(network, seen, "features"))
    generator = torch.Generator().manual_seed(seed)
    loss = losses.build(
        recipe.loss, num_classes=seen.num_classes, embedding_dim=recipe.embedding_dim, generator=generator
    )
    optimizer = torch.optim.AdamW([*network.param_groups(recipe.lr), *loss.param_groups(recipe.loss_lr)])
    batches = sampling.build("random", labels=seen.labels, batch_size=recipe.batch_size, seed=seed)
    loader = data.loader(
        seen, networks.ActivationTransform(flip=0.5 * recipe.flips), batch_sampler=batches, seed=seed
    )
    schedule = Schedule(Cosine())
    scheduler = schedule.scheduler(optimizer, epochs=recipe.epochs, steps=len(batches))
    network.train()
    stepping = MixedPrecision(network, recipe.precision)
    for epoch in range(recipe.epochs):
        batches.set_epoch(epoch)
        for batch in loader:
            optimizer.zero_grad()
            loss(stepping(batch.inputs), batch.labels).backward()
            optimizer.step()
            scheduler.step()
    network.eval()
    return recipe.epochs * len(batches)


def embedded(
    network: networks.EmbeddingNetwork, seen: data.SampleSet, what: str = "embeddings"
) -> torch.Tensor:
    return networks.embed(network, seen, what=what, transform=networks.ActivationTransform())


def flops_of(network: torch.nn.Module, samples: data.SampleSet, transform: data.Transform) -> int:
    """Floating-point operations of one sample's way forward."""
    batch = next(iter(data.loader(samples.select([0]), transform, batch_size=1)))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(batch.inputs)
    return int(counter.get_total_flops())


def machine() -> str:
    """The processor by its name, and how many threads compute."""
    named = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    device = (
        torch.cuda.get_device_name() if torch.cuda.is_available() else (named or [platform.processor()])[0]
    )
    return f"{device}, {torch.get_num_threads()} threads of {os.cpu_count()} cores, torch {torch.__version__}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", type=int, choices=sorted(RECIPES), default=62)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared")
    parser.add_argument("--images", type=int, help="only so many of each split, to see that it works")
    options = parser.parse_args()
    birds = data.build("cub200", root=options.shared / "datasets")
    if options.images:
        splits = (one.of_classes(range(10)) for one in (birds.train, birds.test))
        birds = data.DataSet("cub200", *(one.select(range(options.images)) for one in splits))
    weights = options.shared / "weights" / "tf_efficientnet_lite0.safetensors"
    recipe = RECIPES[options.target]
    print(f"{machine()}\n{recipe}")
    laps = []
    for seed in range(options.runs):
        laps.append(run(recipe, birds, weights, seed))
        last = laps[-1]
        print(
            f"run {seed}: {last.seconds:.1f} s (trunk {last.trunk_seconds:.1f}, training "
            f"{last.training_seconds:.1f}), Recall@1 {100 * last.recall_at_1:.2f}, "
            f"MAP@R {100 * last.map_at_r:.2f}"
        )
    recall = statistics.fmean(lap.recall_at_1 for lap in laps)
    spread = statistics.stdev(lap.recall_at_1 for lap in laps) if len(laps) > 1 else 0.0
    verdict = "reached" if 100 * recall >= options.target else "NOT reached"
    print(
        f"mean of {len(laps)}: {statistics.fmean(lap.seconds for lap in laps):.1f} s, "
        f"{statistics.fmean(lap.flops for lap in laps):.3g} FLOPs, Recall@1 {100 * recall:.2f} "
        f"± {100 * spread:.2f}: {options.target} % is {verdict}"
    )
    print(json.dumps([vars(lap) for lap in laps]))


if __name__ == "__main__":
    main()
