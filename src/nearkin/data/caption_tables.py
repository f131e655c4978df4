"""Your own images and texts: a CSV file of pairs that belong together, such as photos and their captions."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from nearkin.data.decoding import ImageFiles
from nearkin.data.registry import registry
from nearkin.data.samples import DataSet, SampleSet
from nearkin.data.table_rows import read_columns, read_rows
from nearkin.data.tables import SPLITS
from nearkin.data.texts import Texts
from nearkin.data.two_modalities import TwoModalities, note_of, paired, split_pairs_of_modalities

COLUMNS = ("image", "text")
_OPTIONAL = ("label", "split")


def lists_captions(path: str | os.PathLike[str]) -> bool:
    """Whether a table's first line has the columns of images and their texts."""
    return set(read_columns(path)) >= set(COLUMNS)


@registry.register("captions")
def caption_table(
    root: str | os.PathLike[str] | None = None,
    *,
    images_root: str | os.PathLike[str] | None = None,
    test_fraction: float = 0.5,
    seed: int = 0,
) -> DataSet:
    """Images and texts that belong together, listed in a CSV file: captions, descriptions, names.

    Columns: ``image`` (a path) and ``text``; an image may stand in several lines, and so may a text.
    Optionally ``label``: then every text of a class belongs to every image of it; without it, what is joined
    by lines belongs together. Optionally ``split`` (``train``, ``validation`` or ``test``); nothing that
    belongs together may be in two. Without it, a share of the classes is held out for the test.

    Args:
        root: The CSV file.
        images_root: What its paths are relative to; by default the file's folder.
        test_fraction: Share of the classes to hold out where there is no column ``split``.
        seed: Draws these classes.
    """
    if root is None:
        raise ValueError("captions needs root=…, a file with the columns image and text")
    path = Path(root)
    rows = _rows(path)
    images = ImageFiles([row["image"] for row in rows], path.parent if images_root is None else images_root)
    pairs = TwoModalities(images, Texts([row["text"] for row in rows]), names=COLUMNS)
    try:
        whole = paired(pairs, [row["label"] for row in rows] if "label" in rows[0] else None)
        if "split" not in rows[0]:
            return split_pairs_of_modalities("captions", whole, test_fraction, seed)
        splits = {part: _part(whole, [row["split"] == part for row in rows]) for part in SPLITS}
        _refuse_shared(whole, [row["split"] for row in rows])
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    for part in ("train", "test"):
        if splits[part] is None:
            raise ValueError(f"{path}: no line has the split {part}")
    return DataSet("captions", **splits, notes=(note_of(whole),))  # type: ignore[arg-type]


def _part(whole: SampleSet, chosen: list[bool]) -> SampleSet | None:
    return whole.select(torch.tensor(chosen).nonzero().flatten()) if any(chosen) else None


def _refuse_shared(whole: SampleSet, splits: list[str]) -> None:
    """Say what is in two splits: pairs of one class, or that an image or a text joins."""
    first: dict[int, int] = {}
    for row, (label, split) in enumerate(zip(whole.labels.tolist(), splits, strict=True)):
        before = first.setdefault(label, row)
        if splits[before] != split:
            raise ValueError(
                f"{whole.samples.name(row)!r} belongs together with {whole.samples.name(before)!r}, and they "
                f"are in the splits {split} and {splits[before]}: put both into one"
            )


def _rows(path: Path) -> list[dict[str, str]]:
    """Every line by its columns, none of them empty."""
    if not path.is_file():
        raise FileNotFoundError(f"captions: there is no file {path}")
    found = read_rows(path)
    columns, table = found.columns, found.rows
    missing = [column for column in COLUMNS if column not in columns]
    if missing:
        raise ValueError(f"{path}: no column {' and no column '.join(missing)} in its first line")
    if not table:
        raise ValueError(f"{path}: no lines below its first")
    kept = [column for column in (*COLUMNS, *_OPTIONAL) if column in columns]
    rows = []
    for line, row in table:
        if None in row or None in row.values():
            raise ValueError(f"{path}, line {line}: not as many fields as the first line has")
        said = {column: row[column] for column in kept}
        for column, value in said.items():
            if not value:
                raise ValueError(f"{path}, line {line}: the {column} is empty")
        if said.get("split", "train") not in SPLITS:
            raise ValueError(
                f"{path}, line {line}: split is {said['split']!r}, not one of {', '.join(SPLITS)}"
            )
        rows.append(said)
    return rows
