"""Batches for a training loop: the same inputs for the same run, epoch and sample, with any workers."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from nearkin.data.samples import SampleSet
from nearkin.data.seeding import refuse_wrong_seed
from nearkin.data.transforms import Transform

if sys.platform != "win32":  # which knows no limit of open files
    import resource

MOST_WORKERS = 512
_FILES_PER_WORKER = 10  # its pipes, and the tensors of the batches it is ahead by
_OTHER_FILES = 32


class Batch(NamedTuple):
    """What the network takes, labels ``(B,)`` and positions in the sample set ``(B,)``.

    The inputs of images are a float32 tensor ``(B, C, H, W)``; a transform may also give a list of texts, a
    tuple or a mapping (see :mod:`nearkin.data.nested`).
    """

    inputs: Any
    labels: Tensor
    indices: Tensor


def sample_seed(seed: int, epoch: int, index: int) -> int:
    """One seed per run, epoch and sample; neighbouring numbers give unrelated seeds.

    >>> sample_seed(0, 1, 2) == sample_seed(0, 2, 1)
    False
    """
    state = 0
    for part in (seed, epoch, index):
        # The finaliser of SplitMix64 (Steele, Lea and Flood 2014) spreads every bit over the whole word.
        state = (state + part + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state >> 1


class _TransformedSamples:
    """A sample set seen through a transform; the seed, the epoch and the index decide all that is random."""

    def __init__(self, sample_set: SampleSet, transform: Transform, *, seed: int = 0, views: int = 1) -> None:
        self.sample_set = sample_set
        self.transform = transform
        self.seed = seed
        self.views = views

    def batch(self, indices: Sequence[int], epoch: int) -> Batch:
        """The samples at ``indices`` as they look in ``epoch``."""
        seeds = [seed for index in indices for seed in self._seeds(epoch, index)]
        rows = [index for index in indices for _ in range(self.views)]
        inputs = self.transform(self.sample_set.samples, rows, seeds)
        positions = torch.as_tensor(rows, dtype=torch.long)
        return Batch(inputs, self.sample_set.labels[positions], positions)

    def _seeds(self, epoch: int, index: int) -> Iterator[int]:
        """One seed per view of a sample; that of the first does not depend on how many there are."""
        first = sample_seed(self.seed, epoch, index)
        yield first
        for view in range(1, self.views):
            yield sample_seed(first, view, index)


class _EpochBatches(Sampler[tuple[int, list[int]]]):
    """The lists of a batch sampler, each with its epoch: the way by which an epoch reaches living workers."""

    def __init__(self, batches: Iterable[Sequence[int]]) -> None:
        self.batches = batches
        self.epoch = 0

    def __len__(self) -> int:
        return len(self.batches)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[tuple[int, list[int]]]:
        epoch = self.epoch
        for batch in self.batches:
            yield epoch, list(batch)


class _Batches(Dataset[Batch]):
    """What a worker holds: from an epoch and indices to a whole batch."""

    def __init__(self, samples: _TransformedSamples) -> None:
        self.samples = samples

    def __getitem__(self, key: tuple[int, list[int]]) -> Batch:
        epoch, indices = key
        return self.samples.batch(indices, epoch)


class Loader(DataLoader[Batch]):
    """A ``DataLoader`` of :class:`Batch` that knows its epoch; made by :func:`loader`."""

    def __init__(
        self, samples: _TransformedSamples, batches: Iterable[Sequence[int]], *, workers: int, **keywords: Any
    ) -> None:
        self._epoch_batches = _EpochBatches(batches)
        keywords.setdefault("generator", torch.Generator())  # otherwise every pass draws from the global one
        super().__init__(
            _Batches(samples),
            batch_size=None,
            sampler=self._epoch_batches,
            num_workers=workers,
            persistent_workers=workers > 0,
            collate_fn=_as_it_is,
            **keywords,
        )

    def __iter__(self) -> Any:
        """Start a pass; too few open files for the workers are an ``OSError`` that says what to do."""
        if self.num_workers > 0:
            _refuse_too_few_open_files(self.num_workers)
        return super().__iter__()

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass, for the batch sampler and for all that is random in a sample."""
        self._epoch_batches.epoch = epoch
        set_epoch = getattr(self._epoch_batches.batches, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)


def _refuse_too_few_open_files(workers: int) -> None:
    """Said before workers start: torch fails half-way, with processes that are left behind."""
    if sys.platform == "win32":
        return
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _FILES_PER_WORKER * workers + _OTHER_FILES
    if allowed != resource.RLIM_INFINITY and allowed < needed:
        raise OSError(
            errno.EMFILE,
            f"workers={workers} need about {needed} open files and this process may have {allowed}: choose "
            "fewer workers, or raise the limit (ulimit -n)",
        )


def _as_it_is(batch: Any) -> Any:
    return batch


def loader(
    sample_set: SampleSet,
    transform: Transform,
    *,
    batch_sampler: Iterable[Sequence[int]] | None = None,
    batch_size: int = 64,
    seed: int = 0,
    workers: int = 0,
    views: int = 1,
    **keywords: Any,
) -> Loader:
    """Iterate over transformed samples in batches.

    Every random choice is a function of (seed, epoch, index): the batches are the same with any number of
    workers, and a run that is resumed sees what it would have seen. Workers live from epoch to epoch.

    Args:
        sample_set: Samples and labels.
        transform: Made by :func:`nearkin.data.transforms.build`, or a :class:`nearkin.data.PerSample`.
        batch_sampler: Lists of indices, with ``set_epoch`` if they change from epoch to epoch. By default
            all samples in their order.
        batch_size: Samples per batch where there is no ``batch_sampler``.
        seed: The seed of the run.
        workers: Processes that read and transform; 0 does it in this one.
        views: Rows per sample, one after the other, each transformed with its own seed; labels and indices
            are repeated alike.
        keywords: Those of ``torch.utils.data.DataLoader``, such as ``pin_memory`` and ``prefetch_factor``.

    >>> from nearkin.data import ImageArray, Preprocessing, training_transform
    >>> digits = SampleSet(ImageArray(torch.zeros(5, 1, 28, 28, dtype=torch.uint8)), [0, 0, 1, 1, 1])
    >>> batches = loader(digits, training_transform(Preprocessing(28, (0.5,), (0.5,)), "none"), batch_size=2)
    >>> batches.set_epoch(3)
    >>> [(tuple(batch.inputs.shape), batch.labels.tolist()) for batch in batches]
    [((2, 1, 28, 28), [0, 0]), ((2, 1, 28, 28), [1, 1]), ((1, 1, 28, 28), [1])]
    """
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size} must be at least 1")
    if views < 1:
        raise ValueError(f"views={views} must be at least 1")
    refuse_wrong_seed(seed)
    if not 0 <= workers <= MOST_WORKERS:
        raise ValueError(f"workers={workers} must lie between 0 and {MOST_WORKERS}; one per core is plenty")
    if batch_sampler is None:
        starts = range(0, len(sample_set), batch_size)
        batch_sampler = [range(start, min(start + batch_size, len(sample_set))) for start in starts]
    samples = _TransformedSamples(sample_set, transform, seed=seed, views=views)
    return Loader(samples, batch_sampler, workers=workers, **keywords)
