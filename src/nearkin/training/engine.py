"""The training loop: one network, one loss, some images, and a run directory that survives anything."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor

from nearkin import losses, networks, sampling
from nearkin.data import ImageSet, evaluation_transform, loader, training_transform
from nearkin.evaluation import retrieval_scores
from nearkin.losses.base import Loss
from nearkin.networks import (
    ActivationTransform,
    EmbeddingNetwork,
    embed,
    freeze_batch_norm,
    initialise_head_with_pca,
    train_head_only,
)
from nearkin.training.guidance import guided_by_language
from nearkin.training.observer import Observer
from nearkin.training.optimization import build_optimizer, build_scheduler
from nearkin.training.recipe import Recipe
from nearkin.training.run import Checkpoint, Run
from nearkin.training.trunk import activation_transform, after_trunk, seen_by_trunk

_MIXED_PRECISION = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}
_LOOK_EVERY = 25  # batches between two looks at the loss: each makes the host wait for the device

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
    """

    network: EmbeddingNetwork
    epoch: int
    validation: dict[str, float] | None


def build_network(recipe: Recipe) -> EmbeddingNetwork:
    """The recipe's network before training."""
    settings = recipe.network
    network = networks.build(
        settings.name,
        embedding_dim=settings.embedding_dim,
        pooling=settings.pooling,
        layer_norm=settings.layer_norm,
        weights=settings.weights,
        seed=recipe.seed,
        **settings.keywords,
    )
    if settings.freeze_batch_norm:
        freeze_batch_norm(network)
    # This memory order is up to twice as fast, on CPUs as on GPUs.
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def build_loss(recipe: Recipe, num_classes: int) -> Loss:
    """The recipe's loss before training."""
    loss = losses.build(
        recipe.loss.name,
        num_classes=num_classes,
        embedding_dim=recipe.network.embedding_dim,
        generator=torch.Generator().manual_seed(recipe.seed),
        **recipe.loss.keywords,
    )
    if recipe.loss.memory is not None:
        return losses.CrossBatchMemory(loss, **recipe.loss.memory.model_dump())
    return loss


def load_network(run: Run) -> EmbeddingNetwork:
    """The trained network of a finished run."""
    network = build_network(run.recipe)
    network.load_state_dict(run.read_network())
    return network.eval()


def embed_as(
    recipe: Recipe,
    network: EmbeddingNetwork,
    images: ImageSet,
    *,
    what: Literal["embeddings", "features"] = "embeddings",
) -> Tensor:
    """Embeddings ``(N, D)`` or features ``(N, F)`` of images, seen as the recipe says, on the CPU.

    Args:
        recipe: Of the run.
        network: The whole network.
        images: Images, or what its trunk made of them.
        what: Which of the two.
    """
    if recipe.network.cached_trunk is None:
        transform = evaluation_transform(network.preprocessing, recipe.data.transform)
    else:
        images = seen_by_trunk(recipe, network, images)
        network, transform = after_trunk(recipe, network), ActivationTransform()
    return embed(
        network,
        images,
        what=what,
        transform=transform,
        batch_size=recipe.evaluation.batch_size,
        workers=recipe.data.workers,
    )


