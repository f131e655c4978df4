"""Offline mining: images and their hard negatives of the whole training set in one batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Sampler

from nearkin.sampling.balanced import BalancedSampler
from nearkin.sampling.base import registry
from nearkin.sampling.offline import EXACT_UP_TO, MINING, NO_IMAGE, hard_negatives


@registry.register("hard_neighbours")
class HardNeighboursSampler(BalancedSampler):
    """A random group of images and the groups that hold their hard negatives, mined from the whole data set.

    Every ``refresh_every`` epochs the training loop embeds all images with the current network and calls
    ``refresh``, which lists the hard or semi-hard negatives of every image
    (:func:`~nearkin.sampling.offline.hard_negatives`). Before the first call, batches are those of
    ``balanced``. Adding hard neighbours to random positives follows Song, Xiang, Jegelka and Savarese, "Deep
    Metric Learning via Lifted Structured Feature Embedding" (CVPR 2016), and searching them in the whole data
    set before an epoch follows Harwood and others, "Smart Mining for Deep Metric Learning" (ICCV 2017). Here
    the neighbours bring their positives too, so that any loss can use the batch.

    The epoch starts from the groups of ``balanced``, K random images of one class, with its promises and
    exceptions: every image once, no class twice in a batch. A batch takes a random group that is left, then
    the groups that hold the first negative of each of its images, then the second, and so on; when the list
    ends before the batch is full, another random group joins and continues with its own. Mixed batches grow
    in the same way from the short groups. A class with as many groups left as there are batches to plan joins
    each of them, near or not.

    ``"semi_hard"`` is the safe choice: the hardest negatives of all are often wrong labels and near
    duplicates, and early in training they can collapse the embedding. To mine every n steps instead of
    epochs, leave the pass after n batches, ``refresh``, and ``set_epoch`` to the next number.

    Args:
        labels: The class of every image, integers, ``(N,)``.
        batch_size: P · K, over all ranks.
        images_per_class: K.
        mining: ``"semi_hard"`` or ``"hard"``.
        neighbours: How many negatives are listed per image.
        refresh_every: Every how many epochs ``needs_embeddings`` asks for new embeddings.
        exact_up_to: With more images than this, the neighbour search is approximate and needs faiss.
        drop_short: Leave out the images that do not fill a group of K.
        seed, rank, world_size, drop_last, sampler: As in :class:`~nearkin.sampling.base.PlannedSampler`.

    >>> labels = [0, 0, 1, 1, 2, 2, 3, 3]
    >>> sampler = HardNeighboursSampler(labels, batch_size=4, images_per_class=2, mining="hard")
    >>> angles = torch.tensor([0.0, 5.0, 90.0, 85.0, 10.0, 15.0, 100.0, 95.0]).deg2rad()
    >>> sampler.refresh(torch.stack((angles.cos(), angles.sin()), dim=1))
    >>> sorted(sampler.labels[batch].unique().tolist() for batch in sampler.plan(epoch=0))
    [[0, 2], [1, 3]]
    """

    def __init__(
        self,
        labels: Tensor | Sequence[int],
        *,
        batch_size: int,
        images_per_class: int = 5,
        mining: str = "semi_hard",
        neighbours: int = 50,
        refresh_every: int = 1,
        exact_up_to: int = EXACT_UP_TO,
        drop_short: bool = False,
        seed: int = 0,
        rank: int | None = 0,
        world_size: int | None = 1,
        drop_last: bool = False,
        sampler: Sampler[Any] | None = None,
    ) -> None:
        super().__init__(
            labels,
            batch_size=batch_size,
            images_per_class=images_per_class,
            drop_short=drop_short,
            seed=seed,
            rank=rank,
            world_size=world_size,
            drop_last=drop_last,
            sampler=sampler,
        )
        if mining not in MINING:
            raise ValueError(f"mining={mining!r} must be one of: {', '.join(MINING)}")
        if neighbours < 1:
            raise ValueError(f"neighbours={neighbours} must be at least 1")
        if refresh_every < 1:
            raise ValueError(f"refresh_every={refresh_every} must be at least 1")
        self.mining = mining
        self.neighbours = neighbours
        self.refresh_every = refresh_every
        self.exact_up_to = exact_up_to
        self._negatives: Tensor | None = None

    def needs_embeddings(self, epoch: int) -> bool:
        """Whether ``refresh`` should be called before this epoch."""
        return epoch % self.refresh_every == 0

    def refresh(self, embeddings: Tensor) -> None:
        """Mine the hard negatives of every image from the present embeddings of all, ``(N, D)``."""
        negatives = hard_negatives(
            self._checked_embeddings(embeddings),
            self.labels,
            self.neighbours,
            mining=self.mining,
            exact_up_to=self.exact_up_to,
        )
        self._negatives = negatives.int().cpu()

    def tensors(self) -> dict[str, Tensor]:
        """The list of hard negatives, ``(N, neighbours)``, where it was made."""
        return {} if self._negatives is None else {"negatives": self._negatives}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Take back the list that ``tensors`` gave."""
        negatives = tensors.get("negatives")
        expected = (len(self.labels), self.neighbours)
        if negatives is not None and negatives.shape != expected:
            raise ValueError(f"negatives must have shape {expected}, not {tuple(negatives.shape)}")
        self._negatives = negatives

    def _compose(self, group_class: Tensor, group_images: Tensor, generator: torch.Generator) -> Tensor:
        if self._negatives is None or len(group_class) == 0:
            return super()._compose(group_class, group_images, generator)
        seeds = torch.randperm(len(group_class), generator=generator).tolist()
        nearby = _NearbyGroups(self._negatives, list(group_images))
        return _gather(group_class, nearby, seeds, self.classes_per_batch)

    def _order_short_groups(self, classes: Tensor, images_before: int, images: Tensor) -> Tensor:
        if self._negatives is None:
            return classes
        sizes = self._short_sizes[classes].tolist()
        starts = self._short_starts[classes].tolist()
        groups = [images[start : start + size] for start, size in zip(starts, sizes, strict=True)]
        first_room = self.batch_size - images_before % self.batch_size
        order = _chain(sizes, _NearbyGroups(self._negatives, groups), first_room, self.batch_size)
        return classes[order]


