"""Your own pairs: a CSV file that says of pairs whether they are the same, or lists matches or triplets."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from nearkin.data.decoding import IMAGE_SUFFIXES, ImageFiles
from nearkin.data.known_pairs import Others
from nearkin.data.pair_sets import (
    TEST,
    VALIDATION,
    known_pairs,
    of_parts,
    of_triplets,
    once_each,
    sample_set,
    split_pairs,
)
from nearkin.data.registry import registry
from nearkin.data.samples import DataSet, Samples, SampleSet
from nearkin.data.table_rows import read_columns, read_rows
from nearkin.data.tables import SPLITS
from nearkin.data.texts import Texts

PAIR, TRIPLET = ("a", "b"), ("anchor", "positive", "negative")
_ANSWERS = {
    **dict.fromkeys(("1", "true", "yes", "same"), True),
    **dict.fromkeys(("0", "false", "no", "different"), False),
}


def lists_pairs(path: str | os.PathLike[str]) -> bool:
    """Whether a table's first line has columns of pairs or triplets, and not those of images with labels."""
    columns = set(read_columns(path))
    return bool(columns & {*PAIR, *TRIPLET}) and not columns & {"path", "label"}


@registry.register("pairs")
def pair_table(
    root: str | os.PathLike[str] | None = None,
    *,
    images_root: str | os.PathLike[str] | None = None,
    others: Others | None = None,
    transitive: bool = True,
    test_fraction: float = TEST,
    validation_fraction: float = VALIDATION,
    seed: int = 0,
) -> DataSet:
    """Pairs of images (or texts) listed in a CSV file: the same, or different.

    Columns: ``a``, ``b`` and ``same`` (1 or 0); without ``same``, all pairs match. Or ``anchor``,
    ``positive`` and ``negative``: the first two are the same, the first and the last differ. Optionally
    ``split`` (``train``, ``validation`` or ``test``) of every line; no sample may be in two. Without it,
    samples are held out at random, and pairs across the splits are left out. Samples that all end as image
    files do are paths, others are texts.

    Args:
        root: The CSV file.
        images_root: What its paths are relative to; by default the file's folder.
        others: What is taken of pairs that are not listed: ``unknown``, or ``different``. Must be said where
            no pair is listed as different.
        transitive: Whether what matches the same sample matches each other.
        test_fraction: Share of the samples to hold out for the test where there is no column ``split``.
        validation_fraction: Share that chooses the epoch and the threshold.
        seed: Draws them.
    """
    if root is None:
        raise ValueError("pairs needs root=…, a file with the columns a, b and same")
    path = Path(root)
    try:
        names, rows, same, lines, split_of = _read(path)
        samples: Samples = Texts(names)
        if all(Path(name).suffix.lower() in IMAGE_SUFFIXES for name in names):
            samples = ImageFiles(names, path.parent if images_root is None else images_root)
        kept, answers, repeated = once_each(rows, same, names.__getitem__, lines)
        known = known_pairs(len(names), kept, answers, others, transitive=transitive, name=names.__getitem__)
        notes = [f"{repeated:,} lines repeat a pair of an earlier line, and are read once"] * bool(repeated)
        whole = sample_set(samples, known)
        if split_of is not None:
            return of_parts("pairs", whole, _said_parts(whole, rows, lines, split_of), notes)
        return split_pairs(
            "pairs", whole, test=test_fraction, validation=validation_fraction, seed=seed, notes=notes
        )
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _read(path: Path) -> tuple[list[str], Tensor, Tensor, list[int], list[str] | None]:
    """Samples, pairs of their positions, answers, the line of each, and the split of each if there is one."""
    if not path.is_file():
        raise FileNotFoundError(f"pairs: there is no file {path}")
    found = read_rows(path)
    columns, table = found.columns, found.rows
    ends = _ends(columns)
    if not table:
        raise ValueError("no lines below its first")
    places: dict[str, int] = {}
    listed, same, lines, splits = [], [], [], []
    for line, row in table:
        named = [(row[column] or "").strip() for column in ends]
        if None in row or not all(named):
            raise ValueError(f"line {line}: the fields {', '.join(ends)} must all be there, and no more")
        listed.append([places.setdefault(name, len(places)) for name in named])
        same.append(_answer(row["same"], line) if "same" in columns else True)
        lines.append(line)
        splits.append(_split(row["split"], line) if "split" in columns else "")
    rows, answers = torch.tensor(listed), torch.tensor(same)
    if len(ends) == len(TRIPLET):
        rows, answers = of_triplets(rows)
        lines = [line for line in lines for _ in PAIR]
        splits = [split for split in splits for _ in PAIR]
    return list(places), rows, answers, lines, splits if "split" in columns else None


def _ends(columns: tuple[str, ...]) -> tuple[str, ...]:
    ends = TRIPLET if set(columns) & set(TRIPLET) else PAIR
    missing = [column for column in ends if column not in columns]
    if missing:
        raise ValueError(
            f"no column {' and no column '.join(missing)} in its first line: pairs have the columns a, b and "
            "same, triplets anchor, positive and negative"
        )
    return ends


def _answer(value: str | None, line: int) -> bool:
    answer = _ANSWERS.get((value or "").strip().lower())
    if answer is None:
        raise ValueError(f"line {line}: same is {value!r}, and must be 1 or 0")
    return answer


def _split(value: str | None, line: int) -> str:
    if value not in SPLITS:
        raise ValueError(f"line {line}: split is {value!r}, not one of {', '.join(SPLITS)}")
    return value


def _said_parts(whole: SampleSet, rows: Tensor, lines: list[int], splits: list[str]) -> dict[str, Tensor]:
    """Which samples each split has, by the lines that name them.

    Raises:
        ValueError: A sample is in two.
    """
    home: dict[int, tuple[str, int]] = {}
    for pair, line, split in zip(rows.tolist(), lines, splits, strict=True):
        for row in pair:
            first, before = home.setdefault(row, (split, line))
            if first != split:
                raise ValueError(
                    f"{whole.samples.name(row)} is in {first} (line {before}) and in {split} (line {line}), "
                    "and a sample may be in one split only"
                )
    return {
        part: torch.tensor([home[row][0] == part for row in range(len(whole))])
        for part in ("test", "validation", "train")
    }
