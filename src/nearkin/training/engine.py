"""The training loop: one network, one loss, some images, and a run directory that survives anything."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from nearkin import sampling
from nearkin.data import SampleSet, loader, training_transform
from nearkin.evaluation import retrieval_scores
from nearkin.language.guidance import guided_by_language
from nearkin.networks import EmbeddingNetwork, initialise_head_with_pca, train_head_only
from nearkin.observer import Observer
from nearkin.training.averaging import WeightAverage
from nearkin.training.building import build_loss, build_network, embed_as
from nearkin.training.distributed import Processes, build_accelerator
from nearkin.training.gradient_caching import backward_in_chunks, refuse_trained_batch_norm
from nearkin.training.optimization import build_optimizer, build_scheduler
from nearkin.training.resuming import (
    fingerprint,
    flattened,
    grouped,
    load_optimizer_state,
    optimizer_state,
    refuse_other_images,
)
from nearkin.training.run import Checkpoint, Run
from nearkin.training.trackers import with_trackers
from nearkin.training.trunk import activation_transform, after_trunk, seen_by_trunk
from nearkin.training.watchdogs import Glimpse, Watchdogs

__all__ = ["Scorer", "Trained", "TrainingError", "embed_as", "train"]

_LOOK_EVERY = 25  # steps between two looks at the loss: each makes the host wait for the device

Scorer = Callable[[EmbeddingNetwork], dict[str, float | int]]
"""Scores a network on classes that training is not given."""


class TrainingError(RuntimeError):
    """Training cannot go on; the last checkpoint is kept."""


@dataclass(frozen=True)
class Trained:
    """What a training leaves.

    Attributes:
        network: With the weights of the chosen epoch.
        epoch: The chosen epoch, counted from 1.
        validation: The chosen epoch's validation scores, if there was a validation split.
        warnings: What the watchdogs said, a line each.
    """

    network: EmbeddingNetwork
    epoch: int
    validation: dict[str, float] | None
    warnings: tuple[str, ...] = ()


def train(
    run: Run,
    images: SampleSet,
    validation: SampleSet | Scorer | None = None,
    observer: Observer | None = None,
) -> Trained:
    """Train the run's recipe on ``images``, going on from its last checkpoint if there is one.

    With a validation split the epoch with the best first Recall@k is chosen (the earlier one of equals),
    otherwise the last epoch.

    Args:
        run: Where recipe, metrics and checkpoints live.
        images: The classes to learn from; images, or what the recipe's trunk made of them.
        validation: Classes to select the epoch on, or what scores a network on them; after every epoch.
        observer: Hears about every batch and epoch; what it raises ends the training, which can go on later.

    Raises:
        TrainingError: if the loss is not finite, or if a process that reads images died.
        RunError: if a file cannot be written, or the data is not what it was when the run began.
    """
    observer = with_trackers(observer or Observer(), run) if run.writes else Observer()
    with torch.random.fork_rng():
        training = _Training(run, images, validation, observer)
        try:
            return training.run_to_the_end()
        except (RuntimeError, ConnectionError, EOFError) as error:
            if not _says_that_a_reader_died(error):
                raise
            raise TrainingError(
                f"{training.moment()}: a process that reads images died, most often for lack of memory. The "
                "last checkpoint is kept and the same command goes on from it. Try fewer data.workers"
            ) from error


def _says_that_a_reader_died(error: Exception) -> bool:
    """Whether torch noticed a dead process, or only that a batch could not be fetched from it any more."""
    if isinstance(error, RuntimeError):
        return "DataLoader worker" in str(error)
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(frame.f_globals.get("__name__") == "torch.utils.data.dataloader" for frame in frames)


class _Training:
    """The state of a training, and how it moves."""

    def __init__(
        self, run: Run, images: SampleSet, validation: SampleSet | Scorer | None, observer: Observer
    ) -> None:
        recipe = run.recipe
        self.recipe, self.run, self.observer = recipe, run, observer
        torch.manual_seed(recipe.seed)
        self.accelerator = build_accelerator(recipe.training.precision)
        self.processes = Processes.of(self.accelerator)
        network = build_network(recipe).to(self.accelerator.device)
        self.whole_network = network
        images = seen_by_trunk(recipe, network, images, flips=True)
        self.images = images
        if isinstance(validation, SampleSet):
            validation = seen_by_trunk(recipe, network, validation)
        self.validation = validation
        loss = guided_by_language(recipe, build_loss(recipe, images.num_classes), images, observer)
        self.sampler = sampling.build(
            recipe.sampler.name,
            images.labels,
            batch_size=recipe.sampler.batch_size,
            seed=recipe.seed,
            rank=self.processes.rank,
            world_size=self.processes.count,
            **recipe.sampler.keywords,
        )
        if len(self.sampler) == 0:
            raise ValueError(f"{len(images)} images do not fill one batch of {recipe.sampler.batch_size}")
        trained_part = after_trunk(recipe, network)
        self.loader = loader(
            images,
            training_transform(network.preprocessing, recipe.data.transform)
            if trained_part is network
            else activation_transform(images),
            batch_sampler=self.sampler,
            seed=recipe.seed,
            workers=recipe.data.workers,
        )
        refuse_trained_batch_norm(trained_part, recipe.training.chunk)
        optimizer = build_optimizer(recipe, trained_part, loss)
        # The processes meet in this loop, not in a wrapper: see nearkin.training.distributed.
        self.network, self.loss = (
            self.accelerator.prepare_model(module, evaluation_mode=True) for module in (trained_part, loss)
        )
        self.optimizer = self.accelerator.prepare_optimizer(optimizer)
        self.scheduler = build_scheduler(
            recipe, optimizer, math.ceil(len(self.sampler) / recipe.training.accumulate)
        )
        ema = recipe.training.ema
        self.average = None if ema is None else WeightAverage(self.network, ema)
        self.watchdogs = Watchdogs(recipe, loss, self.observer.warning)
        self.batch_sizes = self.sampler.batch_sizes
        self.epoch = 0
        self.batch = 0
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=self.accelerator.device)
        self.best: dict[str, Any] | None = None
        self.best_weights: dict[str, Tensor] = {}
        self.rows: list[dict[str, Any]] = []
        self.processes.seed_apart(recipe.seed)

    def run_to_the_end(self) -> Trained:
        checkpoint = self.run.last_checkpoint()
        if checkpoint is None:
            if self.recipe.network.pca_head:
                initialise_head_with_pca(self.whole_network, self._embed(self.images, what="features"))
                if self.average is not None:
                    self.average.restart()
            self._score_epoch(seconds=0.0)
        else:
            self._restore(checkpoint)
        self.processes.copy_from_first([*self.network.state_dict().values(), *self.loss.parameters()])
        self.run.write_metrics(self.rows)
        self.watchdogs.begin(self.sampler, self.network)
        self.observer.begin(
            epochs=self.recipe.training.epochs, batches=len(self.sampler), epoch=self.epoch, batch=self.batch
        )
        try:
            while self.epoch < (self.recipe.training.stop_after or self.recipe.training.epochs):
                self._train_epoch()
        finally:
            self.observer.end()
        return self._finish()

    def _train_epoch(self) -> None:
        if self.batch == 0 and self.sampler.needs_embeddings(self.epoch):
            self.sampler.refresh(self._embed(self.images))
        self.sampler.resume(self.epoch, self.batch)
        self.loader.set_epoch(self.epoch)
        self.network.train()
        if self.recipe.training.head_only:
            train_head_only(
                self.accelerator.unwrap_model(self.network), self.epoch < self.recipe.training.head_only
            )
        look_every = _LOOK_EVERY * self.recipe.training.accumulate
        started = self.saved = time.monotonic()
        for images, labels, indices in self.loader:
            device = self.accelerator.device
            value = self._step(images.to(device), labels.to(device), indices.to(device))
            size = self.batch_sizes[self.batch]
            self.batch += 1
            self.loss_sum += value
            self.observer.step(epoch=self.epoch, batch=self.batch, images=size, loss=value)
            if self.batch % look_every == 0:
                self._look()
                if self.processes.ask_first(self._checkpoint_is_due):
                    self._save()
        if self.batch % look_every:
            self._look()
        self.epoch += 1
        self._score_epoch(seconds=time.monotonic() - started)
        self.batch = 0
        self.loss_sum.zero_()
        self._save()

    def _step(self, images: Tensor, labels: Tensor, indices: Tensor) -> Tensor:
        """Add a batch's gradients; after the last batch of a group, move the weights."""
        first = self.batch // self.recipe.training.accumulate * self.recipe.training.accumulate
        group = min(self.recipe.training.accumulate, len(self.sampler) - first)
        total = self.batch_sizes[self.batch]
        labels = self.processes.gather(labels, total)
        ids = {} if self.recipe.loss.memory is None else {"ids": self.processes.gather(indices, total)}

        def mean_of_group(own: Tensor) -> Tensor:
            embeddings = self.processes.gather(own, total)
            self.seen = embeddings.detach(), labels
            value: Tensor = self.loss(embeddings, labels, **ids) / group
            return value

        try:
            value = backward_in_chunks(
                self.network,
                images,
                mean_of_group,
                chunk=self.recipe.training.chunk,
                backward=self.accelerator.backward,
            )
        except ValueError as error:
            raise TrainingError(f"{self.moment()}: {error}. {_ADVICE}") from error
        if self.batch + 1 == first + group:
            self._move_weights()
        return value * group

    def _move_weights(self) -> None:
        self.processes.sum_gradients(self.network.parameters())
        self.processes.average_gradients(self.loss.parameters())
        if self.recipe.optimizer.clip is not None:
            self.accelerator.clip_grad_norm_(self.network.parameters(), self.recipe.optimizer.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.scheduler.step()
        if self.average is not None:
            self.average.update()

    def _checkpoint_is_due(self) -> bool:
        return time.monotonic() - self.saved > 60 * self.recipe.training.checkpoint_minutes

    def _look(self) -> None:
        """Stop if the loss is broken, and show the last batch to the watchdogs: the host waits here."""
        loss_sum = self.loss_sum.item()
        if not math.isfinite(loss_sum):
            raise TrainingError(f"{self.moment()}: the loss is not a finite number. {_ADVICE}")
        rate = float(self.scheduler.get_last_lr()[0] / self.scheduler.base_lrs[0])
        self.watchdogs.look(
            Glimpse(self.moment(), self._steps(), self.batch, loss_sum, rate, *self.seen),
        )

    def _steps(self) -> int:
        return self.epoch * len(self.sampler) + self.batch

    def moment(self) -> str:
        """The present place in the training, in words."""
        return f"epoch {self.epoch + 1}, batch {self.batch}"

    def _score_epoch(self, *, seconds: float) -> None:
        """Add this epoch's line to the metrics; epoch 0 is the untrained network."""
        row: dict[str, Any] = {"epoch": self.epoch, "lr": self.scheduler.get_last_lr()[0]}
        if self.batch:
            row["loss"] = self.loss_sum.item() / self.batch
            row["seconds"] = round(seconds, 3)
        with nullcontext() if self.average is None else self.average.in_place():
            if self.validation is not None:
                row |= self._validation_scores()
            first = f"recall_at_{self.recipe.evaluation.recall_at[0]}"
            better = self.best is None or self.validation is None or row[first] > self.best[first]
            if self.epoch and better:
                self.best = row
                weights = self.accelerator.unwrap_model(self.network).state_dict()
                self.best_weights = {name: value.detach().clone() for name, value in weights.items()}
        self.rows.append(row)
        self.run.write_metrics(self.rows)
        self.observer.epoch_end(row)
        self.watchdogs.epoch_end(self.rows)

    def _validation_scores(self) -> dict[str, float | int]:
        assert self.validation is not None
        if not isinstance(self.validation, SampleSet):
            scorer = self.validation
            return self.processes.ask_first(lambda: scorer(self.whole_network))
        embeddings, labels = self._embed(self.validation), self.validation.labels
        recall_at = self.recipe.evaluation.recall_at
        return self.processes.ask_first(
            lambda: retrieval_scores(embeddings, labels, recall_at=recall_at).to_dict()
        )

    def _embed(self, images: SampleSet, what: Literal["embeddings", "features"] = "embeddings") -> Tensor:
        """All images through the present network, the work shared between processes; on the CPU."""
        self.processes.copy_from_first(self.whole_network.buffers())
        share = images if self.processes.count == 1 else images.select(self.processes.share(len(images)))
        rows = embed_as(self.recipe, self.whole_network, share, what=what)
        return self.processes.gather(rows.to(self.accelerator.device), len(images)).cpu()

    def _finish(self) -> Trained:
        assert self.best is not None
        self.accelerator.unwrap_model(self.network).load_state_dict(self.best_weights)
        self.run.write_network(self.whole_network.state_dict())
        validation = None
        if self.validation is not None:
            validation = {
                key: v for key, v in self.best.items() if key not in {"epoch", "lr", "loss", "seconds"}
            }
        return Trained(
            self.whole_network.eval(), self.best["epoch"], validation, warnings=self.watchdogs.warnings
        )

    def _save(self) -> None:
        """Write a checkpoint: all that the rest of the run depends on."""
        moments, optimizer = optimizer_state(self.optimizer)
        tensors = {
            "random_state": self.processes.random_states(),
            "network": self.accelerator.unwrap_model(self.network).state_dict(),
            "loss": self.accelerator.unwrap_model(self.loss).state_dict(),
            "best": self.best_weights,
            "average": {} if self.average is None else self.average.tensors(),
            "sampler": self.sampler.tensors(),
            "watchdogs": self.watchdogs.tensors(),
            "optimizer": moments,
            "sum": {"loss": self.loss_sum},
        }
        state = {
            "data": fingerprint(self.images),
            "epoch": self.epoch,
            "batch": self.batch,
            "best": self.best,
            "rows": self.rows,
            "watchdogs": self.watchdogs.state(),
            "scheduler": self.scheduler.state_dict(),
            "optimizer": optimizer,
            "scaler": self.accelerator.scaler.state_dict() if self.accelerator.scaler is not None else None,
        }
        self.run.write_checkpoint(self._steps(), Checkpoint(flattened(tensors), state))
        self.saved = time.monotonic()

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Go back to the moment of a checkpoint."""
        tensors, state = grouped(checkpoint.tensors), checkpoint.state
        refuse_other_images(state["data"], self.images)
        self.processes.set_random_states(tensors["random_state"])
        self.accelerator.unwrap_model(self.network).load_state_dict(tensors["network"])
        self.accelerator.unwrap_model(self.loss).load_state_dict(tensors["loss"])
        self.best_weights = tensors["best"]
        if self.average is not None:
            self.average.load_tensors(tensors["average"])
        self.sampler.load_tensors(tensors["sampler"])
        self.watchdogs.load(state["watchdogs"], tensors["watchdogs"])
        load_optimizer_state(self.optimizer, tensors["optimizer"], state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        if self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(state["scaler"])
        self.loss_sum.copy_(tensors["sum"]["loss"])
        self.epoch, self.batch, self.best, self.rows = (
            state[key] for key in ("epoch", "batch", "best", "rows")
        )


_ADVICE = "The last checkpoint is kept. Try a smaller optimizer.lr, optimizer.clip=1, or precision fp32"
