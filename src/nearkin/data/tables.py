"""Your own images: a table in a CSV file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from nearkin.data.class_folders import SPLIT_FOLDERS
from nearkin.data.layout import Labelled, image_set
from nearkin.data.registry import registry
from nearkin.data.samples import DataSet, split_classes
from nearkin.data.table_rows import read_rows

SPLITS = ("train", "validation", "test")
_SPLIT_CALLED = {name: split for split, names in SPLIT_FOLDERS.items() for name in names}
_TRUE, _FALSE = frozenset({"1", "true", "yes"}), frozenset({"0", "false", "no", ""})


@registry.register("csv")
def table(
    root: str | os.PathLike[str] | None = None,
    *,
    images_root: str | os.PathLike[str] | None = None,
    test_fraction: float = 0.5,
    seed: int = 0,
    path_column: str = "path",
    label_column: str = "label",
) -> DataSet:
    """Images listed in a CSV file with a heading.

    Fields are parted by commas, semicolons or tabs, whichever the heading has.

    Columns: ``path``, ``label``; optionally ``split`` (``train``, ``validation`` or ``test``), ``is_query``
    and ``is_gallery`` (true or false) for test images that only search or are only found, and ``camera``,
    the name or number of the camera: ``nearkin evaluate`` then scores re-identification, where an image of
    the same class and camera is no answer. Without a split, a share of the classes is held out for the test.

    Args:
        root: The CSV file.
        images_root: What its paths are relative to; by default the file's folder.
        test_fraction: Share of the classes to hold out where there is no column ``split``.
        seed: Draws these classes.
        path_column: The column of the paths, where it is called otherwise.
        label_column: The column of the labels, where it is called otherwise.
    """
    if root is None:
        raise ValueError("csv needs root=…, a file with the columns path and label")
    path = Path(root)
    images = path.parent if images_root is None else Path(images_root)
    rows = _rows(path, path_column, label_column)
    rows, notes = _without_repetitions(rows, path)
    camera_of = _cameras(rows, path)

    def labelled(row: dict[str, str]) -> Labelled:
        return Labelled(row["path"], row["label"], camera_of.get(row.get("camera", "").strip()))

    if "split" not in rows[0][1]:
        everything = image_set([labelled(row) for _, row in rows], images)
        train, test = split_classes(everything, test_fraction, seed, what="test_fraction")
        return DataSet("csv", train, test, notes=notes)
    lines: dict[str, list[Labelled]] = {part: [] for part in (*SPLITS, "query", "gallery")}
    for number, row in rows:
        split = _SPLIT_CALLED.get(row["split"].lower())
        if split is None:
            raise ValueError(
                f"{path}, line {number}: split is {row['split']!r}, not one of {', '.join(SPLITS)}"
            )
        lines[split].append(labelled(row))
        for role in ("query", "gallery"):
            if split == "test" and _is_true(row.get(f"is_{role}", ""), path, number):
                lines[role].append(labelled(row))
    for part in ("train", "test"):
        if not lines[part]:
            raise ValueError(f"{path}: no line has the split {part}")
    splits: dict[str, Any] = {part: image_set(members, images) for part, members in lines.items() if members}
    return DataSet("csv", **splits, notes=notes)


def _rows(path: Path, path_column: str, label_column: str) -> list[tuple[int, dict[str, str]]]:
    """Every row with the number of its line; path and label are called so, whatever the file calls them."""
    if not path.is_file():
        raise FileNotFoundError(f"csv: there is no file {path}")
    found = read_rows(path)
    called = {label_column.strip().lower(): "label", path_column.strip().lower(): "path"}
    missing = [column for column in called if column not in found.columns]
    if missing:
        there = ", ".join(column for column in found.columns if column) or "none"
        keys = " and ".join(f"data.{called[column]}_column" for column in missing)
        raise ValueError(
            f"{path}: no column {' and no column '.join(missing)} in its first line, whose columns are "
            f"{there}: rename them there, or say by {keys} how they are called. Images with labels have the "
            "columns path and label, pairs a, b and same, images with texts image and text"
        )
    others = {"path", "label"} - {*called}  # of another meaning here
    rows = [
        (number, {called.get(name, name): value for name, value in row.items() if name not in others})
        for number, row in found.rows
    ]
    for number, row in rows:
        if None in row or None in row.values():
            raise ValueError(f"{path}, line {number}: not as many fields as the first line has")
    for column in ("path", "label"):
        empty = [number for number, row in rows if not row[column].strip()]
        if empty:
            raise ValueError(
                f"{path}, line {empty[0]}: the {column} is empty{_and_so_on(len(empty) - 1, 'other line')}"
            )
    if not rows:
        raise ValueError(f"{path}: no lines below its first")
    return rows


def _without_repetitions(
    rows: list[tuple[int, dict[str, str]]], path: Path
) -> tuple[list[tuple[int, dict[str, str]]], tuple[str, ...]]:
    """Each image once, and a note on how many lines that leaves out.

    Raises:
        ValueError: An image has two labels, or is in two splits.
    """
    first: dict[str, tuple[int, dict[str, str]]] = {}
    contradictions: dict[str, str] = {}
    for number, row in rows:
        before, known = first.setdefault(row["path"], (number, row))
        differing = [column for column in row if row[column] != known[column]]
        if differing:
            column = "label" if "label" in differing else differing[0]
            said = f"the {column} {known[column]!r} in line {before} and {row[column]!r} in line {number}"
            contradictions.setdefault(row["path"], said)
    if contradictions:
        image, said = next(iter(contradictions.items()))
        more = _and_so_on(len(contradictions) - 1, "other image")
        raise ValueError(f"{path}: {image} has {said}{more}")
    repeated = len(rows) - len(first)
    note = f"{path.name}: {repeated:,} lines repeat an image of an earlier line, and are read once"
    return list(first.values()), (note,) if repeated else ()


def _cameras(rows: list[tuple[int, dict[str, str]]], path: Path) -> dict[str, int]:
    """The cameras of all splits, numbered by their names; none where there is no such column."""
    if "camera" not in rows[0][1]:
        return {}
    names = [row["camera"].strip() for _, row in rows]
    if "" in names:
        raise ValueError(f"{path}, line {rows[names.index('')][0]}: the camera is empty")
    return {name: number for number, name in enumerate(sorted(set(names)))}


def _and_so_on(others: int, what: str) -> str:
    """How often an error occurs elsewhere.

    >>> _and_so_on(0, "line"), _and_so_on(1, "line"), _and_so_on(2000, "line")
    ('', ', and likewise 1 line', ', and likewise 2,000 lines')
    """
    return f", and likewise {others:,} {what}{'s' if others > 1 else ''}" if others > 0 else ""


def _is_true(value: str, path: Path, number: int) -> bool:
    lowered = value.strip().lower()
    if lowered not in _TRUE | _FALSE:
        raise ValueError(f"{path}, line {number}: {value!r} is neither true nor false")
    return lowered in _TRUE