class _NearbyGroups:
    """Which groups hold the hard negatives of a group's images.

    Args:
        negatives: The negatives of every image, ``(N, k)``, -1 for none.
        groups: The images of each group.
    """

    def __init__(self, negatives: Tensor, groups: list[Tensor]) -> None:
        self.negatives = negatives
        self.groups = groups
        # One place more than there are images, so that -1, no image, leads to -1, no group.
        self.group_of_image = torch.full((len(negatives) + 1,), NO_IMAGE)
        if groups:
            sizes = torch.tensor([len(group) for group in groups])
            self.group_of_image[torch.cat(groups)] = torch.arange(len(groups)).repeat_interleave(sizes)

    def __call__(self, group: int) -> list[int]:
        """Those with the first negative of each image come first; a group may come several times."""
        images = self.negatives[self.groups[group]].T.flatten()
        found = self.group_of_image[images]
        return found[found != NO_IMAGE].tolist()


def _gather(group_class: Tensor, nearby: _NearbyGroups, seeds: list[int], classes_per_batch: int) -> Tensor:
    """Batches of one group and those near it, ``(T, P)``: every group once, P different classes in each.

    A class with as many groups left as batches joins them all, or there would be no place for its last group.

    Args:
        group_class: The class of each of the T · P groups, in ascending order, at most T of any one.
        nearby: Which groups lie near a group.
        seeds: The groups in random order, used up on the way.
        classes_per_batch: P.
    """
    class_of = group_class.tolist()
    left = group_class.bincount()
    ends = left.cumsum(0).tolist()
    waiting = [True] * len(class_of)
    batches = []
    for batches_left in range(len(class_of) // classes_per_batch, 0, -1):
        batch: dict[int, int] = {}  # class: group
        for due in (left == batches_left).nonzero().flatten().tolist():
            batch[due] = next(g for g in range(ends[due] - 1, -1, -1) if waiting[g])
        while not waiting[seeds[-1]]:
            seeds.pop()
        while len(batch) < classes_per_batch:
            seed = next(g for g in reversed(seeds) if waiting[g] and class_of[g] not in batch)
            for group in (seed, *nearby(seed)):
                if waiting[group] and class_of[group] not in batch and len(batch) < classes_per_batch:
                    batch[class_of[group]] = group
        for group in batch.values():
            waiting[group] = False
        left[list(batch)] -= 1
        batches.append(list(batch.values()))
    return torch.tensor(batches)


def _chain(sizes: list[int], nearby: _NearbyGroups, first_room: int, batch_size: int) -> list[int]:
    """An order of groups of any sizes in which, cut into batches, each batch has groups near each other.

    Args:
        sizes: Images per group; the groups are in random order.
        nearby: Which groups lie near a group.
        first_room: How many images the first batch takes.
        batch_size: How many the others take; a group across the border begins in one and ends in the next.
    """
    waiting = [True] * len(sizes)
    order: list[int] = []
    room = first_room
    for seed in range(len(sizes)):
        if not waiting[seed]:
            continue
        for group in (seed, *nearby(seed)):
            if waiting[group] and room > 0:
                waiting[group] = False
                order.append(group)
                room -= sizes[group]
        if room <= 0:
            room += batch_size
    return order
