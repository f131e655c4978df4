"""An epoch of a run beside an epoch of a bare PyTorch loop with the same network, loss and batches.

    python benchmarks/training.py

Both train on the embedded glyphs in one process and take turns, batch by batch. The bare loop, the floor, is
what anybody would write: batches, forward, loss, backward, optimiser, learning rate. The run does everything
that a run does except validation: watchdogs, metrics, and a checkpoint on disk after every epoch. Both start
from the same seed, and their losses must agree in every epoch: the same work is done. Beside the seconds on
the clock stand those of the processor; waiting for the disk is in the first only.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

import harness
from harness import FLOOR, OURS, Benchmark, Options, Taken
from nearkin import data
from nearkin.allocation import keep_freed_memory
from nearkin.recipe import Recipe
from nearkin.training import Observer, Run, Task, train

LOSSES, EPOCHS = ("multi_similarity", "proxy_anchor"), 3


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

    def __init__(self, task: Task, weight_decay: float) -> None:
        samples, embedder = task.data.train, task.embedder.copy()
        self.network = embedder.network.train()
        generator = torch.Generator().manual_seed(task.seed)
        self.loss = task.loss(samples, self.network.embedding_dim, generator, Observer())
        sampler = task.sampler(samples.labels, seed=task.seed, rank=0, world_size=1)
        self.batches = data.loader(
            samples, embedder.training_transform, batch_sampler=sampler, seed=task.seed
        )
        groups = [
            {"params": list(self.network.parameters()), "lr": task.rates.network},
            {"params": list(self.loss.parameters()), "lr": task.rates.loss},
        ]
        self.optimizer = AdamW([group for group in groups if group["params"]], weight_decay=weight_decay)
        steps, epochs = len(sampler), task.settings.epochs
        self.scheduler = LambdaLR(self.optimizer, lambda step: task.schedule(max(step, 1) / steps, epochs))

    def train(self) -> Iterator[Tensor]:
        """Epoch after epoch; yields every batch's loss."""
        for epoch in itertools.count():
            self.batches.set_epoch(epoch)
            for inputs, labels, _ in self.batches:
                self.optimizer.zero_grad(set_to_none=True)
                value = self.loss(self.network(inputs), labels)
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


def epochs_of(loss: str, epochs: int, folder: Path) -> TakingTurns:
    """Train both; seconds of every epoch."""
    recipe = Recipe.parse(
        {"loss": {"name": loss}, "protocol": {"name": "standard"}, "training": {"epochs": epochs}}
    )
    task = recipe.build()
    turns = TakingTurns(BareLoop(task, recipe.optimizer.weight_decay))
    train(task, Run.open(folder, task.description), task.embedder.copy(), task.data.train, observer=turns)
    return turns


def measure(options: Options) -> Iterator[Taken]:
    """Seconds per epoch, on the clock and of the processor, without the first epoch, which warms up."""
    torch.set_num_threads(1)
    keep_freed_memory()  # as the command line does; otherwise the two pay for each other's pages by chance
    for loss in LOSSES[1:] if options.small else LOSSES:
        folder = Path(options.folder, f"{loss} {options.process}")
        turns = epochs_of(loss, 2 if options.small else EPOCHS, folder)
        sides = {FLOOR: turns.loop[1:], OURS: turns.run[1:]}
        yield Taken(loss, {side: [one.clock for one in taken] for side, taken in sides.items()}, "s")
        yield Taken(
            f"{loss}, processor time",
            {side: [one.processor for one in taken] for side, taken in sides.items()},
            "s",
        )


BENCHMARKS = [
    Benchmark(
        "training",
        "An epoch of a run beside a bare PyTorch loop",
        "a bare PyTorch loop with the same network, loss and batches",
        measure,
        "Both sides take turns batch by batch and must reach the same loss in every epoch.",
        threads=1,
    )
]

if __name__ == "__main__":
    harness.main(BENCHMARKS, __file__, __doc__)