def train(
    run: Run,
    images: ImageSet,
    validation: ImageSet | Scorer | None = None,
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
        TrainingError: if the loss is not finite.
    """
    with torch.random.fork_rng():
        training = _Training(run, images, validation, observer or Observer())
        return training.run_to_the_end()


class _Training:
    """The state of a training, and how it moves."""

    def __init__(
        self, run: Run, images: ImageSet, validation: ImageSet | Scorer | None, observer: Observer
    ) -> None:
        recipe = run.recipe
        self.recipe, self.run, self.observer = recipe, run, observer
        torch.manual_seed(recipe.seed)
        AcceleratorState._reset_state()  # a process may train several recipes, of different precision
        self.accelerator = Accelerator(mixed_precision=_MIXED_PRECISION[recipe.training.precision])
        network = build_network(recipe).to(self.accelerator.device)
        self.whole_network = network
        images = seen_by_trunk(recipe, network, images, flips=True)
        self.images = images
        if isinstance(validation, ImageSet):
            validation = seen_by_trunk(recipe, network, validation)
        self.validation = validation
        loss = guided_by_language(recipe, build_loss(recipe, images.num_classes), images, observer)
        self.sampler = sampling.build(
            recipe.sampler.name,
            images.labels,
            batch_size=recipe.sampler.batch_size,
            seed=recipe.seed,
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
        optimizer = build_optimizer(recipe, trained_part, loss)
        self.network, self.loss, self.optimizer = self.accelerator.prepare(trained_part, loss, optimizer)
        self.scheduler = build_scheduler(recipe, optimizer, len(self.sampler))
        self.epoch = 0
        self.batch = 0
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=self.accelerator.device)
        self.best: dict[str, Any] | None = None
        self.best_weights: dict[str, Tensor] = {}
        self.rows: list[dict[str, Any]] = []

    def run_to_the_end(self) -> Trained:
        checkpoint = self.run.last_checkpoint()
        if checkpoint is None:
            if self.recipe.network.pca_head:
                features = embed_as(self.recipe, self.whole_network, self.images, what="features")
                initialise_head_with_pca(self.whole_network, features)
            self._score_epoch(seconds=0.0)
        else:
            self._restore(checkpoint)
        self.run.write_metrics(self.rows)
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
            self.sampler.refresh(embed_as(self.recipe, self.whole_network, self.images))
        self.sampler.resume(self.epoch, self.batch)
        self.loader.set_epoch(self.epoch)
        self.network.train()
        if self.recipe.training.head_only:
            train_head_only(
                self.accelerator.unwrap_model(self.network), self.epoch < self.recipe.training.head_only
            )
        started = saved = time.monotonic()
        for images, labels, indices in self.loader:
            device = self.accelerator.device
            value = self._step(images.to(device), labels.to(device), indices.to(device))
            self.batch += 1
            self.loss_sum += value
            self.observer.step(epoch=self.epoch, batch=self.batch, images=len(images), loss=value)
            if self.batch % _LOOK_EVERY == 0:
                self._refuse_broken_loss()
                if time.monotonic() - saved > 60 * self.recipe.training.checkpoint_minutes:
                    self._save()
                    saved = time.monotonic()
        self._refuse_broken_loss()
        self.epoch += 1
        self._score_epoch(seconds=time.monotonic() - started)
        self.batch = 0
        self.loss_sum.zero_()
        self._save()

    def _step(self, images: Tensor, labels: Tensor, indices: Tensor) -> Tensor:
        ids = {} if self.recipe.loss.memory is None else {"ids": indices}
        try:
            value: Tensor = self.loss(self.network(images), labels, **ids)
        except ValueError as error:
            raise TrainingError(f"{self._moment()}: {error}. {_ADVICE}") from error
        self.accelerator.backward(value)
        if self.recipe.optimizer.clip is not None:
            self.accelerator.clip_grad_norm_(self.network.parameters(), self.recipe.optimizer.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.scheduler.step()
        return value.detach()

    def _refuse_broken_loss(self) -> None:
        if not math.isfinite(self.loss_sum.item()):
            raise TrainingError(f"{self._moment()}: the loss is not a finite number. {_ADVICE}")

    def _moment(self) -> str:
        return f"epoch {self.epoch + 1}, batch {self.batch}"

    def _score_epoch(self, *, seconds: float) -> None:
        """Add this epoch's line to the metrics; epoch 0 is the untrained network."""
        row: dict[str, Any] = {"epoch": self.epoch, "lr": self.scheduler.get_last_lr()[0]}
        if self.batch:
            row["loss"] = self.loss_sum.item() / self.batch
            row["seconds"] = round(seconds, 3)
        network: EmbeddingNetwork = self.accelerator.unwrap_model(self.network)
        if self.validation is not None:
            row |= self._validation_scores()
        first = f"recall_at_{self.recipe.evaluation.recall_at[0]}"
        better = self.best is None or self.validation is None or row[first] > self.best[first]
        if self.epoch and better:
            self.best = row
            self.best_weights = {name: value.detach().clone() for name, value in network.state_dict().items()}
        self.rows.append(row)
        self.run.write_metrics(self.rows)
        self.observer.epoch_end(row)

    def _validation_scores(self) -> dict[str, float | int]:
        assert self.validation is not None
        if not isinstance(self.validation, ImageSet):
            return self.validation(self.whole_network)
        embeddings = embed_as(self.recipe, self.whole_network, self.validation)
        recall_at = self.recipe.evaluation.recall_at
        return retrieval_scores(embeddings, self.validation.labels, recall_at=recall_at).to_dict()

    def _finish(self) -> Trained:
        assert self.best is not None
        self.accelerator.unwrap_model(self.network).load_state_dict(self.best_weights)
        self.run.write_network(self.whole_network.state_dict())
        validation = None
        if self.validation is not None:
            validation = {
                key: v for key, v in self.best.items() if key not in {"epoch", "lr", "loss", "seconds"}
            }
        return Trained(self.whole_network.eval(), self.best["epoch"], validation)

    def _save(self) -> None:
        """Write a checkpoint: all that the rest of the run depends on."""
        tensors = {"random_state": torch.get_rng_state(), "loss_sum": self.loss_sum}
        if torch.cuda.is_available():
            tensors["cuda_random_state"] = torch.cuda.get_rng_state(self.accelerator.device)
        groups = {
            "network": self.accelerator.unwrap_model(self.network).state_dict(),
            "loss": self.accelerator.unwrap_model(self.loss).state_dict(),
            "best": self.best_weights,
            "sampler": self.sampler.tensors(),
        }
        tensors |= {
            f"{group}.{name}": value for group, named in groups.items() for name, value in named.items()
        }
        optimizer = self.optimizer.state_dict()
        numbers: dict[str, dict[str, Any]] = {}
        for index, state in optimizer["state"].items():
            for key, value in state.items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer.{index}.{key}"] = value
                else:
                    numbers.setdefault(str(index), {})[key] = value
        state = {
            "epoch": self.epoch,
            "batch": self.batch,
            "best": self.best,
            "rows": self.rows,
            "scheduler": self.scheduler.state_dict(),
            "optimizer": {"groups": optimizer["param_groups"], "numbers": numbers},
            "scaler": self.accelerator.scaler.state_dict() if self.accelerator.scaler is not None else None,
        }
        step = self.epoch * len(self.sampler) + self.batch
        self.run.write_checkpoint(step, Checkpoint(tensors, state))

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Go back to the moment of a checkpoint."""
        parts: dict[str, dict[str, Tensor]] = {
            group: {} for group in ("network", "loss", "best", "sampler", "optimizer")
        }
        for name, tensor in checkpoint.tensors.items():
            group, _, rest = name.partition(".")
            if rest:
                parts[group][rest] = tensor
        state = checkpoint.state
        self.accelerator.unwrap_model(self.network).load_state_dict(parts["network"])
        self.accelerator.unwrap_model(self.loss).load_state_dict(parts["loss"])
        self.best_weights = parts["best"]
        self.sampler.load_tensors(parts["sampler"])
        moments: dict[int, dict[str, Any]] = {
            int(index): dict(values) for index, values in state["optimizer"]["numbers"].items()
        }
        for name, tensor in parts["optimizer"].items():
            index, _, key = name.partition(".")
            moments.setdefault(int(index), {})[key] = tensor
        self.optimizer.load_state_dict({"state": moments, "param_groups": state["optimizer"]["groups"]})
        self.scheduler.load_state_dict(state["scheduler"])
        if self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(state["scaler"])
        torch.set_rng_state(checkpoint.tensors["random_state"])
        if "cuda_random_state" in checkpoint.tensors and torch.cuda.is_available():
            torch.cuda.set_rng_state(checkpoint.tensors["cuda_random_state"], self.accelerator.device)
        self.loss_sum.copy_(checkpoint.tensors["loss_sum"])
        self.epoch, self.batch, self.best, self.rows = (
            state[key] for key in ("epoch", "batch", "best", "rows")
        )


_ADVICE = "The last checkpoint is kept. Try a smaller optimizer.lr, optimizer.clip=1, or precision fp32"
