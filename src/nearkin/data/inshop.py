"""DeepFashion In-Shop Clothes Retrieval."""

from __future__ import annotations

import os
from pathlib import Path

from nearkin.data.layout import Labelled, image_set, locate, notes_on_counts
from nearkin.data.registry import registry
from nearkin.data.samples import DataSet

PUBLISHED = {"train": (25_882, 3_997), "query": (14_218, 3_985), "gallery": (12_612, 3_985)}


@registry.register("inshop")
def inshop(root: str | os.PathLike[str] | None = None) -> DataSet:
    """Clothes (Liu et al. 2016, CVPR): 3,997 items to train; of 3,985 others, queries search a gallery.

    ``test`` is queries and gallery together.

    Args:
        root: The folder with ``list_eval_partition.txt`` (or ``Eval/list_eval_partition.txt``) and the
            images in ``img`` (or ``Img/img``).
    """
    folder = locate(
        "inshop",
        root,
        ["Eval", "In-shop Clothes Retrieval Benchmark", "In-shop Clothes Retrieval Benchmark/Eval"],
        "list_eval_partition.txt",
        "Its agreement must be signed, so there is no automatic download: ask the DeepFashion project of the "
        "Chinese University of Hong Kong for the In-shop benchmark and unpack it there.",
    )
    lines: dict[str, list[Labelled]] = {"train": [], "query": [], "gallery": []}
    heading = 2
    for row in (folder / "list_eval_partition.txt").read_text(encoding="utf-8").splitlines()[heading:]:
        if row.strip():
            image, item, part = row.split()
            lines[part].append(Labelled(image, item))
    images = _images_root(folder.parent if folder.name == "Eval" else folder)
    splits = {part: image_set(members, images) for part, members in lines.items()}
    test = image_set(lines["query"] + lines["gallery"], images)
    return DataSet("inshop", test=test, notes=notes_on_counts(splits, PUBLISHED), **splits)


def _images_root(folder: Path) -> Path:
    """Paths in the list start with ``img/``, which the archives unpack below ``Img`` or not."""
    return folder / "Img" if (folder / "Img" / "img").is_dir() else folder
