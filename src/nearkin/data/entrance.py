"""Data given in Python: whatever it is, it becomes a :class:`DataSet` or is refused in a sentence."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from nearkin.data.caption_tables import caption_table, lists_captions
from nearkin.data.dataset_samples import DatasetSamples, Progress, dataset_labels
from nearkin.data.decoding import IMAGE_SUFFIXES, ImageFiles
from nearkin.data.folders import folder
from nearkin.data.hugging_face import (
    HuggingFaceSamples,
    hugging_face_columns,
    hugging_face_labels,
    is_hugging_face,
)
from nearkin.data.pair_tables import lists_pairs, pair_table
from nearkin.data.picture_list import Pictures
from nearkin.data.samples import DataSet, ImageArray, Samples, SampleSet, split_classes
from nearkin.data.seeding import refuse_wrong_seed
from nearkin.data.table_rows import TABLE_SUFFIXES
from nearkin.data.tables import table
from nearkin.data.texts import Texts
from nearkin.data.vectors import Vectors

SPLITS = ("train", "validation", "test", "query", "gallery")
_CHANNELS = (1, 3)
_WITHOUT_LABELS = (list, tuple, Tensor, np.ndarray, Texts, Vectors, Pictures, ImageArray, ImageFiles)


def as_data_set(
    data: Any,
    *,
    test_fraction: float = 0.5,
    seed: int = 0,
    label: str | None = None,
    sample: str | None = None,
    name: str | None = None,
    progress: Progress | None = None,
) -> DataSet:
    """Labelled samples in splits, from whatever holds them.

    Args:
        data: One of

            * a :class:`DataSet` (as it is) or a :class:`SampleSet`;
            * a pair ``(samples, labels)``; samples are texts, PIL images, paths of images, an array of images
              (``uint8``, ``(N, C, H, W)`` or ``(N, H, W, C)``), an array of vectors (floating point,
              ``(N, F)``) or the path of such an array (``.npy``), or any :class:`Samples`. A list of ``str``
              that all end as image files do is a list of paths;
            * a map-style torch ``Dataset`` of ``(sample, label)``;
            * a Hugging Face data set;
            * the path of a folder with one folder of images per class, or of a CSV file;
            * a mapping from ``"train"``, ``"test"`` and ``"validation"`` to any of these.
        test_fraction: Share of the classes to hold out for the test, where ``data`` brings no test split; 0
            for no test split (except of a path, whose classes are always split).
        seed: Draws these classes.
        label: The column or key that holds the label.
        sample: The column or key that holds the sample.
        name: What to call the data set; by default what it is.
        progress: Called with the items done and the number of all, where a ``Dataset`` is read for labels.

    >>> found = as_data_set((["a wren", "a gull", "wrens", "gulls"], ["wren", "gull"] * 2))
    >>> found.train, found.test
    (SampleSet(2 samples, 1 classes), SampleSet(2 samples, 1 classes))
    """
    if isinstance(data, DataSet):
        return data
    if not 0 <= test_fraction < 1:
        raise ValueError(f"test_fraction={test_fraction} must be 0 or lie between 0 and 1")
    refuse_wrong_seed(seed)
    if isinstance(data, str | os.PathLike):
        return _from_path(Path(data), test_fraction, seed)

    def read(part: Any) -> SampleSet:
        return _sample_set(part, label=label, sample=sample, progress=progress)

    splits = _splits(data, read) if isinstance(data, Mapping) else {"train": read(data)}
    if splits["train"].num_classes < 2:
        (only,) = splits["train"].class_names
        raise ValueError(
            f"all samples to learn from have the label {only!r}: at least two classes are needed"
        )
    if "test" not in splits and test_fraction > 0:
        splits["train"], splits["test"] = split_classes(
            splits["train"], test_fraction, seed, what="test_fraction"
        )
    return DataSet(name or type(splits["train"].samples).__name__, **splits)  # type: ignore[arg-type]


def _from_path(path: Path, test_fraction: float, seed: int) -> DataSet:
    if path.is_dir():
        return folder(path, test_fraction=test_fraction, seed=seed)
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no such file or folder")
    is_table = path.suffix.lower() in TABLE_SUFFIXES
    if is_table and lists_captions(path):
        return caption_table(path, test_fraction=test_fraction, seed=seed)
    if is_table and lists_pairs(path):
        return pair_table(path, seed=seed)
    if is_table:
        return table(path, test_fraction=test_fraction, seed=seed)
    raise ValueError(
        f"{path} is neither a folder with one folder of images per class nor a .csv file with the columns "
        "path and label, a and b, or image and text"
        + ("; vectors need labels: give the pair (path, labels)" if path.suffix == ".npy" else "")
    )


def _splits(data: Mapping[Any, Any], read: Callable[[Any], SampleSet]) -> dict[str, SampleSet]:
    unknown = [key for key in data if key not in SPLITS]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is not a split: the keys may be {', '.join(SPLITS)}")
    if data.get("train") is None:
        raise ValueError('a mapping of splits needs the key "train"')
    splits = {}
    for split, part in data.items():
        if part is None:
            continue
        try:
            splits[str(split)] = read(part)
        except (ValueError, TypeError) as error:
            raise type(error)(f"{split}: {error}") from error
    return splits


def _sample_set(data: Any, *, label: str | None, sample: str | None, progress: Progress | None) -> SampleSet:
    """Samples and labels from one thing that holds both."""
    found = _read_sample_set(data, label=label, sample=sample, progress=progress)
    if len(found) == 0:
        raise ValueError("there are no samples")
    return found


def _read_sample_set(
    data: Any, *, label: str | None, sample: str | None, progress: Progress | None
) -> SampleSet:
    if isinstance(data, SampleSet):
        return data
    if isinstance(data, tuple) and len(data) == 2:
        return _from_pair(*data)
    if isinstance(data, str | os.PathLike):
        raise TypeError(
            f"{data}: a split is not given by a path; give the folder above, which holds all of them"
        )
    if isinstance(data, DataLoader):
        raise TypeError("a DataLoader gives batches: give its .dataset instead")
    if isinstance(data, IterableDataset) or (is_hugging_face(data) and not hasattr(data, "__len__")):
        raise TypeError("an IterableDataset has no length and no order: a map-style Dataset is needed")
    if _is_data_frame(data):
        raise TypeError(
            "a DataFrame does not say which column is the sample: give the pair of both, "
            '(frame["text"], frame["label"])'
        )
    if is_hugging_face(data):
        sample, label = hugging_face_columns(data, sample, label)
        return SampleSet(HuggingFaceSamples(data, sample), hugging_face_labels(data, label))
    if isinstance(data, _WITHOUT_LABELS) or not _is_map_style(data):
        raise TypeError(
            f"a {type(data).__name__} without labels: give a pair (samples, labels), a torch Dataset of "
            "(sample, label), a Hugging Face data set, a folder or a CSV file"
        )
    if len(data) == 0:
        raise ValueError("there are no samples")
    labels = dataset_labels(data, label=label, progress=progress)
    return SampleSet(DatasetSamples(data, sample=sample, label=label), _named(labels, data))


def _is_data_frame(data: Any) -> bool:
    """Whether it is a table of pandas, which is not imported for this."""
    return hasattr(data, "iloc") and hasattr(data, "columns")


def _is_map_style(data: Any) -> bool:
    return hasattr(data, "__len__") and hasattr(data, "__getitem__") and not isinstance(data, str | bytes)


def _named(labels: list[Hashable], dataset: Any) -> list[Hashable]:
    """Labels by their names, where the data set lists those as torchvision's do (``.classes``)."""
    names = getattr(dataset, "classes", None)
    if not isinstance(names, list | tuple) or len(set(names)) != len(names):
        return labels
    numbers = [value for value in labels if isinstance(value, int) and 0 <= value < len(names)]
    if len(numbers) != len(labels) or not all(isinstance(name, str) for name in names):
        return labels
    return [names[number] for number in numbers]


