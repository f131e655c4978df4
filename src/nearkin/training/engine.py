"""The training loop: one network, one loss, some samples, and a run directory that survives anything."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from nearkin.data import SampleSet, TwoModalities
from nearkin.data.nested import move
from nearkin.data.two_modalities import modality
from nearkin.evaluation import (
    RetrievalScores,
    Threshold,
    TooFewPairsError,
    choose_threshold,
    choose_threshold_on_pairs,
    pair_scores,
    pair_similarities,
    retrieval_scores,
)
from nearkin.evaluation.thresholds import FEWEST_CLASSES
from nearkin.losses.base import Loss, NotFiniteError
from nearkin.losses.modifiers import teacher_decay
from nearkin.losses.modifiers.base import base_of
from nearkin.model import describe
from nearkin.networks import initialise_head_with_pca
from nearkin.networks.base import Network, WithFeatures
from nearkin.networks.blocks import by_block
from nearkin.networks.embedder import Embedder
from nearkin.networks.lora import add_lora, merge_lora
from nearkin.observer import Observer
from nearkin.training.averaging import WeightAverage
from nearkin.training.class_slices import ClassSlices
from nearkin.training.distributed import Processes, build_accelerator
from nearkin.training.gradient_caching import backward_in_chunks, refuse_trained_batch_norm
from nearkin.training.mixed_precision import MixedPrecision, autocast
from nearkin.training.optimizers import refuse_forgotten_parameters, refuse_sampled_classes
from nearkin.training.protocol import Scorer
from nearkin.training.result import DataSummary, NetworkResult, SplitSummary
from nearkin.training.resuming import (
    fingerprint,
    flattened,
    grouped,
    load_optimizer_state,
    optimizer_state,
    refuse_other_samples,
)
from nearkin.training.run import Checkpoint, Run
from nearkin.training.task import LearningRates, Task
from nearkin.training.trackers import Observers
from nearkin.training.watchdogs import Glimpse, Watchdogs

__all__ = ["TrainingError", "train"]

_LOOK_EVERY = 25  # steps between two looks at the loss: each makes the host wait for the device
_NOT_SCORES = frozenset({"epoch", "lr", "loss", "seconds", "roc_auc"})  # of retrieval, in a row of metrics


class TrainingError(RuntimeError):
    """Training cannot go on; the last checkpoint is kept."""


def train(
    task: Task,
    run: Run,
    embedder: Embedder,
    samples: SampleSet,
    *,
    validation: SampleSet | Scorer | None = None,
    threshold: Threshold | None = None,
    observer: Observer | None = None,
) -> NetworkResult:
    """Train a task's network on ``samples``, going on from the run's last checkpoint if there is one.

    With a validation split the epoch with the best score is chosen (``settings.select`` says which score); of
    equals the one with the better other score, and then the later one. Without, the last epoch.

    Args:
        task: What is trained and how.
        run: Where metrics and checkpoints live.
        embedder: The network, which is trained in place.
        samples: The classes to learn from; samples, or what the embedder's trunk made of them.
        validation: Classes to select the epoch on, or what scores a network on them; after every epoch.
        threshold: Goes with the network, where one was chosen before; without, validation classes choose it.
        observer: Hears about every batch and epoch; what it raises ends the training, which can go on later.

    Raises:
        TrainingError: if the loss is not finite, or if a process that reads samples died.
        RunError: if a file cannot be written, or the data is not what it was when the run began.
    """
    observer = observer or Observer()
    if run.finished:
        embedder.network.load_state_dict(run.read_network())
        return replace(run.result.networks[0], embedder=embedder, run=".")
    if not run.writes:
        observer = Observer()
    elif task.trackers:
        observer = Observers([observer, *(make(run) for make in task.trackers)])
    with torch.random.fork_rng():
        training = _Training(
            task, run, embedder, samples, validation=validation, threshold=threshold, observer=observer
        )
        try:
            return training.run_to_the_end()
        except (RuntimeError, ConnectionError, EOFError) as error:
            if not _says_that_a_reader_died(error):
                raise
            raise TrainingError(
                f"{training.moment()}: a process that reads samples died, most often for lack of memory. The "
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
        self,
        task: Task,
        run: Run,
        embedder: Embedder,
        samples: SampleSet,
        *,
        validation: SampleSet | Scorer | None,
        threshold: Threshold | None,
        observer: Observer,
    ) -> None:
        self.task, self.settings, self.run, self.observer = task, task.settings, run, observer
        self.embedder, self.threshold = embedder, threshold
        torch.manual_seed(task.seed)
        self.accelerator = build_accelerator(self.settings.precision)
        self.processes = Processes.of(self.accelerator)
        embedder.network.to(self.accelerator.device)
        samples = embedder.prepared(task.learnt(samples), flips=True, progress=observer.progress)
        self.samples = samples
        self.contents = fingerprint(samples)
        if isinstance(validation, SampleSet):
            validation = embedder.prepared(validation, progress=observer.progress)
        self.validation = validation
        generator = torch.Generator().manual_seed(task.seed)
        loss = task.loss(samples, embedder.network.embedding_dim, generator, observer)
        self.slices = ClassSlices(loss, self.processes, divided=self.settings.sharded)
        self.asks_for_ids, asks_for_features = loss.asks("ids"), loss.asks("features")
        self.asks_for_clusters = loss.asks("clusters")
        self.sampler = task.batches(samples, rank=self.processes.rank, world_size=self.processes.count)
        if len(self.sampler) == 0:
            raise ValueError(f"{len(samples)} samples do not fill one batch of {self.sampler.batch_size}")
        self.loader = embedder.training_loader(
            samples, self.sampler, seed=task.seed, views=self.settings.views
        )
        trained_part = embedder.trained_part()
        if self.settings.lora is not None:
            add_lora(trained_part, self.settings.lora, seed=task.seed)
        refuse_trained_batch_norm(trained_part, self.settings.chunk)
        optimizer = _optimizer(task, trained_part, loss)
        self.backbone_parameters = [p for p in trained_part.backbone.parameters() if p.requires_grad]
        # The processes meet in this loop, not in a wrapper: see nearkin.training.distributed.
        self.network, self.loss = trained_part, loss.to(self.accelerator.device)
        # What the loss sees of a batch: embeddings, and features beside them where it asks for them.
        self.seen_network: Network | WithFeatures = self.network
        if asks_for_features:
            self.seen_network = WithFeatures(self.network)
        self.stepping_network = MixedPrecision(self.seen_network, self.settings.precision)
        self.optimizer = self.accelerator.prepare_optimizer(optimizer)
        self.scheduler = task.schedule.scheduler(
            optimizer,
            epochs=self.settings.epochs,
            steps=math.ceil(len(self.sampler) / self.settings.accumulate),
        )
        ema = self.settings.ema
        self.average = None if ema is None else WeightAverage(self.network, ema)
        decay = teacher_decay(loss)
        # A teacher shows its features to a loss that asks for them, as the network does.
        self.teacher_shows_features = asks_for_features and loss.asks("teacher_features")
        teaching = self.seen_network if self.teacher_shows_features else self.network
        self.teacher = None if decay is None else WeightAverage(teaching, decay)
        self.watchdogs = Watchdogs(self.settings, loss, self.observer.warning)
        self.batch_sizes = self.sampler.batch_sizes
        self.epoch = 0
        self.batch = 0
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=self.accelerator.device)
        self.best: dict[str, Any] | None = None
        self.best_weights: dict[str, Tensor] = {}
        self.rows: list[dict[str, Any]] = []
        self.processes.seed_apart(task.seed)

    def run_to_the_end(self) -> NetworkResult:
        checkpoint = self.run.last_checkpoint()
        self.run.begin()
        if checkpoint is None:
            if self.settings.pca_head:
                self.observer.stage("computing features for the head's principal components")
                initialise_head_with_pca(self.embedder.network, self._embed(self.samples, what="features"))
                for average in self._averages():
                    average.restart()
            if self.validation is not None:
                self.observer.stage("scoring the untrained network")
            self._score_epoch(seconds=0.0)
        else:
            self._restore(checkpoint)
        self.processes.copy_from_first([*self.network.state_dict().values(), *self.slices.common(self.loss)])
        self.run.write_metrics(self.rows)
        self.watchdogs.begin(self.sampler, self.network)
        self.observer.begin(
            epochs=self.settings.last_epoch, batches=len(self.sampler), epoch=self.epoch, batch=self.batch
        )
        try:
            while self.epoch < self.settings.last_epoch:
                self._train_epoch()
        finally:
            self.observer.end()
        return self._finish()

    def _train_epoch(self) -> None:
        if self.batch == 0 and self.sampler.needs_embeddings(self.epoch):
            self.sampler.refresh(self._embed(self.samples))
        self.sampler.resume(self.epoch, self.batch)
        self.loader.set_epoch(self.epoch)
        self.network.train()
        if self.settings.head_only:
            for parameter in self.backbone_parameters:
                parameter.requires_grad_(self.epoch >= self.settings.head_only)
        look_every = _LOOK_EVERY * self.settings.accumulate
        started = self.saved = time.monotonic()
        for inputs, labels, indices in self.loader:
            device = self.accelerator.device
            value = self._step(move(inputs, device), labels.to(device), indices.to(device))
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

    def _step(self, inputs: Any, labels: Tensor, indices: Tensor) -> Tensor:
        """Add a batch's gradients; after the last batch of a group, move the weights."""
        accumulate = self.settings.accumulate
        first = self.batch // accumulate * accumulate
        group = min(accumulate, len(self.sampler) - first)
        labels = self._gather(labels)
        ids = self._gather(indices)
        handed = {"ids": ids} if self.asks_for_ids else {}
        if self.teacher is not None:
            with autocast(self.settings.precision, self.accelerator.device):
                taught = self.teacher.embed(inputs, self.settings.chunk).float()
            handed["teacher"] = self._gather(taught)
            if self.teacher_shows_features:
                assert isinstance(self.seen_network, WithFeatures)
                handed["teacher"], handed["teacher_features"] = self.seen_network.parted(handed["teacher"])
        if self.asks_for_clusters and self.sampler.clusters is not None:
            handed["clusters"] = self.sampler.clusters.to(ids.device)[ids]

        def mean_of_group(own: Tensor) -> Tensor:
            embeddings = self._gather(own)
            if isinstance(self.seen_network, WithFeatures):
                embeddings, handed["features"] = self.seen_network.parted(embeddings)
            # Watchdogs take samples without a label for classes of their own.
            self.seen = embeddings.detach(), torch.where(labels < 0, -1 - ids, labels)
            value: Tensor = self.loss(embeddings, labels, **handed) / group
            return value

        try:
            value = backward_in_chunks(
                self.stepping_network,
                inputs,
                mean_of_group,
                chunk=self.settings.chunk,
                backward=self.accelerator.backward,
            )
        except NotFiniteError as error:
            raise TrainingError(f"{self.moment()}: {error}. {_ADVICE}") from error
        except ValueError as error:
            raise TrainingError(f"{self.moment()}: {error}") from error
        if self.batch + 1 == first + group:
            self._move_weights()
        return value * group

    def _gather(self, rows: Tensor) -> Tensor:
        """The rows of all processes; the views of a sample stay together."""
        if self.processes.count == 1:
            return rows
        views = self.settings.views
        together = rows.unflatten(0, (-1, views)) if views > 1 else rows
        gathered = self.processes.gather(together, self.batch_sizes[self.batch])
        return gathered.flatten(0, 1) if views > 1 else gathered

    def _move_weights(self) -> None:
        self.processes.sum_gradients(self.network.parameters())
        self.processes.average_gradients(self.slices.common(self.loss))
        if self.settings.clip is not None:
            self.accelerator.clip_grad_norm_(self.network.parameters(), self.settings.clip)
        if self.settings.clip_value is not None:
            parameters = [*self.network.parameters(), *self.loss.parameters()]
            self.accelerator.clip_grad_value_(parameters, self.settings.clip_value)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.scheduler.step()
        for average in self._averages():
            average.update()

    def _averages(self) -> list[WeightAverage]:
        """The moving averages of the network: what is kept in the end, and a teacher."""
        return [one for one in (self.average, self.teacher) if one is not None]

    def _checkpoint_is_due(self) -> bool:
        return time.monotonic() - self.saved > 60 * self.settings.checkpoint_minutes

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
            if self.settings.keep_epochs:
                self.run.write_epoch(self.epoch, self.network.state_dict())
            if self.validation is not None:
                row |= self._validation_scores()
            # What a pretrained network knew may serve the validation classes best; random weights cannot.
            if (self.epoch or self.task.pretrained) and self._is_best(row):
                self.best = row
                weights = self.network.state_dict()
                self.best_weights = {name: value.detach().clone() for name, value in weights.items()}
        self.rows.append(row)
        self.run.write_metrics(self.rows)
        self.observer.epoch_end(row)
        self.watchdogs.epoch_end(self.rows)

    def _is_best(self, row: dict[str, Any]) -> bool:
        """By what the settings select by, then another; of equals the later epoch, which has learnt more."""
        if self.best is None or self.validation is None:
            return True
        keys = self.settings.selection_keys
        return tuple(row[key] for key in keys) >= tuple(self.best[key] for key in keys)

    def _validation_scores(self) -> dict[str, Any]:
        """Of retrieval, and of known pairs the ROC AUC, under their names."""
        assert self.validation is not None
        if not isinstance(self.validation, SampleSet):
            scorer = self.validation
            return self.processes.ask_first(lambda: scorer(self.embedder).to_dict())
        embeddings, held_out = self._embed(self.validation), self.validation
        recall_at = self.settings.recall_at

        def found() -> dict[str, Any]:
            row: dict[str, Any] = _retrieved(held_out, embeddings, recall_at).to_dict()
            if held_out.pairs is not None:
                pairs, same = held_out.pairs.scored()
                scores = pair_scores(pair_similarities(embeddings, pairs), same)
                row["roc_auc"] = scores.verification.roc_auc
            return row

        return self.processes.ask_first(found)

    def _embed(self, samples: SampleSet, what: Literal["embeddings", "features"] = "embeddings") -> Tensor:
        """All samples through the present network, the work shared between processes; on the CPU."""
        self.processes.copy_from_first(self.embedder.network.buffers())
        share = samples if self.processes.count == 1 else samples.select(self.processes.share(len(samples)))
        rows = self.embedder.embed(share, what=what, progress=self.observer.progress)
        return self.processes.gather(rows.to(self.accelerator.device), len(samples)).cpu()

    def _finish(self) -> NetworkResult:
        assert self.best is not None
        self.network.load_state_dict(self.best_weights)
        merge_lora(self.embedder.network)
        self.embedder.network.eval()
        for finding in base_of(self.loss).findings():
            self.observer.note(finding)
        selected_on = validation = None
        threshold = self.threshold
        if isinstance(self.validation, SampleSet):
            selected_on = SplitSummary.of(self.validation)
            threshold = threshold or self._threshold(self.validation, selected_on.class_names)
            scores = {key: value for key, value in self.best.items() if key not in _NOT_SCORES}
            validation = RetrievalScores.from_dict(scores)
        self.run.write_network(self.embedder.network.state_dict(), describe(self.embedder), threshold)
        return NetworkResult(
            rule="last epoch" if self.validation is None else "best epoch on validation classes",
            epoch=self.best["epoch"],
            data=DataSummary(SplitSummary.of(self.samples), selected_on),
            validation=validation,
            warnings=self.watchdogs.warnings,
            threshold=threshold,
            embedder=self.embedder,
        )

    def _threshold(self, held_out: SampleSet, class_names: Sequence[str]) -> Threshold | None:
        """Of the selected network, on the classes that selected it; ``None`` if they are too few."""
        if held_out.num_classes < FEWEST_CLASSES or isinstance(held_out.samples, TwoModalities):
            return None
        self.observer.stage(f"choosing a threshold on {held_out.num_classes:,} validation classes")
        embeddings = self._embed(held_out)
        known = held_out.pairs
        settings: dict[str, Any] = {
            "false_accept_rate": self.settings.false_accept_rate,
            "class_names": class_names,
            "seed": self.task.seed,
        }

        def chosen() -> Threshold | None:
            try:
                if known is None:
                    found = choose_threshold(embeddings, held_out.labels, **settings)
                    return replace(found, known_classes=bool({*class_names} & {*self.samples.class_names}))
                pairs, same = known.scored()
                similarity = pair_similarities(embeddings, pairs)
                return choose_threshold_on_pairs(similarity, same, known.groups[pairs], **settings)
            except TooFewPairsError:
                return None

        return self.processes.ask_first(chosen)

    def _save(self) -> None:
        """Write a checkpoint: all that the rest of the run depends on."""
        moments, optimizer = optimizer_state(self.optimizer)
        tensors = {
            "random_state": self.processes.random_states(),
            "network": self.network.state_dict(),
            "loss": self.slices.collect_loss(self.loss.state_dict()),
            "best": self.best_weights,
            "average": {} if self.average is None else self.average.tensors(),
            "teacher": {} if self.teacher is None else self.teacher.tensors(),
            "sampler": self.sampler.tensors(),
            "watchdogs": self.slices.collect_watched(self.watchdogs.tensors()),
            "optimizer": self.slices.collect_moments(self.optimizer, moments),
            "sum": {"loss": self.loss_sum},
        }
        state = {
            "data": self.contents,
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
        refuse_other_samples(state["data"], self.contents)
        self.processes.set_random_states(tensors["random_state"])
        self.network.load_state_dict(tensors["network"])
        self.loss.load_state_dict(self.slices.own_loss(tensors["loss"]))
        self.best_weights = tensors["best"]
        if self.average is not None:
            self.average.load_tensors(tensors["average"])
        if self.teacher is not None:
            self.teacher.load_tensors(tensors["teacher"])
        self.sampler.load_tensors(tensors["sampler"])
        self.watchdogs.load(state["watchdogs"], self.slices.own_watched(tensors["watchdogs"]))
        own_moments = self.slices.own_moments(self.optimizer, tensors["optimizer"])
        load_optimizer_state(self.optimizer, own_moments, state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        if self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(state["scaler"])
        self.loss_sum.copy_(tensors["sum"]["loss"])
        self.epoch, self.batch, self.best, self.rows = (
            state[key] for key in ("epoch", "batch", "best", "rows")
        )


def _retrieved(samples: SampleSet, embeddings: Tensor, recall_at: Sequence[int]) -> RetrievalScores:
    """Samples searched among themselves; of two modalities, the second in the first."""
    if not isinstance(samples.samples, TwoModalities):
        return retrieval_scores(embeddings, samples.labels, recall_at=recall_at)
    (queries, searching), (gallery, found) = (modality(samples, embeddings, number) for number in (1, 0))
    return retrieval_scores(
        searching, queries.labels, gallery=found, gallery_labels=gallery.labels, recall_at=recall_at
    )


def _optimizer(task: Task, network: Network, loss: Loss) -> Optimizer:
    """The task's optimiser over all that can be trained, which must be something."""
    groups = [
        *by_block(
            network.param_groups(task.rates.network, task.rates.head), network.backbone, task.rates.decay
        ),
        *_loss_groups(loss, task.rates),
    ]
    if not groups:
        raise ValueError("nothing can be trained: neither the network nor the loss has free parameters")
    optimizer = task.optimizer(groups)
    refuse_forgotten_parameters(optimizer, network=network, loss=loss)
    refuse_sampled_classes(optimizer, loss)
    return optimizer


def _loss_groups(loss: Loss, rates: LearningRates) -> list[dict[str, Any]]:
    """The loss's parameters with their learning rates; what says so learns as the network's head does."""
    groups = []
    for group in loss.param_groups(rates.loss):
        as_head = group.pop("as_head", False)
        groups.append({**group, "lr": rates.head} if as_head else group)
    return groups


_ADVICE = "The last checkpoint is kept. Try a smaller optimizer.lr, optimizer.clip=1, or precision fp32"
