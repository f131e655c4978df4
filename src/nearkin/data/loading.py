"""Batches for a training loop: the same pixels for the same run, epoch and image, whoever decodes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from nearkin.data.images import ImageSet
from nearkin.data.transforms import Transform


class Batch(NamedTuple):
    """Images ``(B, C, H, W)`` ready for the network, labels ``(B,)``, positions in the image set ``(B,)``."""

    images: Tensor
    labels: Tensor
    indices: Tensor


def sample_seed(seed: int, epoch: int, index: int) -> int:
    """One seed per run, epoch and image; neighbouring numbers give unrelated seeds.

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


class TransformedImages(Dataset[tuple[Tensor, int, int]]):
    """An image set seen through a transform.

    An item is (image, label, index). :meth:`batch` fetches many at once, which is what :func:`loader` does.

    Args:
        image_set: Images and labels.
        transform: See :mod:`nearkin.data.transforms`.
        seed: Of the run; with the epoch and the index it decides all that is random about an image.
    """

    def __init__(self, image_set: ImageSet, transform: Transform, *, seed: int = 0) -> None:
        self.image_set = image_set
        self.transform = transform
        self.seed = seed
        self.epoch = 0

    def __len__(self) -> int:
        return len(self.image_set)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose random crops and flips items show."""
        self.epoch = epoch

    def __getitem__(self, index: int) -> tuple[Tensor, int, int]:
        images, labels, _ = self.batch([index], self.epoch)
        return images[0], int(labels[0]), index

    def batch(self, indices: Sequence[int], epoch: int) -> Batch:
        """The images at ``indices`` as they look in ``epoch``."""
        seeds = [sample_seed(self.seed, epoch, index) for index in indices]
        images = self.transform(self.image_set.images, indices, seeds)
        positions = torch.as_tensor(indices, dtype=torch.long)
        return Batch(images, self.image_set.labels[positions], positions)


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

    def __init__(self, images: TransformedImages) -> None:
        self.images = images

    def __getitem__(self, key: tuple[int, list[int]]) -> Batch:
        epoch, indices = key
        return self.images.batch(indices, epoch)


class Loader(DataLoader[Batch]):
    """A ``DataLoader`` of :class:`Batch` that knows its epoch; made by :func:`loader`."""

    def __init__(
        self, images: TransformedImages, batches: Iterable[Sequence[int]], *, workers: int, **keywords: Any
    ) -> None:
        self._epoch_batches = _EpochBatches(batches)
        keywords.setdefault("generator", torch.Generator())  # otherwise every pass draws from the global one
        super().__init__(
            _Batches(images),
            batch_size=None,
            sampler=self._epoch_batches,
            num_workers=workers,
            persistent_workers=workers > 0,
            collate_fn=_as_it_is,
            **keywords,
        )

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass, for the batch sampler and for all that is random in an image."""
        self._epoch_batches.epoch = epoch
        set_epoch = getattr(self._epoch_batches.batches, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)


def _as_it_is(batch: Any) -> Any:
    return batch


def loader(
    image_set: ImageSet,
    transform: Transform,
    *,
    batch_sampler: Iterable[Sequence[int]] | None = None,
    batch_size: int = 64,
    seed: int = 0,
    workers: int = 0,
    **keywords: Any,
) -> Loader:
    """Iterate over transformed images in batches.

    Every random choice is a function of (seed, epoch, index): the batches are the same with any number of
    workers, and a run that is resumed sees what it would have seen. Workers live from epoch to epoch.

    Args:
        image_set: Images and labels.
        transform: From :func:`nearkin.data.training_transform` or :func:`nearkin.data.evaluation_transform`.
        batch_sampler: Lists of indices, with ``set_epoch`` if they change from epoch to epoch. By default
            all images in their order.
        batch_size: Images per batch where there is no ``batch_sampler``.
        seed: Of the run.
        workers: Processes that decode; 0 decodes in this one.
        keywords: Of ``torch.utils.data.DataLoader``, such as ``pin_memory`` and ``prefetch_factor``.

    >>> from nearkin.data import ImageArray, Preprocessing, training_transform
    >>> digits = ImageSet(ImageArray(torch.zeros(5, 1, 28, 28, dtype=torch.uint8)), [0, 0, 1, 1, 1])
    >>> batches = loader(digits, training_transform(Preprocessing(28, (0.5,), (0.5,)), "none"), batch_size=2)
    >>> batches.set_epoch(3)
    >>> [(tuple(batch.images.shape), batch.labels.tolist()) for batch in batches]
    [((2, 1, 28, 28), [0, 0]), ((2, 1, 28, 28), [1, 1]), ((1, 1, 28, 28), [1])]
    """
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size} must be at least 1")
    if batch_sampler is None:
        starts = range(0, len(image_set), batch_size)
        batch_sampler = [range(start, min(start + batch_size, len(image_set))) for start in starts]
    images = TransformedImages(image_set, transform, seed=seed)
    return Loader(images, batch_sampler, workers=workers, **keywords)
