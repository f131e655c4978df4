"""Two modalities: images and texts, or vectors of any two kinds, that belong together pair by pair."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from nearkin.data.decoding import ImageFiles
from nearkin.data.known_pairs import joined
from nearkin.data.samples import DataSet, Samples, SampleSet, split_classes
from nearkin.data.texts import Texts
from nearkin.data.transforms import Transform

NAMES = ("image", "text")
"""What the two modalities are called where nobody says."""


class TwoModalities:
    """Samples that are pairs: an item of one modality, and one of the other that belongs to it.

    An item may be in several pairs, as an image with five captions is, or the text of a class with many
    images. Searches are scored over items, each once.

    Args:
        first: The items of one modality, any :class:`Samples`.
        second: The items of the other.
        pairs: ``(N, 2)`` positions in the one and in the other; by default row by row.
        names: What the two are called.

    >>> pairs = TwoModalities(Texts(["a wren", "a gull"]), Texts(["ein Zaunkönig", "eine Möwe"]))
    >>> pairs[1], pairs.name(0)
    (('a gull', 'eine Möwe'), 'a wren ~ ein Zaunkönig')
    """

    def __init__(
        self,
        first: Samples,
        second: Samples,
        pairs: Tensor | None = None,
        names: tuple[str, str] = NAMES,
    ) -> None:
        if pairs is None and len(first) != len(second):
            raise ValueError(
                f"{len(first)} samples of one modality and {len(second)} of the other: give as many, row by "
                "row, or pairs= of their positions"
            )
        self.first, self.second, self.names = first, second, names
        self.pairs = torch.arange(len(first))[:, None].expand(-1, 2) if pairs is None else pairs

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        one, other = self.pairs[index].tolist()
        return self.first[one], self.second[other]

    def select(self, indices: Sequence[int]) -> TwoModalities:
        """The pairs at ``indices``, in that order."""
        rows = torch.as_tensor(indices, dtype=torch.long)
        return TwoModalities(self.first, self.second, self.pairs[rows], self.names)

    def name(self, index: int) -> str:
        """What a person would call both."""
        one, other = self.pairs[index].tolist()
        return f"{self.first.name(one)} ~ {self.second.name(other)}"

    def joined(self, other: TwoModalities) -> TwoModalities:
        """All pairs of two sets."""
        from nearkin.data.joining import join_samples  # noqa: PLC0415  (which asks for this method)

        if self.first is other.first and self.second is other.second:
            return TwoModalities(self.first, self.second, torch.cat([self.pairs, other.pairs]), self.names)
        after = other.pairs + torch.tensor([len(self.first), len(self.second)])
        first, second = join_samples(self.first, other.first), join_samples(self.second, other.second)
        return TwoModalities(first, second, torch.cat([self.pairs, after]), self.names)

    def fingerprint(self) -> str:
        """A hash that changes when an item of a pair does, or which items are a pair."""
        from nearkin.data.sample_hashes import fingerprint  # noqa: PLC0415  (which asks for this method)

        digest = hashlib.sha256()
        for number, items in enumerate((self.first, self.second)):
            used, places = self.pairs[:, number].unique(return_inverse=True)
            digest.update(f"{fingerprint(items.select(used.tolist()))} {places.tolist()}\n".encode())
        return digest.hexdigest()

    def items(self, number: int) -> tuple[Samples, Tensor]:
        """The items of a modality (0 or 1) that are in a pair, each once, and the first row of each."""
        used, places = self.pairs[:, number].unique(return_inverse=True)
        rows = torch.full((len(used),), len(places), dtype=torch.long)
        rows.scatter_reduce_(0, places, torch.arange(len(places)), "amin")
        return (self.first, self.second)[number].select(used.tolist()), rows


def modality(sample_set: SampleSet, embeddings: Tensor, number: int) -> tuple[SampleSet, Tensor]:
    """The items of one modality, each once, with their labels and embeddings.

    Args:
        sample_set: Of :class:`TwoModalities`.
        embeddings: ``(N, 2 D)`` of its pairs: those of the first modality, and behind them of the second.
        number: 0 or 1.
    """
    samples = sample_set.samples
    assert isinstance(samples, TwoModalities)
    items, rows = samples.items(number)
    labels, names = sample_set.labels[rows], sample_set.class_names
    half = embeddings.shape[1] // 2
    own = embeddings[rows, :half] if number == 0 else embeddings[rows, half:]
    return SampleSet(items, labels, names), own


class EachModality:
    """A transform for pairs of two modalities: one for each.

    Args:
        first: What becomes of the first; as it is by default.
        second: What becomes of the second.
    """

    def __init__(self, first: Transform | None = None, second: Transform | None = None) -> None:
        from nearkin.data.as_is import AsIs  # noqa: PLC0415  (which knows two modalities)

        self.first: Transform = first or AsIs()
        self.second: Transform = second or AsIs()

    def __repr__(self) -> str:
        return f"EachModality({self.first!r}, {self.second!r})"

    def __call__(self, samples: Samples, indices: Sequence[int], seeds: Sequence[int]) -> tuple[Any, Any]:
        """Inputs of both networks."""
        if not isinstance(samples, TwoModalities):
            raise TypeError(f"EachModality is for pairs of two modalities, not for {type(samples).__name__}")
        rows = samples.pairs[list(indices)]
        return (
            self.first(samples.first, rows[:, 0].tolist(), seeds),
            self.second(samples.second, rows[:, 1].tolist(), seeds),
        )


def modalities(
    first: Any,
    second: Any,
    labels: Iterable[Hashable] | Tensor | None = None,
    *,
    pairs: Sequence[tuple[int, int]] | Tensor | None = None,
    names: tuple[str, str] = NAMES,
    test_fraction: float = 0.5,
    seed: int = 0,
    name: str = "modalities",
) -> DataSet:
    """A data set of pairs of two modalities, such as images and texts, whose classes are split.

    Args:
        first: One modality: paths of images, an array of images or vectors, texts; see
            :func:`nearkin.data.as_samples`.
        second: The other.
        labels: The class of each pair, where there are classes: every item of a class belongs to every item
            of it in the other modality. Without, to those that it shares a pair with.
        pairs: Positions in ``first`` and ``second`` that belong together; by default row by row.
        names: What the two are called.
        test_fraction: Share of the classes to hold out for the test.
        seed: Draws them.
        name: What to call the data set.

    Raises:
        ValueError: An item belongs to two classes, or the rows of the two do not fit together.

    >>> made = modalities(["a wren", "a gull"] * 2, ["Zaunkönig", "Möwe"] * 2)
    >>> made.train, made.train.samples[0]
    (SampleSet(2 samples, 1 classes), ('a gull', 'Möwe'))
    """
    from nearkin.data.entrance import as_samples  # noqa: PLC0415  (it imports this file's neighbours)

    one, other = as_samples(first), as_samples(second)
    rows = None if pairs is None else torch.as_tensor(pairs, dtype=torch.long)
    if rows is not None:
        _check_positions(rows, one, other)
    whole = paired(TwoModalities(one, other, rows, names), labels)
    return split_pairs_of_modalities(name, whole, test_fraction, seed)


def paired(samples: TwoModalities, labels: Iterable[Hashable] | Tensor | None = None) -> SampleSet:
    """Pairs with their classes: the given ones, or what shares an item.

    Args:
        samples: Texts and files that occur twice are taken for one item.
        labels: The class of each pair.

    Raises:
        ValueError: An item belongs to two classes.
    """
    whole = _each_once(samples)
    if labels is not None:
        sample_set = SampleSet(whole, labels)
        _refuse_two_classes(whole, sample_set)
        return sample_set
    places = torch.stack([whole.pairs[:, 0], whole.pairs[:, 1] + len(whole.first)], dim=1)
    groups = joined(len(whole.first) + len(whole.second), places)[places[:, 0]]
    numbers = groups.unique(return_inverse=True)[1]
    return SampleSet(whole, numbers, [f"pair {n}" for n in range(int(numbers.max()) + 1)])


def split_pairs_of_modalities(name: str, whole: SampleSet, test_fraction: float, seed: int) -> DataSet:
    """A data set of pairs, a share of whose classes is held out for the test."""
    train, test = split_classes(whole, test_fraction, seed, what="test_fraction")
    return DataSet(name, train, test, notes=(note_of(whole),))


def note_of(whole: SampleSet) -> str:
    """How many pairs, items and classes there are."""
    samples = whole.samples
    assert isinstance(samples, TwoModalities)
    first, second = (f"{samples.names[number]}: {len(samples.items(number)[1]):,}" for number in (0, 1))
    return f"{len(samples):,} pairs in {whole.num_classes:,} classes ({first}, {second})"


def _check_positions(rows: Tensor, first: Samples, second: Samples) -> None:
    if rows.ndim != 2 or rows.shape[1] != 2 or not len(rows):
        raise ValueError(f"pairs must be rows of two positions, not {tuple(rows.shape)}")
    for number, items in enumerate((first, second)):
        outside = (rows[:, number] < 0) | (rows[:, number] >= len(items))
        if outside.any():
            position = int(rows[outside, number][0])
            raise ValueError(f"position {position} is not one of {len(items)} samples")


def _each_once(samples: TwoModalities) -> TwoModalities:
    """The same with texts and files that occur twice taken for one item."""
    columns = []
    for number, items in enumerate((samples.first, samples.second)):
        column = samples.pairs[:, number]
        if isinstance(items, Texts | ImageFiles):
            first: dict[Any, int] = {}
            keys = items.texts if isinstance(items, Texts) else [items.name(i) for i in range(len(items))]
            places = torch.tensor([first.setdefault(key, place) for place, key in enumerate(keys)])
            column = places[column]
        columns.append(column)
    return TwoModalities(samples.first, samples.second, torch.stack(columns, dim=1), samples.names)


def _refuse_two_classes(samples: TwoModalities, sample_set: SampleSet) -> None:
    for number, items in enumerate((samples.first, samples.second)):
        _, rows = samples.items(number)
        column = samples.pairs[:, number]
        places = column.unique(return_inverse=True)[1]
        wrong = (sample_set.labels != sample_set.labels[rows][places]).nonzero().flatten()
        if len(wrong):
            row = int(wrong[0])
            here, before = (
                sample_set.class_names[int(sample_set.labels[one])] for one in (row, int(rows[places[row]]))
            )
            raise ValueError(
                f"{items.name(int(column[row]))} belongs to the classes {before!r} and {here!r}: an item may "
                "be of one class only"
            )
