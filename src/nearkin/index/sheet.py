"""A contact sheet of what a search found."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from torch import Tensor

from nearkin.data import read_image
from nearkin.data.decoding import BrokenImageError
from nearkin.index.items import Item
from nearkin.pictures.sheet import Cell
from nearkin.pictures.sheet import sheet as page


def sheet(title: str, rows: Iterable[tuple[str, Sequence[tuple[Item | Path, str]]]]) -> str:
    """An HTML page with a row of thumbnails per heading.

    Args:
        title: Of the page.
        rows: A heading, and items (or files) with what is written below each.
    """
    return page(
        title,
        ((heading, [Cell(_seen(one), words, one.name) for one, words in cells]) for heading, cells in rows),
    )


def _seen(item: Item | Path) -> Tensor | str:
    path = item.path if isinstance(item, Item) else item
    if path is None:
        return "no image"
    try:
        return read_image(path)
    except (BrokenImageError, OSError):
        return "the file is gone"
