"""P classes with K images each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Sampler

from nearkin.sampling.base import PlannedSampler, registry, sizes_of_pieces
from nearkin.sampling.exchange import spread_positive_pairs
from nearkin.sampling.fitting import fitting


@registry.register("balanced")
class BalancedSampler(PlannedSampler):
    """P classes with K images each: in such a batch every image has K - 1 positives.

    Every epoch shuffles the images of each class and cuts them into groups of K; a batch is P groups of P
    different classes, so ``batch_size`` = P · K. Used with most pair-based losses since Hermans, Beyer and
    Leibe, "In Defense of the Triplet Loss" (2017, arXiv 1703.07737).

    No batch ever holds more than K images of one class, and no image comes twice in an epoch. Where class
    sizes do not fit that rule:

    - The last ``n mod K`` images of a class, and so all images of a class with fewer than K, form a *short*
      group. Short groups meet in mixed batches of their own, which have ``batch_size`` images of more than P
      classes, and there an image has fewer than K - 1 positives.
    - A class that would leave a single image over halves its last K + 1 images instead and gives two short
      groups, to different mixed batches. That takes K of 3 or more and enough such classes to keep the halves
      apart (in all, second halves of ``batch_size`` images); otherwise, as for a class of one image, the
      group is a single image, which has no positive there. Which image that is changes from epoch to epoch.
      A class may also be cut where one mixed batch ends and the next begins.
    - A mixed batch without any positive pair exchanges up to half of its images for groups of another batch,
      so that **every batch of two or more images has a positive pair**, as long as another batch has one to
      spare (K of 1 asks for none).
    - Fewer than P groups can be left when the P × K batches are formed. They join the mixed batches.
    - The last mixed batch may be incomplete. It comes at the end, unless ``drop_last``. (So may a second one,
      in the rare case that it takes two to keep the groups of one class apart.)
    - A class with more groups than there are P × K batches gives one more to the mixed batches and sits out
      with the surplus, other images in every epoch. That takes a class larger than most others together;
      ``images_per_epoch`` says how many images remain.
    - With fewer than P classes there is no batch to make: a ``ValueError`` that says which sizes would do.
      :func:`~nearkin.sampling.fitting` chooses sizes that fit.

    With ``drop_short`` there are no short groups and no mixed batches: every batch has exactly K images of
    each of its classes, the ``n mod K`` images that do not fill a group sit out, other ones in every epoch,
    and a class with fewer than K images never comes.

    Args:
        labels: The class of every image, integers, ``(N,)``.
        batch_size: P · K, over all ranks. Where P is a multiple of ``world_size``, a rank's slice of a P × K
            batch holds whole groups.
        images_per_class: K.
        drop_short: Leave out the images that do not fill a group of K.
        seed, rank, world_size, drop_last, sampler: As in :class:`~nearkin.sampling.base.PlannedSampler`.

    >>> sampler = BalancedSampler([0] * 4 + [1] * 4 + [2] * 5, batch_size=4, images_per_class=2)
    >>> sampler.batch_sizes  # two images of each of two classes, and the thirteenth image
    [4, 4, 4, 1]
    >>> [sampler.labels[batch].unique(return_counts=True)[1].tolist() for batch in sampler.plan(epoch=0)]
    [[2, 2], [2, 2], [2, 2], [1]]
    """

    def __init__(
        self,
        labels: Tensor | Sequence[int],
        *,
        batch_size: int,
        images_per_class: int = 5,
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
            seed=seed,
            rank=rank,
            world_size=world_size,
            drop_last=drop_last,
            sampler=sampler,
        )
        if images_per_class < 1:
            raise ValueError(f"images_per_class={images_per_class} must be at least 1")
        if batch_size % images_per_class:
            raise ValueError(
                f"batch_size={batch_size} is not a multiple of images_per_class={images_per_class}"
            )
        self.images_per_class = images_per_class
        self.classes_per_batch = batch_size // images_per_class
        self.drop_short = drop_short

        _, classes, self._class_sizes = self.labels.unique(return_inverse=True, return_counts=True)
        self._classes = _quick_to_sort(classes, len(self._class_sizes))
        self._class_starts = self._class_sizes.cumsum(0) - self._class_sizes
        self._check_enough_classes()
        self._count_groups()

    def _check_enough_classes(self) -> None:
        usable = self._class_sizes >= (self.images_per_class if self.drop_short else 1)
        if (classes := int(usable.sum())) >= self.classes_per_batch:
            return
        smallest = f" of at least {self.images_per_class} images" if self.drop_short else ""
        hint = ""
        if classes:
            size, images = fitting(self.labels, self.batch_size, self.images_per_class)
            hint = (
                f": use batch_size={classes * self.images_per_class} or less, or batch_size={size} with "
                f"images_per_class={images}, which nearkin.sampling.fitting chooses"
            )
        raise ValueError(
            f"batch_size={self.batch_size} with {self.images_per_class} images per class needs "
            f"{self.classes_per_batch} classes{smallest}, but there are {classes}{hint}"
        )

    def _count_groups(self) -> None:
        """Settle what depends on class sizes only: how many P × K batches, and what mixed ones get."""
        self._divide(torch.zeros_like(self._class_sizes, dtype=torch.bool))
        images = int(self._used_images.sum())
        K = self.images_per_class
        single_left = (self._class_sizes % K == 1) & (self._class_sizes > K)
        if self.drop_short or K < 3 or not single_left.any():
            return
        self._divide(single_left)
        if int(self._used_images.sum()) < images or not self._halves_stay_apart():
            self._divide(torch.zeros_like(single_left))

    def _divide(self, halved: Tensor) -> None:
        """Cut every class into full groups, a short one, and a second short one where it is ``halved``."""
        K = self.images_per_class
        full_groups = self._class_sizes // K - halved.long()
        self._second_sizes = halved * ((K + 1) // 2)
        self._short_sizes = torch.where(halved, (K + 2) // 2, self._class_sizes % K) * (not self.drop_short)
        self._second_starts = self._class_starts + self._class_sizes - self._second_sizes
        self._short_starts = self._second_starts - self._short_sizes
        self._regular_batches = _most_batches(full_groups, self.classes_per_batch)
        # One group more than there are P × K batches finds a place in a mixed one; a second would meet it.
        self._used_groups = full_groups.clamp(max=self._regular_batches + 1)
        self._used_images = self._used_groups * K + self._short_sizes + self._second_sizes
        self._spare_groups = int(self._used_groups.sum()) - self._regular_batches * self.classes_per_batch

        # Which classes give a spare group is drawn every epoch, in this order of preference: those that have
        # one group too many, those with no short group for the spare one to meet in a mixed batch, those with
        # one, those with two.
        preference = torch.full_like(full_groups, 2, dtype=torch.int16)
        preference[self._short_sizes == 0] = 1
        preference[halved] = 3
        preference[self._used_groups > self._regular_batches] = 0
        preference[self._used_groups == 0] = 4
        self._spare_preference = preference
        givers = preference.argsort(stable=True)[: self._spare_groups]
        self._spare_may_meet_short = bool((self._short_sizes[givers] > 0).any())

    def _halves_stay_apart(self) -> bool:
        """Whether ``_mixed_stream`` can keep all groups of a class in different batches.

        It can if the second halves of the classes that give no spare group fill a batch: so much then lies
        between the two halves of each class, and between a spare group and what its class has at the end.
        """
        second = self._second_sizes
        of_givers = min(self._spare_groups, int((second > 0).sum())) * int(second.max())
        return int(second.sum()) - of_givers >= self.batch_size

    def _mixed_sizes(self) -> list[int]:
        short, spare = int(self._short_sizes.sum()), self._spare_groups * self.images_per_class
        if self._spare_may_meet_short and short < self.batch_size:
            return [short, spare]
        return sizes_of_pieces(short + spare + int(self._second_sizes.sum()), self.batch_size)

    def _planned_sizes(self) -> list[int]:
        sizes = [self.batch_size] * self._regular_batches + self._mixed_sizes()
        return sorted(sizes, key=lambda size: size < self.batch_size)

    def _planned(self, generator: torch.Generator) -> Tensor:
        images = self._images_by_class(generator)
        spare_of_class = self._draw_spare_groups(generator)
        regular = self._regular_plan(images, self._used_groups - spare_of_class, generator)
        mixed = self._mixed_stream(images, spare_of_class, generator)
        if self.images_per_class > 1:
            batches = mixed.split(self._mixed_sizes())
            spread_positive_pairs(batches, regular, self._classes, self.images_per_class)

        in_full_batches = self._mixed_sizes().count(self.batch_size) * self.batch_size
        full = torch.cat((regular, mixed[:in_full_batches].view(-1, self.batch_size)))
        full = full[torch.randperm(len(full), generator=generator)]
        return torch.cat((full.flatten(), mixed[in_full_batches:]))

    def _images_by_class(self, generator: torch.Generator) -> Tensor:
        """All images, class after class, shuffled within each."""
        shuffled = torch.randperm(len(self.labels), generator=generator)
        return shuffled[self._classes[shuffled].argsort(stable=True)]

    def _draw_spare_groups(self, generator: torch.Generator) -> Tensor:
        """How many spare groups each class gives to the mixed batches, 0 or 1, ``(C,)``."""
        order = torch.randperm(len(self._class_sizes), generator=generator)
        givers = order[self._spare_preference[order].argsort(stable=True)][: self._spare_groups]
        return torch.zeros_like(self._class_sizes).index_fill_(0, givers, 1)

    def _regular_plan(self, images: Tensor, groups_of_class: Tensor, generator: torch.Generator) -> Tensor:
        """The P × K batches, ``(T, P · K)``, from the first ``groups_of_class`` groups of every class."""
        group_class, group_in_class = count_within(groups_of_class)
        starts = self._class_starts[group_class] + group_in_class * self.images_per_class
        group_images = images[starts.unsqueeze(1) + torch.arange(self.images_per_class)]
        return group_images[self._compose(group_class, group_images, generator)].flatten(1)

    def _compose(self, group_class: Tensor, group_images: Tensor, generator: torch.Generator) -> Tensor:
        """Which groups form each batch, ``(T, P)``: every group once, P different classes in each batch.

        Args:
            group_class: The class of each of the T · P groups, in ascending order, at most T of any one.
            group_images: The images of each group, ``(T · P, K)``.
            generator: Where the randomness comes from.
        """
        classes = len(self._class_sizes)
        class_rank = _quick_to_sort(torch.randperm(classes, generator=generator), classes)
        groups = class_rank[group_class].argsort(stable=True).view(self.classes_per_batch, -1)
        batch_of_group = _spread(group_class[groups], generator)
        return torch.empty_like(groups).scatter_(1, batch_of_group, groups).T

    def _mixed_stream(self, images: Tensor, spare_of_class: Tensor, generator: torch.Generator) -> Tensor:
        """The images of the short groups, of the spare ones, and of the second short ones, group after group.

        Cutting the stream every ``batch_size`` images keeps the groups of a class apart. The short groups of
        classes that also give a spare group go first: they fill less than one batch. The second halves come
        in the order of the first, those of classes that give a spare group at the very end.
        """
        givers = spare_of_class.nonzero().squeeze(1)
        others = ((spare_of_class == 0) & (self._short_sizes > 0)).nonzero().squeeze(1)
        others = others[torch.randperm(len(others), generator=generator)]
        images_before = int(self._short_sizes[givers].sum())
        others = self._order_short_groups(others, images_before, images)
        first, last = torch.cat((givers, others)), torch.cat((others, givers))
        spare_starts = self._class_starts[givers] + (self._used_groups[givers] - 1) * self.images_per_class
        spare_sizes = torch.full_like(givers, self.images_per_class)
        starts = torch.cat((self._short_starts[first], spare_starts, self._second_starts[last]))
        entry, within = count_within(
            torch.cat((self._short_sizes[first], spare_sizes, self._second_sizes[last]))
        )
        return images[starts[entry] + within]

    def _order_short_groups(self, classes: Tensor, images_before: int, images: Tensor) -> Tensor:
        """In which order the short groups of these classes fill the mixed batches.

        Args:
            classes: The classes, in random order.
            images_before: How many images of the stream come before theirs.
            images: All images, class after class; the last of each class are its short group.
        """
        return classes


def _quick_to_sort(numbers: Tensor, limit: int) -> Tensor:
    """Numbers below ``limit`` in the narrowest type: torch sorts short integers several times faster."""
    return numbers.to(torch.int16 if limit <= torch.iinfo(torch.int16).max else torch.int32)


def count_within(counts: Tensor) -> tuple[Tensor, Tensor]:
    """Number the members of every entry: which entry each belongs to, and its number within it.

    >>> count_within(torch.tensor([2, 0, 3]))
    (tensor([0, 0, 2, 2, 2]), tensor([0, 1, 0, 1, 2]))
    """
    entry = torch.arange(len(counts)).repeat_interleave(counts)
    return entry, torch.arange(len(entry)) - (counts.cumsum(0) - counts)[entry]


def _most_batches(groups_of_class: Tensor, classes_per_batch: int) -> int:
    """The largest T such that T batches of P different classes can be filled.

    A class serves at most ``min(groups, T)`` of them, so T is possible while these add up to T · P, which
    stays true for every smaller T: halve the interval.
    """
    possible, impossible = 0, int(groups_of_class.sum()) // classes_per_batch + 1
    while impossible - possible > 1:
        middle = (possible + impossible) // 2
        if int(groups_of_class.clamp(max=middle).sum()) >= middle * classes_per_batch:
            possible = middle
        else:
            impossible = middle
    return possible


def _spread(group_class: Tensor, generator: torch.Generator) -> Tensor:
    """Send every group to a batch, so that a batch gets one group of each row and no class twice.

    Args:
        group_class: The class of each group, ``(P, T)``, the groups of a class next to each other in reading
            order and at most T of them.
        generator: Where the randomness comes from.

    Returns:
        The batch of each group, ``(P, T)``; every row is a permutation of the T batches.

    Within a row any permutation keeps the groups of a class apart. Only a class that goes on from the end of
    one row to the start of the next needs care: its groups there take the first batches of their row's random
    order that it has not been sent to yet.
    """
    rows, batches = group_class.shape
    batch_of_group = torch.rand(rows, batches, generator=generator).argsort(1)
    if batches == 0:
        return batch_of_group
    continued = (group_class[:-1, -1] == group_class[1:, 0]).nonzero().squeeze(1)
    for row in continued.tolist():
        taken = batch_of_group[row][group_class[row] == group_class[row, -1]]
        free = torch.ones(batches, dtype=torch.bool).index_fill_(0, taken, False)
        order = batch_of_group[row + 1]
        usable = free[order]
        needed = int((group_class[row + 1] == group_class[row, -1]).sum())
        head = usable & (usable.cumsum(0) <= needed)
        batch_of_group[row + 1] = torch.cat((order[head], order[~head]))
    return batch_of_group
