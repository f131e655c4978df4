"""Watchdogs: what goes wrong in a training is said while there is time, once, with what to try."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from nearkin.losses import CrossBatchMemory, Triplet
from nearkin.networks import has_trained_batch_norm
from nearkin.sampling.base import PlannedSampler
from nearkin.training.settings import TrainingSettings

_PATIENCE = 100  # batches through which something must hold before it is said
_COLLAPSED = 0.99  # mean similarity of samples of different classes
_AT_MARGIN = 0.01  # relative distance of a triplet loss from its margin
_STILL = 1e-6  # relative movement of all proxies between two looks
_RUN_AWAY = 100.0  # length of the proxies, in multiples of what it was
_SATURATED_EPOCHS = 2  # of a validation score of 100% in a row
_FALLEN = 0.005  # below the best validation score
_MEET_POSITIVES = 0.5  # share of the samples that should have a positive in their batch
_BATCHES_LOOKED_AT = 50


_COMPLAINTS = {
    "collapse": f"the embedding collapses: samples of different classes have had a mean similarity above "
    f"{_COLLAPSED} for {_PATIENCE} batches. Try a smaller optimizer.lr, training.head_only=1, or mining that "
    "is less hard (semi_hard, distance_weighted)",
    "margin": f"the loss has stood at its margin {{margin}} for {_PATIENCE} batches, as if all samples were "
    "one point. Try a smaller optimizer.lr, or loss.mining=semi_hard",
    "solved": f"the loss has been exactly 0 for {_PATIENCE} batches: it finds no pair to learn from. Try "
    "harder mining or a larger margin, or stop here",
    "alone": f"the loss has been exactly 0 for {_PATIENCE} batches: no sample has a positive in its batch. "
    "Try sampler.name=balanced, or a larger sampler.batch_size",
    "still": f"the proxies have not moved for {_PATIENCE} batches. Try a larger loss.lr (without one, it is "
    "loss.lr_factor times optimizer.lr)",
    "run_away": f"the proxies run away: they are more than {_RUN_AWAY:g} times as long as at the start, and "
    "the longer they are, the less they turn. Try a smaller loss.lr, or more optimizer.weight_decay",
}


@dataclass(frozen=True)
class Glimpse:
    """What the watchdogs are shown of a training.

    Attributes:
        moment: The place in the training, in words.
        step: The same as a number of batches since the beginning.
        batch: How many batches of the epoch are done.
        loss_sum: The sum of their losses.
        rate: The learning rate, relative to its peak.
        embeddings: The embeddings of the last batch ``(B, D)``.
        labels: The labels of the last batch ``(B,)``.
    """

    moment: str
    step: int
    batch: int
    loss_sum: float
    rate: float
    embeddings: Tensor
    labels: Tensor


_WATCHED_PROXIES = 1 << 16


class Watchdogs:
    """Warnings about a training.

    They look at what the loop has at hand, every so many batches, so that the device is not kept waiting.
    Their state travels in checkpoints: a run that was killed says the same in the end.

    Args:
        settings: The settings of the training.
        loss: What is minimised.
        announce: Called with each warning, a line.
    """

    def __init__(self, settings: TrainingSettings, loss: nn.Module, announce: Callable[[str], None]) -> None:
        self._settings = settings
        self._announce = announce
        # A memory holds positives of earlier batches, and several views are positives of each other.
        compares = bool(getattr(loss, "compares_samples", True))
        remembers = any(isinstance(part, CrossBatchMemory) for part in loss.modules())
        self._needs_positives = compares and not remembers and settings.views == 1
        self._margin = loss.margin if type(loss) is Triplet else 0.0
        # By name, for they may be those of a loss inside another.
        proxies = (one for name, one in loss.named_parameters() if name.split(".")[-1] == "proxies")
        self._proxies: Tensor | None = next(proxies, None)
        self._given: dict[str, str] = {}
        self._since: dict[str, int] = {}
        self._seen_batch, self._seen_loss = 0, 0.0
        self._first_length: float | None = None
        self._last_proxies: Tensor | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """All that was said so far."""
        return tuple(self._given.values())

    def begin(self, sampler: PlannedSampler, network: nn.Module) -> None:
        """Look at the plan before the first batch."""
        samples, shown = len(sampler.labels), sampler.images_per_epoch
        if samples - shown >= sampler.batch_size and getattr(sampler, "batches", None) is None:
            self._say(
                "sampler",
                f"an epoch of {type(sampler).__name__} shows {shown:,} of {samples:,} samples: some "
                "classes are too large or too small for its batches. Try another sampler.batch_size or "
                "sampler.images_per_class, or sampler.name=random",
            )
        elif self._needs_positives and not sampler.needs_embeddings(0):
            met = share_with_positives(sampler)
            if met < _MEET_POSITIVES:
                self._say(
                    "positives",
                    f"only {met:.0%} of the samples have a positive in their batch, and the loss compares "
                    "the samples of a batch: the others have nothing to learn from. Try "
                    "sampler.name=balanced, or a larger sampler.batch_size",
                )
        if sampler.world_size > 1 and has_trained_batch_norm(network):
            self._say(
                "batch_norm",
                f"each of {sampler.world_size} processes has its own batch norm statistics, of its share of "
                "the batch: the result depends on their number, unless network.freeze_batch_norm=true",
            )

    def look(self, seen: Glimpse) -> None:
        """Look at a batch, and say what has held for long."""
        if seen.batch <= self._seen_batch:  # a new epoch
            self._seen_batch, self._seen_loss = 0, 0.0
        loss = (seen.loss_sum - self._seen_loss) / (seen.batch - self._seen_batch)
        self._seen_batch, self._seen_loss = seen.batch, seen.loss_sum
        similarity, has_positives, length, moved = self._measure(seen)
        at_margin = bool(self._margin) and abs(loss / self._margin - 1) < _AT_MARGIN
        doubts = {
            "collapse": similarity > _COLLAPSED,
            "margin": at_margin,
            "solved": loss == 0 and has_positives,
            "alone": loss == 0 and not has_positives,
            "still": moved < _STILL and seen.rate > 0.1,
            "run_away": length > _RUN_AWAY,
        }
        for what, holds in doubts.items():
            if not holds:
                self._since.pop(what, None)
            elif seen.step - self._since.setdefault(what, seen.step) >= _PATIENCE:
                text = _COMPLAINTS[what].format(margin=self._margin)
                self._say(what, f"{seen.moment}: {text}")

    @torch.no_grad()
    def _measure(self, seen: Glimpse) -> tuple[float, bool, float, float]:
        """Similarity of negatives, whether there are positives, length and movement of the proxies."""
        units = normalize(seen.embeddings.float())
        negatives = seen.labels.unsqueeze(1) != seen.labels
        found = negatives.sum()
        similarity = ((units @ units.T) * negatives).sum() / found.clamp_min(1)
        pairs = len(units) * (len(units) - 1)
        measures = [similarity, found]
        if self._proxies is not None:
            proxies = self._proxies.detach()
            proxies = proxies[:: -(-len(proxies) // _WATCHED_PROXIES) or 1].float()  # some, if there are many
            before = proxies if self._last_proxies is None else self._last_proxies.to(proxies.device)
            measures += [proxies.norm(), (proxies - before).norm()]
            first_look, self._last_proxies = self._last_proxies is None, proxies.clone()
        similarity, found, *of_proxies = torch.stack([one.double() for one in measures]).tolist()
        if not of_proxies:
            return similarity, found < pairs, 1.0, 1.0
        length, moved = of_proxies
        self._first_length = self._first_length or length
        return similarity, found < pairs, length / self._first_length, 1.0 if first_look else moved / length

    def epoch_end(self, rows: list[dict[str, Any]]) -> None:
        """Look at the epochs so far, the lines of ``metrics.jsonl``."""
        score = self._settings.selection_keys[0]
        trained = [row for row in rows if row["epoch"] and score in row]
        if not trained:
            return
        best = max(trained, key=lambda row: (row[score], -row["epoch"]))
        now = trained[-1]
        if len(trained) >= _SATURATED_EPOCHS and all(row[score] == 1 for row in trained[-_SATURATED_EPOCHS:]):
            self._say(
                "saturated",
                f"epoch {now['epoch']}: validation is saturated: {score} has been 100% for "
                f"{_SATURATED_EPOCHS} epochs, so MAP@R chooses between them. Hold out more classes "
                "(protocol.validation_share), or use protocol.name=cross_validation",
            )
        patience = max(3, ceil(self._settings.epochs / 4))
        if now["epoch"] - best["epoch"] >= patience and now[score] < best[score] - _FALLEN:
            chosen = self._chosen([row for row in rows if score in row])
            untrained = "" if chosen else ", the network as it was,"
            self._say(
                "validation",
                f"epoch {now['epoch']}: validation has fallen since epoch {best['epoch']}, {score} from "
                f"{100 * best[score]:.1f}% to {100 * now[score]:.1f}%. Epoch {chosen}{untrained} stays "
                "chosen. Try fewer training.epochs, smaller learning rates, or more optimizer.weight_decay",
            )

    def _chosen(self, rows: list[dict[str, Any]]) -> int:
        """The epoch that a training keeps: the best, the untrained network included; of equals the later."""
        keys = self._settings.selection_keys
        best = max(rows, key=lambda row: (*(row[key] for key in keys if key in row), row["epoch"]))
        return int(best["epoch"])

    def _say(self, what: str, text: str) -> None:
        if what not in self._given:
            self._given[what] = text
            self._announce(text)

    def state(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        return {
            "given": self._given,
            "since": self._since,
            "seen": [self._seen_batch, self._seen_loss],
            "first_length": self._first_length,
        }

    def tensors(self) -> dict[str, Tensor]:
        """Tensors for a checkpoint."""
        return {} if self._last_proxies is None else {"proxies": self._last_proxies}

    def load(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Go on from a checkpoint."""
        self._given, self._since = dict(state["given"]), dict(state["since"])
        self._seen_batch, self._seen_loss = state["seen"]
        self._first_length = state["first_length"]
        self._last_proxies = tensors.get("proxies")


def share_with_positives(sampler: PlannedSampler) -> float:
    """The share of samples of the first epoch that have another one of their class in their batch.

    >>> from nearkin.sampling import BalancedSampler
    >>> share_with_positives(BalancedSampler([0, 0, 1, 1, 2, 2], batch_size=4, images_per_class=2))
    1.0
    """
    met = seen = 0
    for batch in sampler.plan(0)[:_BATCHES_LOOKED_AT]:
        _, counts = sampler.labels[batch].unique(return_counts=True)
        met += int(counts[counts > 1].sum())
        seen += len(batch)
    return met / max(seen, 1)
