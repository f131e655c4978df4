"""Samples with labels, in splits whose classes never meet."""

from __future__ import annotations

import os
from typing import Any

# One line per data set; each file registers what it defines.
from nearkin.data import cars196 as cars196
from nearkin.data import cub200 as cub200
from nearkin.data import folder as folder
from nearkin.data import glyphs as glyphs
from nearkin.data import inshop as inshop
from nearkin.data import sop as sop
from nearkin.data import table as table
from nearkin.data.checking import BadImage, check_images, leave_out
from nearkin.data.decoding import BrokenImageError, ImageFiles, read_image
from nearkin.data.file_hashes import fingerprint
from nearkin.data.joining import join
from nearkin.data.loading import Batch, Loader, loader
from nearkin.data.preprocessing import Preprocessing
from nearkin.data.registry import registry
from nearkin.data.remembered_checks import bad_images
from nearkin.data.resized_copies import resized_copy
from nearkin.data.samples import DataSet, ImageArray, Samples, SampleSet, common_labels, split_classes
from nearkin.data.transforms import SCHEMES, Transform, evaluation_transform, training_transform

__all__ = [
    "SCHEMES",
    "BadImage",
    "Batch",
    "BrokenImageError",
    "DataSet",
    "ImageArray",
    "ImageFiles",
    "Loader",
    "Preprocessing",
    "SampleSet",
    "Samples",
    "Transform",
    "bad_images",
    "build",
    "check_images",
    "common_labels",
    "evaluation_transform",
    "fingerprint",
    "join",
    "leave_out",
    "loader",
    "names",
    "read_image",
    "register",
    "resized_copy",
    "split_classes",
    "training_transform",
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
