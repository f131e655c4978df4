"""Labelled samples and the splits of a data set."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from nearkin.data.known_pairs import KnownPairs
from nearkin.data.numbered_names import NumberedNames
from nearkin.data.seeding import refuse_wrong_seed


class Samples(Protocol):
    """A sequence of samples of one kind, in memory or on disk."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any:
        """One sample: ``uint8`` ``(C, H, W)`` of an image (RGB or grey), a text, a vector, anything."""
        ...

    def select(self, indices: Sequence[int]) -> Samples:
        """The samples at ``indices``, in that order."""
        ...

    def name(self, index: int) -> str:
        """What a person would call this sample: its path, or what it shows."""
        ...


class ImageArray:
    """Images of one size that live in memory, ``uint8`` ``(N, C, H, W)``."""

    def __init__(self, pixels: Tensor, names: Sequence[str] | None = None) -> None:
        if pixels.dtype != torch.uint8 or pixels.ndim != 4:
            raise ValueError(f"pixels must be uint8 (N, C, H, W), not {pixels.dtype} {tuple(pixels.shape)}")
        self.pixels = pixels
        self._names = None if names is None else tuple(names)

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> Tensor:
        return self.pixels[index]

    def select(self, indices: Sequence[int]) -> ImageArray:
        """The images at ``indices``, in that order."""
        names = None if self._names is None else [self._names[i] for i in indices]
        return ImageArray(self.pixels[torch.as_tensor(indices, dtype=torch.long)], names)

    def name(self, index: int) -> str:
        """The name given for this image, or its position."""
        return str(index) if self._names is None else self._names[index]


