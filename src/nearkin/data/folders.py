"""Your own images: one folder per class."""

from __future__ import annotations

import os
from itertools import combinations
from pathlib import Path

from nearkin.data.class_folders import MOST_OTHER_ENTRIES, SPLIT_FOLDERS, classes_of, some, walk
from nearkin.data.decoding import IMAGE_SUFFIXES
from nearkin.data.layout import Labelled, image_set
from nearkin.data.registry import registry
from nearkin.data.samples import DataSet, SampleSet, split_classes


@registry.register("folder")
def folder(
    root: str | os.PathLike[str] | None = None,
    *,
    test_fraction: float = 0.5,
    seed: int = 0,
    merge_splits: bool = False,
    most_other_entries: int = MOST_OTHER_ENTRIES,
) -> DataSet:
    """Images in one folder per class.

    With folders ``train`` and ``test`` (and ``validation`` or ``val``) in ``root``, each of these holds the
    class folders of its split, and no class may be in two of them. Without ``test``, a share of the
    classes is held out for the test. A class is a folder that directly holds images.

    Args:
        root: The folder.
        test_fraction: Share of the classes to hold out where there is no folder ``test``.
        seed: Draws these classes.
        merge_splits: Whether folders ``train``, ``validation`` and ``test`` are taken for one, as where they
            hold different images of the same classes; classes are then held out as if there were none.
        most_other_entries: After so many folders and files that are no images the search is given up, if
            they are the majority: the root is probably a wrong one.
    """
    if root is None:
        raise ValueError("folder needs root=…, a folder with one folder of images per class")
    root = Path(root)
    if not root.is_dir():
        raise FileNotFoundError(f"folder: {root} is not a folder")
    notes: list[str] = []
    places = _split_folders(root)
    merged = bool(places) and merge_splits
    splits = {
        split: _images(place, notes, most_other_entries, note_single=not merged)
        for split, place in places.items()
    }
    if merged:
        notes.append(f"{root.name}: {', '.join(place.name for place in places.values())} are taken for one")
        train, test = split_classes(_merged(root, places, splits), test_fraction, seed, what="test_fraction")
        return DataSet("folder", train, test, notes=tuple(notes))
    if places:
        _refuse_common_classes(root, places, splits)
    everything = splits.pop("train") if places else _images(root, notes, most_other_entries)
    if "test" in splits:
        return DataSet("folder", everything, **splits, notes=tuple(notes))
    train, test = split_classes(everything, test_fraction, seed, what="test_fraction")
    if places:
        notes.append(
            f"{root.name} has no folder test: {test.num_classes} of the {everything.num_classes} classes of "
            f"{places['train'].name} are held out for the test"
        )
    return DataSet("folder", train, test, splits.get("validation"), notes=tuple(notes))


def _split_folders(root: Path) -> dict[str, Path]:
    """The folder of each split, or none where ``root`` holds class folders."""
    found: dict[str, Path] = {}
    inside = sorted(entry for entry in root.iterdir() if entry.is_dir())
    for split, names in SPLIT_FOLDERS.items():
        called_so = [entry for entry in inside if entry.name.lower() in names]
        if len(called_so) > 1:
            both = " and ".join(entry.name for entry in called_so)
            raise ValueError(f"{root}: {both} are both folders of the {split} split: keep one of them")
        if called_so:
            found[split] = called_so[0]
    return found if "train" in found and len(found) > 1 else {}


def _refuse_common_classes(root: Path, places: dict[str, Path], splits: dict[str, SampleSet]) -> None:
    for one, other in combinations(splits, 2):
        common = sorted({*splits[one].class_names} & {*splits[other].class_names})
        if common:
            raise ValueError(
                f"{root}: {len(common)} classes are in {places[one].name} and in {places[other].name} "
                f"({some(common)}), but no class may be in two splits, since scores are for classes never "
                "seen in training: --set data.merge_splits=true takes these folders for one, with a folder "
                "per class, of which classes are held out, or images of every class with "
                "--set protocol.name=closed_set"
            )


def _merged(root: Path, places: dict[str, Path], splits: dict[str, SampleSet]) -> SampleSet:
    """The images of all splits, under their classes and their paths below the root."""
    lines = [
        Labelled(f"{places[split].name}/{found.samples.name(row)}", found.class_names[int(label)])
        for split, found in splits.items()
        for row, label in enumerate(found.labels)
    ]
    return image_set(lines, root)


def _images(root: Path, notes: list[str], most_other_entries: int, *, note_single: bool = True) -> SampleSet:
    found = walk(root, most_other_entries=most_other_entries)
    classes, about_classes = classes_of(found)
    empty = [name for name, paths in classes.items() if not paths]
    single = [name for name, paths in classes.items() if len(paths) == 1]
    about = [*about_classes, *found.notes()]
    if len(empty) == len(classes):
        raise ValueError(
            f"{root}: no folder in it has images ({', '.join(sorted(IMAGE_SUFFIXES))}); "
            "each class needs a folder of its own" + "".join(f"; {note}" for note in about)
        )
    if empty:
        about.append(f"classes left out because they have no image: {some(empty)}")
    if single and note_single:
        about.append(f"classes with only one image, which has no match: {some(single)}")
    notes.extend(f"{root.name}: {note}" for note in about)
    return image_set([Labelled(path, name) for name, paths in classes.items() for path in paths], root)
