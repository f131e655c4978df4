"""Caltech-UCSD Birds-200-2011."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

from nearkin.data.downloading import Progress, download
from nearkin.data.layout import Labelled, locate, published_data_set
from nearkin.data.registry import registry
from nearkin.data.samples import DataSet

ARCHIVE = "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz"
ARCHIVE_MD5 = "97eceeb196236b17998738112f37df78"
PUBLISHED = {"train": (5_864, 100), "test": (5_924, 100)}


@registry.register("cub200")
def cub200(root: str | os.PathLike[str] | None = None, *, download: bool = False) -> DataSet:
    """Birds (Wah et al. 2011, technical report CNS-TR-2011-001): classes 1–100 to train, 101–200 to test.

    Args:
        root: ``CUB_200_2011`` with its ``images.txt``, or the folder that holds it.
        download: Fetch the 1.1 GB archive from CaltechDATA into ``root`` if it is not there. The images are
            for research and teaching, not for commerce.
    """
    if download:
        fetch(root)
    folder = locate(
        "cub200",
        root,
        ["CUB_200_2011"],
        "images.txt",
        f"Use download=True, or unpack {ARCHIVE} there.",
    )
    classes = _table(folder / "classes.txt")
    labels = _table(folder / "image_class_labels.txt")
    lines = {
        image: Labelled(f"images/{path}", classes[labels[image]])
        for image, path in _table(folder / "images.txt").items()
    }
    train = [line for image, line in lines.items() if int(labels[image]) <= 100]
    test = [line for image, line in lines.items() if int(labels[image]) > 100]
    return published_data_set("cub200", folder, train, test, PUBLISHED)


def _table(path: Path) -> dict[str, str]:
    """A file of lines with a number and what it stands for."""
    rows = (line.split(maxsplit=1) for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
    return {number: value.strip() for number, value in rows}


def fetch(
    root: str | os.PathLike[str] | None,
    *,
    url: str = ARCHIVE,
    md5: str = ARCHIVE_MD5,
    progress: Progress | None = None,
) -> None:
    """Download and unpack the archive below ``root``, unless it has been unpacked already."""
    if root is None:
        raise ValueError("cub200 needs root=…, the folder to download into")
    folder = Path(root)
    if any((place / "images.txt").exists() for place in (folder, folder / "CUB_200_2011")):
        return
    archive = download(url, folder / "CUB_200_2011.tgz", md5=md5, progress=progress)
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    archive.unlink()