class SampleSet:
    """Samples with labels: one split of a data set.

    Args:
        samples: Any :class:`Samples`.
        labels: One label per sample, of any hashable kind. They are numbered in sorted order (numbers as
            numbers, everything else as text); :attr:`labels` holds the numbers.
        class_names: One name per number, if the labels are numbers already; every class must occur. In a
            tensor of numbers, :data:`UNKNOWN` is a sample without a label.
        cameras: Which camera took each sample, ``(N,)`` integers, where that is known: a search for people or
            vehicles is scored across cameras.
        pairs: What is known of pairs of the samples, where that is all that is known of them; the labels are
            then the groups that matches join.

    Attributes:
        labels: int64 tensor ``(N,)`` with values in ``range(num_classes)``, and :data:`UNKNOWN` where the
            label of a sample is not known: see :meth:`without_labels`.
        class_names: What the numbers mean: a tuple, or :class:`~nearkin.data.NumberedNames` where they are
            numbers and very many.
        cameras: int64 tensor ``(N,)``, or ``None``.
        pairs: :class:`~nearkin.data.KnownPairs`, or ``None``: see :func:`nearkin.data.pairs`.

    >>> pixels = torch.zeros(3, 1, 8, 8, dtype=torch.uint8)
    >>> birds = SampleSet(ImageArray(pixels), ["wren", "gull", "wren"])
    >>> birds.labels.tolist(), birds.class_names
    ([1, 0, 1], ('gull', 'wren'))
    """

    def __init__(
        self,
        samples: Samples,
        labels: Iterable[Hashable] | Tensor,
        class_names: Sequence[str] | None = None,
        *,
        cameras: Sequence[int] | Tensor | None = None,
        pairs: KnownPairs | None = None,
    ) -> None:
        self.samples = samples
        self.pairs = pairs
        self.cameras = None if cameras is None else torch.as_tensor(cameras, dtype=torch.long)
        if self.cameras is not None and self.cameras.shape != (len(samples),):
            raise ValueError(f"{len(samples)} samples but cameras of shape {tuple(self.cameras.shape)}")
        self.class_names: Sequence[str]
        if isinstance(labels, Tensor) and labels.dim() == 1 and labels.dtype in _INTEGERS:
            self._take_numbers(labels.detach().cpu().long(), class_names)
            return
        values = _plain_labels(labels)
        if len(values) != len(samples):
            raise ValueError(f"{len(samples)} samples but {len(values)} labels")
        numbers: dict[Hashable, int]
        if class_names is None:
            ordered = _in_order(values)
            numbers = {label: number for number, label in enumerate(ordered)}
            self.class_names = tuple(str(label) for label in ordered)
        else:
            numbers = {number: number for number in range(len(class_names))}
            self.class_names = tuple(class_names)
            if set(values) != set(numbers):
                empty = [name for number, name in enumerate(class_names) if number not in set(values)]
                raise _wrong_numbers(class_names, empty)
        self.labels = torch.tensor([numbers[v] for v in values], dtype=torch.long)

    def _take_numbers(self, labels: Tensor, class_names: Sequence[str] | None) -> None:
        """Labels that are numbers, without a Python object for each."""
        if len(labels) != len(self.samples):
            raise ValueError(f"{len(self.samples)} samples but {len(labels)} labels")
        if class_names is None:
            present, self.labels = torch.unique(labels, return_inverse=True)
            names = NumberedNames(present)
            self.class_names = names if len(names) > _MANY_CLASSES else tuple(names)
            return
        inside = labels[(labels >= 0) & (labels < len(class_names))]
        absent = (torch.bincount(inside, minlength=len(class_names)) == 0).nonzero().flatten()
        if len(inside) + int((labels == UNKNOWN).sum()) < len(labels) or len(absent):
            raise _wrong_numbers(class_names, [class_names[int(number)] for number in absent[:1]])
        self.labels = labels
        self.class_names = class_names if isinstance(class_names, NumberedNames) else tuple(class_names)

    def __len__(self) -> int:
        return len(self.samples)

    def __repr__(self) -> str:
        unknown = len(self) - int(self.is_labelled.sum())
        without = f", {unknown:,} without a label" if unknown else ""
        return f"SampleSet({len(self):,} samples, {self.num_classes:,} classes{without})"

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.samples[index], int(self.labels[index])

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def is_labelled(self) -> Tensor:
        """Which samples have a label, ``(N,)``."""
        return self.labels != UNKNOWN

    def fingerprint(self) -> str:
        """A hash that changes when the samples, the labels or the class names do."""
        from nearkin.data.sample_hashes import fingerprint_of_set  # noqa: PLC0415  (it imports this file)

        return fingerprint_of_set(self)

    def select(self, indices: Sequence[int] | Tensor) -> SampleSet:
        """The samples at ``indices``, classes numbered anew (those without a sample are gone)."""
        indices = torch.as_tensor(indices, dtype=torch.long)
        cameras = None if self.cameras is None else self.cameras[indices]
        pairs = None if self.pairs is None else self.pairs.select(indices)
        numbered = self._numbered_anew(self.labels[indices])
        return SampleSet(self.samples.select(indices.tolist()), *numbered, cameras=cameras, pairs=pairs)

    def _numbered_anew(self, labels: Tensor) -> tuple[Tensor, Sequence[str]]:
        """Some of the labels without gaps, and the names of the classes that they mean."""
        present, numbers = torch.unique(labels, return_inverse=True)
        if len(present) and present[0] == UNKNOWN:
            present, numbers = present[1:], numbers - 1
        if isinstance(self.class_names, NumberedNames):
            return numbers, self.class_names.select(present)
        return numbers, [self.class_names[c] for c in present.tolist()]

    def without_labels(self, rows: Sequence[int] | Tensor) -> SampleSet:
        """The same samples, the labels at ``rows`` unknown; classes that no label is left of are gone.

        Nothing in the new set leads to what was hidden but the samples themselves, their names included.

        >>> pixels = torch.zeros(3, 1, 8, 8, dtype=torch.uint8)
        >>> birds = SampleSet(ImageArray(pixels), ["wren", "gull", "wren"]).without_labels([1])
        >>> birds.labels.tolist(), birds.class_names
        ([0, -1, 0], ('wren',))
        """
        labels = self.labels.clone()
        labels[torch.as_tensor(rows, dtype=torch.long)] = UNKNOWN
        return self.relabelled(labels)

    def relabelled(self, labels: Tensor) -> SampleSet:
        """The same samples with other labels ``(N,)`` of the same classes; those that none has are gone.

        What was known of pairs is gone as well: it would tell labels that were taken away.
        """
        return SampleSet(self.samples, *self._numbered_anew(labels), cameras=self.cameras)

    def labelled_part(self) -> SampleSet:
        """The samples with a label; this set itself where all have one."""
        known = self.is_labelled
        return self if bool(known.all()) else self.select(known.nonzero().flatten())

    def of_classes(self, classes: Sequence[int] | Tensor) -> SampleSet:
        """All samples of these classes, in their order here, classes numbered anew."""
        wanted = torch.isin(self.labels, torch.as_tensor(classes, dtype=torch.long))
        return self.select(wanted.nonzero().flatten())


UNKNOWN = -1
"""The label of a sample whose class is not known."""

_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
_MANY_CLASSES = 100_000


def _wrong_numbers(class_names: Sequence[str], empty: Sequence[str]) -> ValueError:
    return ValueError(
        f"labels must use every number from 0 to {len(class_names) - 1}, and no other"
        + (f"; class {empty[0]!r} has no sample" if empty else "")
    )


def _plain_labels(labels: Iterable[Hashable] | Tensor) -> list[Hashable]:
    """Labels as Python values, all of one kind."""
    listed = labels.tolist() if isinstance(labels, Tensor) else list(labels)
    values = [value.item() if isinstance(value, Tensor | np.generic) else value for value in listed]
    kinds: dict[str, int] = {}
    for index, value in enumerate(values):
        if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
            raise ValueError(f"sample {index} has no label: it is {value!r}")
        if not isinstance(value, Hashable):
            raise TypeError(f"the label of sample {index} is a {type(value).__name__}: one value is needed")
        kind = "number" if isinstance(value, int | float) else type(value).__name__
        kinds.setdefault(kind, index)
    if len(kinds) > 1:
        (one, first), (other, second) = list(kinds.items())[:2]
        raise ValueError(
            f"labels must be of one kind: that of sample {first} is a {one} ({values[first]!r}), that of "
            f"sample {second} a {other} ({values[second]!r})"
        )
    return values


