"""What somebody means by a word: a plan, a recipe, data to learn from, runs, or a table of results."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from nearkin import data as data_room
from nearkin.benchmark import plan as plans
from nearkin.benchmark.plan import Plan
from nearkin.data.decoding import IMAGE_SUFFIXES
from nearkin.recipe import read_toml
from nearkin.registry import nearest_name
from nearkin.tournament.tables import is_results_table

Meaning = Literal["plan", "recipe", "data", "runs", "results"]

_MOST_ENTRIES = 20_000  # looked at before a folder is said to hold neither runs nor images
_DEEPEST = 6
_TABLES = {".csv", ".tsv"}


def meaning_of(word: str | os.PathLike[str]) -> Meaning:
    """What a path or name stands for; a folder is looked into no further than it takes to tell.

    Raises:
        ValueError: It is nothing of the kind.
    """
    path, text = Path(word), os.fspath(word)
    if path.is_dir():
        return _meaning_of_folder(path)
    if path.suffix.lower() == ".toml":
        return "plan" if is_plan(path) else "recipe"
    if path.is_file() and path.suffix.lower() in _TABLES:
        return "results" if is_results_table(path) else "data"
    if text in plans.packaged_plans():
        return "plan"
    if text in data_room.names():
        return "data"
    if path.is_file():
        raise ValueError(f"{path} is neither a plan or recipe (.toml) nor a table (.csv)")
    hint = nearest_name(text, [*plans.packaged_plans(), *data_room.names()])
    raise ValueError(f"{path} is not a directory, a file, a plan or a data set: {hint}")


def is_plan(path: Path) -> bool:
    """Whether a TOML file is a plan: it has a key that only plans have."""
    values: dict[str, Any] = read_toml(path, kind="plan")
    return bool(values.keys() & (set(Plan.model_fields) - {"imports"}))


def _meaning_of_folder(folder: Path) -> Meaning:
    """The first run or image that is found decides, runs before images."""
    if folder.resolve() == folder.resolve().parent:
        raise ValueError(f"{folder} is the whole disk: give the folder of the runs or of the images")
    images = False
    try:
        for entry in islice(_entries(folder, _DEEPEST), _MOST_ENTRIES):
            if entry in {"recipe.toml", "result.json"}:
                return "runs"
            images = images or Path(entry).suffix.lower() in IMAGE_SUFFIXES
    except OSError as error:
        raise ValueError(f"cannot look into {folder}: {error.strerror or error}") from None
    if images:
        return "data"
    raise ValueError(
        f"{folder} holds neither finished runs nor images: there is no finished run to rank. Give a folder "
        "of runs, or one with a folder of images per class"
    )


def _entries(folder: Path, depth: int) -> Any:
    """The names of files, those of a folder before those below it; what cannot be read is passed over."""
    below = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    below.append(entry.path)
                else:
                    yield entry.name
    except PermissionError:
        return
    if depth:
        for one in sorted(below):
            yield from _entries(Path(one), depth - 1)
