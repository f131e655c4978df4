"""Batches without a positive pair get some from batches that have more."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

from torch import Tensor


def spread_positive_pairs(mixed: Sequence[Tensor], regular: Tensor, classes: Tensor, most: int) -> None:
    """Exchange images, in place, until every mixed batch has a positive pair or none is left to give.

    A batch that gets a pair gets several if it can, up to half of its images, and the one that gives keeps at
    least half of its groups: a batch with a single pair among many images teaches the wrong thing about
    them, and was seen to cost more than a batch without any.

    Args:
        mixed: The batches that may be without a pair, each a vector of image numbers.
        regular: Batches that surely have pairs, ``(T, B)``; they give first.
        classes: The class of every image, ``(N,)``.
        most: How many images of one class a batch may hold.
    """
    has_pair = [_has_pair(classes[batch]) for batch in mixed]
    without = [batch for batch, has in zip(mixed, has_pair, strict=True) if not has and len(batch) > 1]
    if not without:
        return
    others = [*regular, *(batch for batch, has in zip(mixed, has_pair, strict=True) if has)]
    donors = deque(_Batch(batch, classes) for batch in others)
    waiting, before = [_Batch(batch, classes) for batch in without], 0
    while waiting and len(waiting) != before:
        before = len(waiting)
        waiting = [batch for batch in waiting if not _is_helped(batch, donors, most)]


def _has_pair(classes: Tensor) -> bool:
    return len(classes.unique()) < len(classes)


class _Batch:
    """A batch while images are exchanged.

    Attributes:
        images: Image numbers, a view of the plan.
        classes: The class of each of them.
        counts: Images per class.
        can_spare: Whether a pair would remain if its first group went.
    """

    def __init__(self, images: Tensor, classes: Tensor) -> None:
        self.images = images
        self.classes: list[int] = classes[images].tolist()
        self._count()

    def _count(self) -> None:
        self.counts = Counter(self.classes)
        groups = [count for count in self.counts.values() if count > 1]
        self.can_spare = len(groups) > 1 or (bool(groups) and groups[0] > 2)

    def swap(self, places: list[tuple[int, int]], other: _Batch) -> None:
        """Exchange images at these places of both batches."""
        for mine, theirs in places:
            image = int(self.images[mine])
            self.images[mine] = other.images[theirs]
            other.images[theirs] = image
            self.classes[mine], other.classes[theirs] = other.classes[theirs], self.classes[mine]
        self._count()
        other._count()


def _is_helped(batch: _Batch, donors: deque[_Batch], most: int) -> bool:
    """Let the first donor that can give groups to a batch without a pair; the next time others come first."""
    for _ in range(len(donors)):
        donor = donors[0]
        donors.rotate(-1)
        useful = donor.can_spare or not donor.counts.keys().isdisjoint(batch.counts)
        if useful and _give(donor, batch, most):
            donors.append(batch)
            return True
    return False


def _give(donor: _Batch, batch: _Batch, most: int) -> bool:
    """Move groups from one batch to another in exchange for single images; whether there was one to move."""
    groups = [group for group, count in donor.counts.items() if count > 1 or group in batch.counts]
    room = len(batch.classes) // 2
    given = 0
    for group in groups:
        exchange = _exchange(donor, batch, group, most)
        if exchange and (given == 0 or len(exchange) <= room):
            donor.swap(exchange, batch)
            room -= len(exchange)
            given += 1
        if given and (given >= len(groups) // 2 or room <= 0 or not donor.can_spare):
            break
    return given > 0


def _exchange(donor: _Batch, batch: _Batch, group: int, most: int) -> list[tuple[int, int]]:
    """Which places to swap so that ``group`` becomes a pair or more in the batch; empty if it cannot be.

    The donor must keep a pair, and no batch may hold more than ``most`` images of one class.
    """
    places = [place for place, one in enumerate(donor.classes) if one == group]
    keeps_another = any(count > 1 for one, count in donor.counts.items() if one != group)
    wanted = min(len(places) - (0 if keeps_another else 2), most - batch.counts[group])
    singles = [
        place
        for place, one in enumerate(batch.classes)
        if one != group and batch.counts[one] == 1 and donor.counts[one] < most
    ]
    count = min(wanted, len(singles))
    if count < 1 or batch.counts[group] + count < 2:
        return []
    return list(zip(places[:count], singles[:count], strict=True))
