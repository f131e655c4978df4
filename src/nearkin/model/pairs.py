"""Many pairs at once: a table of two columns, each pair decided, and scored where the answers are known."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nearkin.atomic import atomic_path
from nearkin.data.known_pairs import joined
from nearkin.data.table_rows import TABLE_SUFFIXES, read_rows
from nearkin.evaluation import (
    Interval,
    Threshold,
    VerificationScores,
    rates_at_threshold,
    verification_intervals,
)
from nearkin.evaluation.verification import OperatingPoint, operating_points, scores_of_similarities
from nearkin.model.lfw import read_lfw_pairs
from nearkin.model.model import Model, Progress

_TRUE, _FALSE = frozenset({"1", "true", "yes", "same"}), frozenset({"0", "false", "no", "different"})
_FOLDS = 10
_PAIRS = 2**14  # whose embeddings are multiplied at a time


@dataclass(frozen=True)
class PairTable:
    """Pairs of samples.

    Attributes:
        a: One side of every pair, as it was written.
        b: The other side.
        same: Whether they are of one class, where that is known.
        root: What paths are relative to.
        folds: Into how many parts the pairs are divided to measure accuracy, where the file says so.
    """

    a: tuple[str, ...]
    b: tuple[str, ...]
    same: tuple[bool, ...] | None
    root: Path
    folds: int | None = None

    @classmethod
    def read(cls, path: str | os.PathLike[str], root: str | os.PathLike[str] | None = None) -> PairTable:
        """A CSV file with the columns ``a`` and ``b``, and where the answer is known ``same``.

        Any other file is read as a list of Labeled Faces in the Wild (``pairs.txt``): see
        :func:`nearkin.model.lfw.read_lfw_pairs`.

        Args:
            path: The file.
            root: What its paths are relative to; by default the file's folder.

        Raises:
            ValueError: A column or a field is missing, or an answer is neither true nor false.
        """
        file = Path(path)
        if not file.is_file():
            raise FileNotFoundError(f"there is no file {file}")
        folder = file.parent if root is None else Path(root)
        if file.suffix.lower() not in TABLE_SUFFIXES:
            found = read_lfw_pairs(file)
            return cls(found.a, found.b, found.same, folder, found.folds)
        return cls._of_csv(file, folder)

    @classmethod
    def _of_csv(cls, file: Path, root: Path) -> PairTable:
        found = read_rows(file)
        columns, rows = found.columns, found.rows
        missing = [column for column in ("a", "b") if column not in columns]
        if missing:
            raise ValueError(f"{file}: no column {' and no column '.join(missing)} in its first line")
        if not rows:
            raise ValueError(f"{file}: no lines below its first")
        for number, row in rows:
            if not (row["a"] or "").strip() or not (row["b"] or "").strip():
                raise ValueError(f"{file}, line {number}: a pair needs both a and b")
        same = None
        if "same" in columns:
            same = tuple(_truth(row["same"], file, number) for number, row in rows)
        return cls(tuple(row["a"] for _, row in rows), tuple(row["b"] for _, row in rows), same, root)


@dataclass(frozen=True)
class PairsReport:
    """What a model says about pairs, and how often it is right where the answers are known.

    Attributes:
        table: The pairs.
        similarity: ``(P,)`` cosines, float64.
        threshold: The model's; ``None`` where it has none.
        scores: Of the similarities against the known answers; ``None`` without answers, or with fewer than
            two of a kind.
        intervals: Error rates and accuracy at the model's threshold, ROC AUC, equal error rate and accuracy,
            each with its confidence interval over classes; samples that known answers join are one class.
        points: What other thresholds would do to these pairs, the strictest last. They are read off the pairs
            themselves, as the scores are; the model's own threshold has never seen them.
        note: Why there is no score or no interval, where there is none.
    """

    table: PairTable
    similarity: Tensor
    threshold: Threshold | None
    scores: VerificationScores | None = None
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    note: str = ""
    points: tuple[OperatingPoint, ...] = ()

    @property
    def same(self) -> tuple[bool, ...] | None:
        """The decisions; ``None`` where the model has no threshold."""
        if self.threshold is None:
            return None
        return tuple((self.similarity >= self.threshold.similarity).tolist())

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON, without the pairs."""
        return {
            "pairs": len(self.similarity),
            "same": None if self.same is None else sum(self.same),
            "threshold": None if self.threshold is None else self.threshold.to_dict(),
            "scores": None if self.scores is None else self.scores.to_dict(),
            "intervals": {name: interval.to_dict() for name, interval in self.intervals.items()},
            "points": [asdict(point) for point in self.points],
            "note": self.note,
        }

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write every pair with its similarity and decision as a CSV file."""
        decided = self.same
        names = ["a", "b", "similarity"]
        names += ["decision"] if decided is not None else []
        names += ["same"] if self.table.same is not None else []
        with atomic_path(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
            out = csv.writer(file)
            out.writerow(names)
            for i, (a, b) in enumerate(zip(self.table.a, self.table.b, strict=True)):
                row: list[Any] = [a, b, f"{float(self.similarity[i]):.6f}"]
                row += [int(decided[i])] if decided is not None else []
                row += [int(self.table.same[i])] if self.table.same is not None else []
                out.writerow(row)
        return Path(path)


def verify_pairs(
    model: Model,
    pairs: PairTable | str | os.PathLike[str],
    *,
    batch_size: int | None = None,
    progress: Progress | bool | None = None,
) -> PairsReport:
    """Decide many pairs; every sample is embedded once, however many pairs it is in.

    Args:
        model: With or without a threshold.
        pairs: A table, or the path of one; see :meth:`PairTable.read`.
        batch_size: As for :meth:`nearkin.Model.embed`.
        progress: As for :meth:`nearkin.Model.embed`.

    Raises:
        ValueError: The table or a sample cannot be read, or answers contradict each other.
    """
    table = pairs if isinstance(pairs, PairTable) else PairTable.read(pairs)
    places: dict[str, int] = {}
    for name in (*table.a, *table.b):
        places.setdefault(name, len(places))
    inputs: Sequence[Any] = list(places)
    if model.embedders[0].network.preprocessing is not None:
        inputs = [table.root / name for name in places]
    vectors = model.embed(inputs, batch_size=batch_size, progress=progress)
    first, second = (torch.tensor([places[name] for name in side]) for side in (table.a, table.b))
    some = zip(first.split(_PAIRS), second.split(_PAIRS), strict=True)
    similarity = torch.cat([(vectors[i] * vectors[j]).sum(dim=1).double() for i, j in some])
    if table.same is None:
        return PairsReport(table, similarity, model.threshold)
    classes = joined(len(places), torch.stack([first, second], dim=1)[torch.tensor(table.same)])
    return _scored(table, similarity, model.threshold, classes[first], classes[second])


def _scored(
    table: PairTable,
    similarity: Tensor,
    threshold: Threshold | None,
    first: Tensor,
    second: Tensor,
) -> PairsReport:
    same = torch.tensor(table.same)
    fewest = int(min(same.sum(), (~same).sum()))
    if fewest < 2:
        note = f"{int(same.sum())} true and {int((~same).sum())} false pairs are too few to score"
        return PairsReport(table, similarity, threshold, note=note)
    for number in ((first == second) & ~same).nonzero().flatten().tolist():
        raise ValueError(
            f"{table.a[number]} and {table.b[number]} are said to differ, but other pairs join them"
        )
    folds = min(table.folds or _FOLDS, fewest)
    scores = scores_of_similarities(similarity, same, folds=folds, per_pair=True)
    points = operating_points(similarity, same)
    try:
        intervals = verification_intervals(scores, first, second)
        if threshold is not None:
            intervals = rates_at_threshold(scores, first, second, threshold.similarity) | intervals
    except ValueError as error:  # too few classes
        note = f"no intervals: {error}"
        return PairsReport(table, similarity, threshold, scores, note=note, points=points)
    return PairsReport(table, similarity, threshold, scores, intervals, points=points)


def _truth(value: str | None, file: Path, number: int) -> bool:
    lowered = (value or "").strip().lower()
    if lowered not in _TRUE | _FALSE:
        raise ValueError(f"{file}, line {number}: same is {value!r}, and must be 1 or 0")
    return lowered in _TRUE
