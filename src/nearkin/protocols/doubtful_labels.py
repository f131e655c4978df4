"""Labels that no neighbour of a sample has, in all splits of a finished run: a table and a contact sheet."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from nearkin.atomic import write_text
from nearkin.data import SampleSet
from nearkin.evaluation import nearest_neighbours
from nearkin.evaluation.diagnostics import LabelDoubt, label_doubts

if TYPE_CHECKING:
    from nearkin.pictures.sheet import Cell

TABLE, SHEET = "doubtful_labels.csv", "doubtful_labels.html"
_NEIGHBOURS = 10  # as many as the diagnostics of the test classes ask
_ROWS = 60  # of the contact sheet
_SHOWN, _SAME = 5, 3  # nearest samples, and nearest of the same label, beside each
_THUMBNAIL = 240  # pixels


@dataclass(frozen=True)
class Part:
    """Samples of one split with their embeddings ``(N, D)``."""

    split: str
    samples: SampleSet
    embeddings: Tensor


@dataclass(frozen=True)
class DoubtfulLabels:
    """Samples of several splits whose label none of their nearest neighbours has.

    Attributes:
        doubts: Those whose neighbours agree most on another label first; ``index`` counts through all parts.
        neighbours: The nearest samples of every doubt, ``(len(doubts), k)``, nearest first.
        class_names: What the numbers of labels mean, in all parts.
        labels: Of all samples ``(N,)``.
        parts: The samples.
    """

    doubts: list[LabelDoubt]
    neighbours: Tensor = field(repr=False)
    class_names: Sequence[str] = field(repr=False)
    labels: Tensor = field(repr=False)
    parts: Sequence[Part] = field(repr=False)

    def __len__(self) -> int:
        return len(self.doubts)

    @property
    def by_split(self) -> dict[str, int]:
        """How many there are in every split."""
        found = Counter(self.part_of(doubt.index)[0].split for doubt in self.doubts)
        return {split: found[split] for split in dict.fromkeys(part.split for part in self.parts)}

    def part_of(self, index: int) -> tuple[Part, int]:
        """The part that a sample belongs to, and its place there."""
        for part in self.parts:
            if index < len(part.samples):
                return part, index
            index -= len(part.samples)
        raise IndexError(index)

    def name(self, index: int) -> str:
        """What a sample is called."""
        part, place = self.part_of(index)
        return part.samples.samples.name(place)

    def rows(self) -> Iterator[dict[str, Any]]:
        """A line of the table per doubt, in plain values."""
        for doubt, near in zip(self.doubts, self.neighbours[:, 0].tolist(), strict=True):
            yield {
                "sample": self.name(doubt.index),
                "split": self.part_of(doubt.index)[0].split,
                "label": self.class_names[doubt.label],
                "suggested": self.class_names[doubt.suggested],
                "agreement": round(doubt.agreement, 4),
                "nearest": self.name(near),
            }

    def write_table(self, path: Path) -> None:
        """All of them as CSV."""
        text = io.StringIO(newline="")
        names = ("sample", "split", "label", "suggested", "agreement", "nearest")
        table = csv.DictWriter(text, names, lineterminator="\n")
        table.writeheader()
        table.writerows(self.rows())
        write_text(path, text.getvalue())

    def write_sheet(self, path: Path, *, title: str, most: int = _ROWS) -> None:
        """The first of them as an HTML page: each beside its neighbours and beside samples of its label.

        Args:
            path: An HTML file.
            title: Of the page.
            most: How many are shown; the table has all.
        """
        from nearkin.pictures.sheet import sheet  # noqa: PLC0415  (imports what draws)

        left = f" The first {most:,} of {len(self):,} are shown." if len(self) > most else ""
        note = (
            "No nearest neighbour has the label of the framed sample. Beside it are its nearest neighbours, "
            f"and then the nearest samples of its own label.{left}"
        )
        rows = (
            (self._heading(doubt), self._cells(number)) for number, doubt in enumerate(self.doubts[:most])
        )
        write_text(path, sheet(title, rows, note=note, resolution=_THUMBNAIL))

    def _heading(self, doubt: LabelDoubt) -> str:
        said, suggested = self.class_names[doubt.label], self.class_names[doubt.suggested]
        return f"says {said}, looks like {suggested} ({doubt.agreement:.0%} of its neighbours)"

    def _cells(self, number: int) -> list[Cell]:
        doubt = self.doubts[number]
        near = self.neighbours[number, :_SHOWN].tolist()
        split = self.part_of(doubt.index)[0].split
        return [
            self._cell(doubt.index, f"{self.class_names[doubt.label]} ({split})", first=True),
            *(self._cell(one, f"near: {self.class_names[int(self.labels[one])]}") for one in near),
            *(self._cell(one, f"same label: {self.class_names[doubt.label]}") for one in self._same(doubt)),
        ]

    def _cell(self, index: int, words: str, *, first: bool = False) -> Cell:
        from PIL import Image  # noqa: PLC0415

        from nearkin.pictures.samples import portrait  # noqa: PLC0415
        from nearkin.pictures.sheet import Cell  # noqa: PLC0415

        part, place = self.part_of(index)
        try:
            seen = portrait(part.samples, place)
        except (OSError, ValueError):  # the file is gone, or no image any more
            return Cell("cannot be read", words, self.name(index), first)
        shown = seen.text if seen.pixels is None else Image.fromarray(seen.pixels)
        return Cell(shown, words, self.name(index), first)

    def _same(self, doubt: LabelDoubt) -> list[int]:
        """The nearest samples of the label that a sample has."""
        others = (self.labels == doubt.label).nonzero().flatten()
        others = others[others != doubt.index]
        rows = torch.stack([self._embedding(int(one)) for one in others])
        closeness = normalize(rows, dim=1) @ normalize(self._embedding(doubt.index), dim=0)
        found: list[int] = others[closeness.argsort(descending=True)[:_SAME]].tolist()
        return found

    def _embedding(self, index: int) -> Tensor:
        part, place = self.part_of(index)
        return part.embeddings[place].float()


def doubtful_labels(parts: Sequence[Part], neighbours: int = _NEIGHBOURS) -> DoubtfulLabels:
    """Samples of all parts whose label none of their nearest neighbours, in any part, has.

    Classes of one name are one class. The only sample of its class is no doubt, and samples without a label
    neither are doubted nor asked.

    Args:
        parts: Samples and embeddings of one network, or of several side by side.
        neighbours: How many nearest neighbours are asked; all others where there are fewer.

    >>> from nearkin.data import Vectors
    >>> points = torch.tensor([[1.0, 0.0], [1.0, 0.1], [1.0, 0.2], [0.0, 1.0], [0.1, 1.0]])
    >>> samples = SampleSet(Vectors(points), ["gull", "gull", "wren", "wren", "wren"])
    >>> found = doubtful_labels([Part("train", samples, points)], neighbours=2)
    >>> [(row["sample"], row["label"], row["suggested"]) for row in found.rows()]
    [('row 2', 'wren', 'gull')]
    """
    parts = [_labelled(part) for part in parts]
    numbers: dict[str, int] = {}
    labels = []
    for part in parts:
        own = torch.tensor([numbers.setdefault(name, len(numbers)) for name in part.samples.class_names])
        labels.append(own[part.samples.labels])
    everything, embeddings = torch.cat(labels), torch.cat([part.embeddings for part in parts])
    _, found = nearest_neighbours(embeddings, min(neighbours, len(embeddings) - 1))
    doubts = label_doubts(found.cpu(), everything)
    rows = torch.tensor([doubt.index for doubt in doubts], dtype=torch.long)
    return DoubtfulLabels(doubts, found.cpu()[rows], tuple(numbers), everything, parts)


def _labelled(part: Part) -> Part:
    known = part.samples.is_labelled
    if bool(known.all()):
        return part
    return Part(part.split, part.samples.labelled_part(), part.embeddings[known])
