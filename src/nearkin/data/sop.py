"""Stanford Online Products."""

from __future__ import annotations

import os
from pathlib import Path

from nearkin.data.layout import Labelled, locate, published_data_set
from nearkin.data.registry import registry
from nearkin.data.samples import DataSet

PUBLISHED = {"train": (59_551, 11_318), "test": (60_502, 11_316)}


@registry.register("sop")
def sop(root: str | os.PathLike[str] | None = None) -> DataSet:
    """Products from an auction site (Song et al. 2016, CVPR): 11,318 classes to train, 11,316 to test.

    Args:
        root: ``Stanford_Online_Products`` with ``Ebay_train.txt`` and ``Ebay_test.txt``, or the folder that
            holds it.
    """
    folder = locate(
        "sop",
        root,
        ["Stanford_Online_Products"],
        "Ebay_train.txt",
        "Nobody states a licence that would allow an automatic download: unpack Stanford_Online_Products.zip "
        "of the Stanford lifted-structure project there.",
    )
    train, test = (_lines(folder / f"Ebay_{half}.txt") for half in ("train", "test"))
    return published_data_set("sop", folder, train, test, PUBLISHED)


def _lines(path: Path) -> list[Labelled]:
    """Lines of image number, class number, number of the kind of product, and path, below a heading."""
    rows = [line.split() for line in path.read_text(encoding="utf-8").splitlines()[1:] if line.strip()]
    return [Labelled(image, f"{int(number):05d}") for _, number, _, image in rows]
