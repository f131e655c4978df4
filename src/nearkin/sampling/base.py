"""What every batch sampler shares: the epoch's plan, its place in it, and its rank's slice of every batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import normalize
from torch.utils.data import BatchSampler, Sampler

from nearkin.registry import Registry

registry: Registry[PlannedSampler] = Registry("sampler")


class PlannedSampler(BatchSampler, ABC):
    """A batch sampler whose epoch is planned as a whole, before its first batch.

    Give it to ``DataLoader(dataset, batch_sampler=sampler)``. Every pass is a new epoch with a new plan;
    ``set_epoch`` chooses one by its number. A plan depends on nothing but the constructor's arguments and the
    epoch (and, for samplers that look at them, the embeddings of the last ``refresh``), so any process, at
    any time, can make it again.

    **Ranks.** ``batch_size`` is the global batch. Every rank makes the same plan and takes its own contiguous
    slice of every batch, so the slices are disjoint, and gathered in rank order they are the batch of a
    single process. A last, incomplete batch is sliced as evenly as it goes; where it has fewer images than
    there are ranks it is left out, for no rank may go without. ``rank=None, world_size=None`` asks
    ``torch.distributed``, whenever a pass begins.

    **Lightning** puts a ``DistributedSampler`` of its own into batch samplers that are made inside
    ``train_dataloader()``, through the argument ``sampler``: rank and world size are read from it. See
    ``docs/frameworks.md``.

    **Resuming.** ``state_dict`` counts the batches *handed out*. A ``DataLoader`` with workers asks for
    batches before they are trained on, so a checkpoint should rather keep the number of batches trained on
    and call ``resume(epoch, batch)``; the next pass then starts with that batch, and the one after it is the
    next epoch, from its first batch on.

    **Embeddings.** Some samplers look at the network's present embeddings of all images. A training loop asks
    ``needs_embeddings(epoch)`` before each epoch, calls ``refresh(embeddings)`` where the answer is yes, and
    keeps ``tensors()`` in its checkpoints.

    Args:
        labels: The class of every image, integers, ``(N,)``.
        batch_size: Images per batch over all ranks.
        seed: With the epoch, the only source of randomness.
        rank: Which slice of each batch this process takes; None to ask ``torch.distributed``.
        world_size: Into how many slices a batch is cut; ``batch_size`` must be a multiple of it. None to ask
            ``torch.distributed``.
        drop_last: Leave out batches that are not full. By default they come, at the end of the epoch, so
            that every image does; a network that normalises over the batch may rather do without them.
        sampler: A ``DistributedSampler`` that says rank and world size, where a framework insists on one.
    """

    def __init__(
        self,
        labels: Tensor | Sequence[int],
        *,
        batch_size: int,
        seed: int = 0,
        rank: int | None = 0,
        world_size: int | None = 1,
        drop_last: bool = False,
        sampler: Sampler[Any] | None = None,
    ) -> None:
        self.labels = _checked_labels(labels, type(self).__name__)
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size} must be at least 1")
        if seed < 0:
            raise ValueError(f"seed={seed} must not be negative")
        self.batch_size = batch_size
        self.seed = seed
        self.drop_last = drop_last
        self._rank, self._world_size = (rank, world_size) if sampler is None else _told_by(sampler)
        if (self._rank is None) != (self._world_size is None):
            raise ValueError(f"rank={rank} and world_size={world_size}: give both, or None for both")
        if self._rank is not None:
            _ = self._place()  # wrong numbers are told now, those of torch.distributed when it has any
        self.epoch = 0
        self._next_batch = 0
        self._begun = False  # whether a pass through this epoch was begun, and neither finished nor resumed

    @property
    def rank(self) -> int:
        """Which slice of each batch this process takes."""
        return self._place()[0]

    @property
    def world_size(self) -> int:
        """Into how many slices a batch is cut."""
        return self._place()[1]

    @property
    def num_replicas(self) -> int:
        """The same, by the name that ``DistributedSampler`` gives it."""
        return self.world_size

    @property
    def sampler(self) -> PlannedSampler:  # type: ignore[override]
        """This very object: where frameworks look for ``set_epoch``."""
        return self

    def _place(self) -> tuple[int, int]:
        """Rank and world size, as given or as ``torch.distributed`` has them now."""
        rank, world_size = self._rank, self._world_size
        if rank is None or world_size is None:
            joined = dist.is_available() and dist.is_initialized()
            rank, world_size = (dist.get_rank(), dist.get_world_size()) if joined else (0, 1)
        if not 0 <= rank < world_size:
            raise ValueError(f"rank={rank} must be from 0 to world_size - 1, and world_size={world_size}")
        if self.batch_size % world_size:
            raise ValueError(
                f"batch_size={self.batch_size} is the batch over all ranks and not a multiple of "
                f"world_size={world_size}"
            )
        return rank, world_size

    @abstractmethod
    def _planned(self, generator: torch.Generator) -> Tensor:
        """The images of one epoch, batch after batch, full batches first; drawn with ``generator``."""

    @abstractmethod
    def _planned_sizes(self) -> list[int]:
        """The sizes of the batches of ``_planned``, the same in every epoch."""

    def _images_of(self, epoch: int) -> Tensor:
        """The images of an epoch by its number."""
        return self._planned(epoch_generator(self.seed, epoch))

    def plan(self, epoch: int) -> list[Tensor]:
        """The batches of an epoch over all ranks, each a vector of image indices."""
        sizes = self._planned_sizes()
        batches = self._images_of(epoch).split(sizes)
        return [batch for batch, size in zip(batches, sizes, strict=True) if self._keeps(size)]

    def _keeps(self, size: int) -> bool:
        return size == self.batch_size or (not self.drop_last and size >= self.world_size)

    @property
    def batch_sizes(self) -> list[int]:
        """How many images each batch of an epoch holds, over all ranks."""
        return [size for size in self._planned_sizes() if self._keeps(size)]

    @property
    def images_per_epoch(self) -> int:
        """How many of the images an epoch shows; where it is not all of them, the sampler's rule says why."""
        return sum(self.batch_sizes)

    def __len__(self) -> int:
        return len(self.batch_sizes)

    def __iter__(self) -> Iterator[list[int]]:
        if self._begun:
            self.resume(self.epoch + 1, 0)
        self._begun = True
        epoch, first = self.epoch, self._next_batch
        images = self._images_of(epoch)
        for number, part in enumerate(self._parts_of_rank()[first:], start=first + 1):
            self._next_batch = number
            yield images[part].tolist()
        if self.epoch == epoch:
            self.resume(epoch + 1, 0)

    def _parts_of_rank(self) -> list[slice]:
        """Where this rank's slice of every batch lies among the images of the epoch."""
        sizes = self._planned_sizes()
        rank, ranks = self._place()
        return [
            slice(end - size + size * rank // ranks, end - size + size * (rank + 1) // ranks)
            for size, end in zip(sizes, accumulate(sizes), strict=True)
            if self._keeps(size)
        ]

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next pass runs through; a place resumed in that very epoch is kept."""
        self._begun = False
        if epoch != self.epoch:
            self.resume(epoch, 0)

    def resume(self, epoch: int, batch: int) -> None:
        """Let the next pass start in ``epoch`` with its batch number ``batch``, counted from 0."""
        if epoch < 0:
            raise ValueError(f"epoch={epoch} must not be negative")
        if not 0 <= batch <= len(self):
            raise ValueError(f"batch={batch} but an epoch has {len(self)} batches")
        self.epoch = epoch
        self._next_batch = batch
        self._begun = False

    def state_dict(self) -> dict[str, int]:
        """The place in the plan, in plain numbers: the epoch and how many of its batches were handed out."""
        return {"epoch": self.epoch, "batch": self._next_batch}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go back to the place that ``state_dict`` described."""
        self.resume(state["epoch"], state["batch"])

    def needs_embeddings(self, epoch: int) -> bool:
        """Whether ``refresh`` should be called before this epoch."""
        return False

    def refresh(self, embeddings: Tensor) -> None:
        """Note the present embeddings of all images, ``(N, D)``, for the plans to come, where they matter."""

    @property
    def clusters(self) -> Tensor | None:
        """The cluster of every image, ``(N,)``, -1 for none, of samplers that look for clusters."""
        return None

    def _checked_embeddings(self, embeddings: Tensor) -> Tensor:
        """The embeddings normalised in float32, ``(N, D)``."""
        if embeddings.ndim != 2 or len(embeddings) != len(self.labels):
            raise ValueError(
                f"embeddings must be ({len(self.labels)}, D), a row for every label, "
                f"not {tuple(embeddings.shape)}"
            )
        return normalize(embeddings.detach().float(), dim=1)

    def tensors(self) -> dict[str, Tensor]:
        """What was noted by ``refresh``: with ``state_dict``, all that a resumed sampler needs."""
        return {}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Take back what ``tensors`` gave."""


def epoch_generator(seed: int, epoch: int) -> torch.Generator:
    """A generator that depends on both numbers and nothing else: (1, 2) and (2, 1) are unrelated."""
    mixed = int(np.random.SeedSequence((seed, epoch)).generate_state(1)[0])
    return torch.Generator().manual_seed(mixed)


def sizes_of_pieces(total: int, size: int) -> list[int]:
    """The lengths of the pieces when ``total`` images are cut every ``size``.

    >>> sizes_of_pieces(10, 4)
    [4, 4, 2]
    """
    return [size] * (total // size) + ([total % size] if total % size else [])


def _checked_labels(labels: Tensor | Sequence[int], kind: str) -> Tensor:
    if isinstance(labels, Sampler):
        raise TypeError(
            f"{kind} needs the labels of the images and got a {type(labels).__name__}: a framework "
            "(Lightning does it) tried to put a distributed sampler of its own in place of it. Make the "
            "batch sampler inside train_dataloader(), or give it rank=None and world_size=None, by which it "
            "divides batches among processes itself, and use Trainer(use_distributed_sampler=False)"
        )
    labels = torch.as_tensor(labels).cpu()
    if labels.ndim != 1 or len(labels) == 0:
        raise ValueError(
            f"labels must be a vector with one entry per image, not of shape {tuple(labels.shape)}"
        )
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(f"labels must be integers, not {labels.dtype}")
    return labels.long()


def _told_by(sampler: Sampler[Any]) -> tuple[int, int]:
    """Rank and world size of a ``DistributedSampler``."""
    rank, world_size = getattr(sampler, "rank", None), getattr(sampler, "num_replicas", None)
    if rank is None or world_size is None:
        raise ValueError(
            f"sampler={type(sampler).__name__} must be a DistributedSampler, which knows its rank and "
            "num_replicas: the order of the images is this batch sampler's own"
        )
    return int(rank), int(world_size)