def _from_pair(samples: Any, labels: Any) -> SampleSet:
    if isinstance(labels, Tensor | np.ndarray) and labels.ndim != 1:
        raise ValueError(f"labels must be one value per sample, not an array of shape {tuple(labels.shape)}")
    if labels is None or isinstance(labels, str) or not isinstance(labels, Iterable):
        raise TypeError(f"labels must be a list with one value per sample, not {labels!r}")
    return SampleSet(as_samples(samples), labels)


def as_samples(samples: Any) -> Samples:
    """Samples without labels, from a list, an array or a path of one; see :func:`as_data_set`."""
    if isinstance(samples, str | os.PathLike):
        if Path(samples).suffix.lower() != ".npy":
            raise ValueError(f"{samples}: samples in one file must be a .npy array")
        if not Path(samples).is_file():
            raise FileNotFoundError(f"{samples}: there is no such file")
        array = np.load(samples, mmap_mode="r", allow_pickle=False)
        return _from_array(array) if array.dtype == np.uint8 else Vectors(samples)
    if hasattr(samples, "iloc"):  # of pandas: a column of anything, or a table of numbers
        samples = samples.to_numpy() if _is_data_frame(samples) else samples.tolist()
    if isinstance(samples, Tensor):
        return _from_array(samples.detach().cpu().numpy() if samples.dtype == torch.uint8 else samples)
    if isinstance(samples, np.ndarray) and samples.dtype.kind not in "OUS":
        return _from_array(samples)
    if all(hasattr(samples, method) for method in ("select", "name", "__getitem__", "__len__")):
        return samples  # type: ignore[no-any-return]
    if isinstance(samples, list | tuple | np.ndarray):
        return _from_list(list(samples))
    raise TypeError(f"samples must be a list or an array, not a {type(samples).__name__}")