def _in_order(values: list[Hashable]) -> list[Any]:
    """The distinct labels, numbers as numbers and everything else as text."""
    distinct: set[Any] = set(values)
    return (
        sorted(distinct) if all(isinstance(v, int | float) for v in distinct) else sorted(distinct, key=str)
    )


def _shared_name(names: dict[str, Sequence[str]]) -> tuple[str, str, str] | None:
    """A class name that two splits share, and which these are; the names of each split by the split's."""
    numbered = [(split, own) for split, own in names.items() if isinstance(own, NumberedNames)]
    if len(numbered) == len(names) and len({own.pattern for _, own in numbered}) == 1:
        for (one, first), (other, second) in itertools.combinations(numbered, 2):
            if (common := first.first_common(second)) is not None:
                return common, one, other
        return None
    seen: dict[str, str] = {}
    for split, own in names.items():
        for name in own:
            if name in seen:
                return name, seen[name], split
            seen[name] = split
    return None


@dataclass(frozen=True)
class DataSet:
    """A data set in splits whose classes never meet.

    Attributes:
        name: The name it was built by.
        train: Samples of the classes to learn from.
        test: Samples of classes never seen in training, where there are any. Sealed: runs read it once, at
            the end.
        validation: Classes for model selection, where the data set brings its own.
        query: Test samples that search, where queries and gallery are told apart (In-Shop).
        gallery: Test samples that are found.
        notes: What a reader of a result should know (counts that differ from the published ones, …).
        closed: Whether the classes are the same in all splits: see :class:`ClosedDataSet`.
        weakened: Whether a protocol took training labels away or changed them: see :class:`WeakenedDataSet`.
    """

    closed: ClassVar[bool] = False
    weakened: ClassVar[bool] = False

    name: str
    train: SampleSet
    test: SampleSet | None = None
    validation: SampleSet | None = None
    query: SampleSet | None = None
    gallery: SampleSet | None = None
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        splits = {"train": self.train, "validation": self.validation, "test": self.test}
        names = {split: samples.class_names for split, samples in splits.items() if samples is not None}
        if shared := _shared_name(names):
            class_name, one, other = shared
            raise ValueError(
                f"{self.name}: class {class_name!r} is in {one} and in {other}, and a "
                "class may be in one split only, since scores are for classes never seen in training"
            )

    def require_test(self) -> SampleSet:
        """The test split, or a ``ValueError`` where there is none."""
        if self.test is None:
            raise ValueError(f"{self.name} has no test split: give test classes, or hold some out")
        return self.test

    @property
    def all_classes(self) -> SampleSet:
        """Training and validation classes together: all that is not for testing."""
        from nearkin.data.joining import join  # noqa: PLC0415  (which imports this module)

        return self.train if self.validation is None else join(self.train, self.validation)

    def without_test(self) -> DataSet:
        """What may be learnt from: the same without its test classes."""
        return replace(self, test=None, query=None, gallery=None)


class ClosedDataSet(DataSet):
    """A data set whose classes are the same in all splits, of the protocol ``closed_set``."""

    closed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        pass  # classes may meet


class WeakenedDataSet(DataSet):
    """A data set whose training labels were taken away or changed, by a protocol with fewer labels."""

    weakened: ClassVar[bool] = True


def split_classes(
    sample_set: SampleSet, fraction: float, seed: int, *, what: str = "fraction"
) -> tuple[SampleSet, SampleSet]:
    """Hold out a random ``fraction`` of the classes: (the others, the held out).

    The draw depends on the seed and the number of classes only.

    Args:
        sample_set: Samples of two classes or more.
        fraction: Share of the classes to hold out.
        seed: Draws them.
        what: What errors call the fraction: the keyword or key that the user wrote.
    """
    if not 0 < fraction < 1:  # NaN neither
        raise ValueError(f"{what}={fraction} must lie between 0 and 1")
    refuse_wrong_seed(seed)
    if sample_set.num_classes == 1:
        raise ValueError(
            f"all {len(sample_set):,} samples are of one class, {sample_set.class_names[0]}: at least two "
            "classes are needed, to learn what differs"
        )
    held_out = round(fraction * sample_set.num_classes)
    if not 1 <= held_out < sample_set.num_classes:
        raise ValueError(
            f"{what}={fraction} of {sample_set.num_classes} classes holds out {held_out}, which leaves one "
            "side empty: choose another share, or give more classes"
        )
    order = torch.randperm(sample_set.num_classes, generator=torch.Generator().manual_seed(seed))
    return sample_set.of_classes(order[held_out:]), sample_set.of_classes(order[:held_out])


def common_labels(query: SampleSet, gallery: SampleSet) -> tuple[Tensor, Tensor]:
    """Labels of both sets in one numbering, by class name: each set numbers its own classes only."""
    names = sorted({*query.class_names, *gallery.class_names})
    numbers = {name: number for number, name in enumerate(names)}
    query_numbers, gallery_numbers = (
        torch.tensor([numbers[name] for name in sample_set.class_names]) for sample_set in (query, gallery)
    )
    return query_numbers[query.labels], gallery_numbers[gallery.labels]
