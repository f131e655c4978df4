"""An epoch of a run beside an epoch of a bare PyTorch loop with the same network, loss and batches.

    python benchmarks/training.py [--loss multi_similarity] [--epochs 6] [--threads 1]

Both train on the embedded glyphs in one process and take turns, batch by batch, so that whatever else the
machine does slows both. The bare loop is what anybody would write: batches, forward, loss, backward,
optimiser, learning rate. The run does everything that a run does except validation: watchdogs, metrics, and a
checkpoint on disk after every epoch. Both start from the same seed, and their losses must agree in every
epoch: the same work is done. Beside the seconds on the clock
stand those of the processor, which other programs disturb less; waiting for the disk is in the first only.
"""

from __future__ import annotations

import argparse
import itertools
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from nearkin import data, sampling
from nearkin.allocation import keep_freed_memory
from nearkin.training import Observer, Recipe, Run, build_network, train
from nearkin.training.building import build_loss
from nearkin.training.optimization import learning_rate_factor

RESULTS = Path(__file__).parent / "results"


class Seconds(NamedTuple):
    """On the clock, and of the processor."""

    clock: float
    processor: float

    @classmethod
    def now(cls) -> Seconds:
        """This moment."""
        return cls(time.perf_counter(), time.process_time())

    @classmethod
    def since(cls, start: Seconds) -> Seconds:
        """What has passed."""
        now = cls.now()
        return cls(now.clock - start.clock, now.processor - start.processor)


class BareLoop:
    """Nothing but PyTorch around the same network, loss and batches."""

    def __init__(self, recipe: Recipe, images: data.SampleSet) -> None:
        self.network = build_network(recipe).train()
        self.loss = build_loss(recipe, images.num_classes)
        self.sampler = sampling.build(
            recipe.sampler.name, images.labels, batch_size=recipe.sampler.batch_size, seed=recipe.seed
        )
        transform = data.training_transform(self.network.preprocessing, recipe.data.transform)
        self.batches = data.loader(images, transform, batch_sampler=self.sampler, seed=recipe.seed)
        lr, decay = recipe.optimizer.lr, recipe.optimizer.weight_decay
        groups = [
            {"params": list(self.network.parameters()), "lr": lr},
            {"params": list(self.loss.parameters()), "lr": recipe.loss.lr_factor * lr},
        ]
        self.optimizer = AdamW([group for group in groups if group["params"]], lr=lr, weight_decay=decay)
        steps, epochs = len(self.sampler), recipe.training.epochs
        self.scheduler = LambdaLR(
            self.optimizer,
            lambda step: learning_rate_factor(recipe.schedule, epochs, max(step, 1) / steps),
        )

    def train(self) -> Iterator[Tensor]:
        """Epoch after epoch; yields every batch's loss."""
        for epoch in itertools.count():
            self.batches.set_epoch(epoch)
            for images, labels, _ in self.batches:
                self.optimizer.zero_grad(set_to_none=True)
                value = self.loss(self.network(images), labels)
                value.backward()
                self.optimizer.step()
                self.scheduler.step()
                yield value.detach()


class TakingTurns(Observer):
    """After every batch of the run, a batch of the bare loop; both are timed from end to end."""

    def __init__(self, bare: BareLoop) -> None:
        self.batches = bare.train()
        self.run: list[Seconds] = []
        self.loop: list[Seconds] = []
        self.turns: dict[str, list[Seconds]] = {"run": [], "loop": []}
        self.losses: list[Tensor] = []
        self.started = Seconds.now()

    def begin(self, **_: Any) -> None:
        """The first epoch of the run begins."""
        self.started = Seconds.now()

    def step(self, **_: Any) -> None:
        """The bare loop's turn."""
        self.turns["run"].append(Seconds.since(self.started))
        start = Seconds.now()
        self.losses.append(next(self.batches))
        self.turns["loop"].append(Seconds.since(start))
        self.started = Seconds.now()

    def epoch_end(self, row: dict[str, Any]) -> None:
        """Both have done an epoch; the checkpoint, which comes now, counts for the run's next."""
        if not row["epoch"]:
            return
        self.turns["run"].append(Seconds.since(self.started))
        loss = torch.stack(self.losses).double().mean().item()
        if abs(loss - row["loss"]) > 1e-3 * abs(loss):
            raise SystemExit(f"epoch {row['epoch']}: the run's loss is {row['loss']}, the bare loop's {loss}")
        for name, epochs in (("run", self.run), ("loop", self.loop)):
            epochs.append(Seconds(*map(sum, zip(*self.turns[name], strict=True))))
            self.turns[name].clear()
        self.losses.clear()
        self.started = Seconds.now()


def measure(loss: str, epochs: int, folder: Path) -> dict[str, float]:
    """Medians of seconds per epoch, without the first, which warms up."""
    recipe = Recipe.parse(
        {
            "loss": {"name": loss},
            "protocol": {"name": "standard"},
            "training": {"epochs": epochs},
        }
    )
    images = data.build(recipe.data.name, recipe.data.root, **recipe.data.keywords).train
    turns = TakingTurns(BareLoop(recipe, images))
    train(Run.open(folder / loss, recipe), images, None, turns)
    pairs = list(zip(turns.run[1:], turns.loop[1:], strict=True))
    ratios = [run.clock / loop.clock for run, loop in pairs]
    return {
        "images": len(images),
        "run": statistics.median(run.clock for run, _ in pairs),
        "bare loop": statistics.median(loop.clock for _, loop in pairs),
        "ratio": statistics.median(ratios),
        "lowest": min(ratios),
        "highest": max(ratios),
        "processor": statistics.median(run.processor / loop.processor for run, loop in pairs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--loss", default="multi_similarity")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()  # as the command line does; otherwise the two pay for each other's pages by chance
    with tempfile.TemporaryDirectory() as temporary:
        measured = measure(arguments.loss, arguments.epochs, Path(temporary))
    write(arguments.loss, measured, arguments.epochs)


def write(loss: str, measured: dict[str, float], epochs: int) -> None:
    console = Console()
    header = ("loss", "images", "run, s", "loop, s", "run / loop", "lowest to highest", "processor")
    cells = (
        loss,
        f"{measured['images']:,}",
        f"{measured['run']:.3f}",
        f"{measured['bare loop']:.3f}",
        f"{measured['ratio']:.3f}",
        f"{measured['lowest']:.3f} to {measured['highest']:.3f}",
        f"{measured['processor']:.3f}",
    )
    table = Table(*header)
    table.add_row(*cells)
    console.print(table)
    versions = (
        f"torch {torch.__version__}, Python {platform.python_version()}, {torch.get_num_threads()} threads"
    )
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"training_{loss}.md").write_text(
        "# A run beside a bare PyTorch loop\n\n"
        f"Seconds per epoch: medians of {epochs - 1} epochs that take turns, batch by batch, in one process; "
        f"{versions}. The last column is the ratio of processor seconds. By `benchmarks/training.py`, "
        "which says what is compared.\n\n"
        + f"| {' | '.join(header)} |\n|---|---:|---:|---:|---:|---:|---:|\n| {' | '.join(cells)} |\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