def _from_list(samples: list[Any]) -> Samples:
    if not samples:
        raise ValueError("there are no samples")
    for kind, make in _OF_LISTS:
        if all(isinstance(sample, kind) for sample in samples):
            return make(samples)
    kinds = sorted({type(sample).__name__ for sample in samples})
    raise TypeError(
        f"a list of {' and '.join(kinds)} is of no known kind (texts, paths, PIL images, or arrays of one "
        "shape): wrap it into a torch Dataset of (sample, label)"
    )


def _texts_or_paths(samples: list[str]) -> Samples:
    if all(Path(sample).suffix.lower() in IMAGE_SUFFIXES for sample in samples):
        return ImageFiles(samples)
    return Texts(samples)


def _stacked(samples: list[Tensor] | list[NDArray[Any]]) -> Samples:
    arrays = [np.asarray(sample) for sample in samples]
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise ValueError(
            f"arrays of {len(shapes)} different shapes: bring them to one, or wrap them into a torch Dataset"
        )
    return _from_array(np.stack(arrays))


_OF_LISTS: tuple[tuple[Any, Callable[[list[Any]], Samples]], ...] = (
    (str, _texts_or_paths),
    (os.PathLike, ImageFiles),
    (Image.Image, Pictures),
    ((Tensor, np.ndarray), _stacked),
)


def _from_array(array: Tensor | NDArray[Any]) -> Samples:
    """Images or vectors, by the type and number of axes."""
    if len(array) == 0:
        raise ValueError("there are no samples")
    if not isinstance(array, Tensor) and array.dtype == np.uint8 and array.ndim in (3, 4):
        if array.ndim == 3:
            array = array[:, None]
        if array.shape[1] not in _CHANNELS and array.shape[3] in _CHANNELS:
            array = array.transpose(0, 3, 1, 2)
        if array.shape[1] in _CHANNELS:
            return ImageArray(torch.from_numpy(np.array(array)))
    elif array.ndim == 2 and str(array.dtype).removeprefix("torch.").startswith(("float", "bfloat")):
        return Vectors(array)
    raise ValueError(
        f"an array of {array.dtype} {tuple(array.shape)} is neither images (uint8, (N, C, H, W) or "
        "(N, H, W, C) with 1 or 3 channels) nor vectors (floating point, (N, F))"
        + ("; give images as bytes from 0 to 255" if array.ndim in (3, 4) else "")
    )
