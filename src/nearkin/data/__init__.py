"""Images with labels, in splits whose classes never meet."""

from __future__ import annotations

import os
from typing import Any

# One line per data set; each file registers what it defines.
from nearkin.data import glyphs as glyphs
from nearkin.data.images import DataSet, ImageArray, Images, ImageSet, split_classes
from nearkin.data.preprocessing import Preprocessing
from nearkin.data.registry import registry

__all__ = [
    "DataSet",
    "ImageArray",
    "ImageSet",
    "Images",
    "Preprocessing",
    "build",
    "names",
    "register",
    "split_classes",
]

register = registry.register
names = registry.names


def build(name: str, root: str | os.PathLike[str] | None = None, **keywords: Any) -> DataSet:
    """Open a data set.

    Args:
        name: One of :func:`names`.
        root: The folder that holds it; for ``glyphs``, where its renderings are kept (by default the
            user's cache folder).
        keywords: What the data set itself takes.
    """
    return registry.build(name, root=root, **keywords)
