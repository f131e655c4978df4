"""Your own images: one folder per class."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from nearkin.data.decoding import IMAGE_SUFFIXES
from nearkin.data.layout import Labelled, image_set
from nearkin.data.registry import registry
from nearkin.data.samples import DataSet, SampleSet, split_classes

SPLIT_FOLDERS = {"train": ("train",), "validation": ("validation", "val"), "test": ("test",)}


@registry.register("folder")
def folder(
    root: str | os.PathLike[str] | None = None, *, test_fraction: float = 0.5, seed: int = 0
) -> DataSet:
    """Images in one folder per class, at any depth below it.

    With folders ``train`` and ``test`` (and ``validation``) in ``root``, each of these holds the class
    folders of its split. Without them, a share of the classes is held out for the test.

    Args:
        root: The folder.
        test_fraction: Share of the classes to hold out where there are no folders ``train`` and ``test``.
        seed: Draws these classes.
    """
    if root is None:
        raise ValueError("folder needs root=…, a folder with one folder of images per class")
    root = Path(root)
    if not root.is_dir():
        raise FileNotFoundError(f"folder: {root} is not a folder")
    notes: list[str] = []
    if (root / "train").is_dir() and (root / "test").is_dir():
        splits = {
            split: _images(root / name, notes)
            for split, names in SPLIT_FOLDERS.items()
            for name in names
            if (root / name).is_dir()
        }
        return DataSet("folder", **splits, notes=tuple(notes))
    train, test = split_classes(_images(root, notes), test_fraction, seed)
    return DataSet("folder", train, test, notes=tuple(notes))


def _images(root: Path, notes: list[str]) -> SampleSet:
    found = class_folders(root)
    empty = [name for name, paths in found.items() if not paths]
    single = [name for name, paths in found.items() if len(paths) == 1]
    if len(empty) == len(found):
        raise ValueError(
            f"{root}: no folder in it has images ({', '.join(sorted(IMAGE_SUFFIXES))}); "
            "each class needs a folder of its own"
        )
    if empty:
        notes.append(f"{root.name}: classes left out because they have no image: {_some(empty)}")
    if single:
        notes.append(f"{root.name}: classes with only one image, which has no match: {_some(single)}")
    return image_set([Labelled(path, name) for name, paths in found.items() for path in paths], root)


def _some(names: list[str], shown: int = 5) -> str:
    return ", ".join(names[:shown]) + (f" and {len(names) - shown} more" if len(names) > shown else "")


def class_folders(root: Path) -> dict[str, list[str]]:
    """The folders in ``root``, sorted, each with the sorted paths (below ``root``) of its image files."""
    classes = sorted(
        entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith(".")
    )
    return {name: sorted(_image_files(root, name)) for name in classes}


def _image_files(root: Path, name: str) -> Iterator[str]:
    """Image files at any depth; links are followed, but into no folder twice."""
    seen: set[Path] = set()
    for directory, folders, files in os.walk(root / name, followlinks=True):
        real = Path(directory).resolve()
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(inner for inner in folders if not inner.startswith("."))
        for file in files:
            path = Path(directory, file)
            if path.suffix.lower() in IMAGE_SUFFIXES and not file.startswith("."):
                yield path.relative_to(root).as_posix()
