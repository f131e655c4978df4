"""Stanford Cars 196."""

from __future__ import annotations

import os
from pathlib import Path

from scipy.io import loadmat

from nearkin.data.class_folders import classes_of, walk
from nearkin.data.layout import Labelled, locate, published_data_set
from nearkin.data.registry import registry
from nearkin.data.samples import DataSet

PUBLISHED = {"train": (8_054, 98), "test": (8_131, 98)}
HOW_TO_GET = (
    "Its licence and its host allow no automatic download: put car_ims/ (16,185 images) and cars_annos.mat "
    "of the Stanford Cars data set there, or one folder of images per class that sort by class number."
)


@registry.register("cars196")
def cars196(root: str | os.PathLike[str] | None = None) -> DataSet:
    """Cars (Krause et al. 2013, 3dRR workshop): the first 98 classes to train, the last 98 to test.

    The official split into training and test images is ignored, as in all of the literature.

    Args:
        root: A folder with ``cars_annos.mat`` and ``car_ims``, or with one folder per class.
    """
    if root is not None and not _annotations(Path(root)):
        return _from_class_folders(Path(root))
    folder = locate("cars196", root, ["cars196", "CARS196"], "cars_annos.mat", HOW_TO_GET)
    table = loadmat(folder / "cars_annos.mat", squeeze_me=True)
    names = [str(name) for name in table["class_names"]]
    annotations = table["annotations"]
    lines = [
        (int(number), Labelled(str(path), f"{int(number):03d} {names[int(number) - 1]}"))
        for path, number in zip(annotations["relative_im_path"], annotations["class"], strict=True)
    ]
    train = [line for number, line in lines if number <= 98]
    test = [line for number, line in lines if number > 98]
    return published_data_set("cars196", folder, train, test, PUBLISHED)


def _annotations(root: Path) -> bool:
    return any((place / "cars_annos.mat").exists() for place in (root, root / "cars196", root / "CARS196"))


def _from_class_folders(root: Path) -> DataSet:
    found = classes_of(walk(root))[0] if root.is_dir() else {}
    classes = sorted(found)
    if len(classes) != 196:
        raise FileNotFoundError(
            f"cars196: {root} has neither cars_annos.mat nor 196 class folders ({len(classes)} found). "
            + HOW_TO_GET
        )
    train, test = (
        [Labelled(path, name) for name in half for path in found[name]]
        for half in (classes[:98], classes[98:])
    )
    return published_data_set("cars196", root, train, test, PUBLISHED)
