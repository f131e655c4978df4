"""Samples with labels, in splits whose classes never meet."""

from __future__ import annotations

import os
from typing import Any

# One line per data set; each file registers what it defines.
from nearkin.data import caption_tables as caption_tables
from nearkin.data import cars196 as cars196
from nearkin.data import cub200 as cub200
from nearkin.data import glyphs as glyphs
from nearkin.data import identities as identities
from nearkin.data import image_and_text as image_and_text
from nearkin.data import inshop as inshop
from nearkin.data import multi_scale as multi_scale
from nearkin.data import pair_tables as pair_tables
from nearkin.data import shapes as shapes
from nearkin.data import sop as sop
from nearkin.data import textures as textures
from nearkin.data import transforms as transforms
from nearkin.data.as_is import AsIs
from nearkin.data.checking import BadImage, check_images, leave_out
from nearkin.data.dataset_samples import DatasetSamples
from nearkin.data.decoding import BrokenImageError, ImageFiles, read_image
from nearkin.data.entrance import as_data_set, as_samples
from nearkin.data.folders import folder
from nearkin.data.hugging_face import HuggingFaceSamples
from nearkin.data.joining import join
from nearkin.data.known_pairs import KnownPairs
from nearkin.data.loading import Batch, Loader, loader
from nearkin.data.nested import len_of, move, split
from nearkin.data.numbered_names import NumberedNames
from nearkin.data.pair_sets import pairs
from nearkin.data.per_sample import PerSample
from nearkin.data.picture_list import Pictures
from nearkin.data.preprocessing import Preprocessing
from nearkin.data.registry import registry
from nearkin.data.remembered_checks import bad_images
from nearkin.data.resized_copies import resized_copy
from nearkin.data.sample_hashes import fingerprint
from nearkin.data.samples import (
    UNKNOWN,
    DataSet,
    ImageArray,
    Samples,
    SampleSet,
    common_labels,
    split_classes,
)
from nearkin.data.shown import shown
from nearkin.data.tables import table
from nearkin.data.texts import Texts
from nearkin.data.transforms import SCHEMES, Transform, evaluation_transform, training_transform
from nearkin.data.two_modalities import EachModality, TwoModalities, modalities
from nearkin.data.vectors import Vectors

__all__ = [
    "SCHEMES",
    "UNKNOWN",
    "AsIs",
    "BadImage",
    "Batch",
    "BrokenImageError",
    "DataSet",
    "DatasetSamples",
    "EachModality",
    "HuggingFaceSamples",
    "ImageArray",
    "ImageFiles",
    "KnownPairs",
    "Loader",
    "NumberedNames",
    "PerSample",
    "Pictures",
    "Preprocessing",
    "SampleSet",
    "Samples",
    "Texts",
    "Transform",
    "TwoModalities",
    "Vectors",
    "as_data_set",
    "as_samples",
    "bad_images",
    "build",
    "check_images",
    "common_labels",
    "evaluation_transform",
    "fingerprint",
    "folder",
    "join",
    "leave_out",
    "len_of",
    "loader",
    "modalities",
    "move",
    "names",
    "pairs",
    "read_image",
    "register",
    "resized_copy",
    "shown",
    "split",
    "split_classes",
    "table",
    "training_transform",
    "transforms",
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
