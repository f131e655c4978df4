"""Anybody's torch ``Dataset`` of ``(sample, label)`` as samples."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Subset

from nearkin.data.seeding import seeded_generators

Progress = Callable[[int, int], None]
"""Called with the number of samples done and the number of all."""


class DatasetSamples:
    """The samples of a map-style torch ``Dataset``, fetched one by one when they are asked for.

    Its items are pairs ``(sample, label)``, or mappings from which ``label`` and ``sample`` name entries. A
    sample may be anything: a tensor, a PIL image, a text, a mapping. Labels: :func:`dataset_labels`.

    Args:
        dataset: Anything with ``__len__`` and ``__getitem__``.
        sample: The entry of a mapping that is the sample; by default all but the label.
        label: The entry of a mapping that is the label.
        rows: Which items are samples, in which order; all of them by default.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        sample: str | None = None,
        label: str | None = None,
        rows: Sequence[int] | None = None,
    ) -> None:
        self.dataset = dataset
        self.sample = sample
        self.label = label
        self._rows = list(range(len(dataset))) if rows is None else list(rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Any:
        row = self._rows[index]
        return split_item(self.dataset[row], row, self.sample, self.label)[0]

    def select(self, indices: Sequence[int]) -> DatasetSamples:
        """The samples at ``indices``, in that order."""
        rows = [self._rows[index] for index in indices]
        return DatasetSamples(self.dataset, sample=self.sample, label=self.label, rows=rows)

    def name(self, index: int) -> str:
        """The position in the data set."""
        return f"item {self._rows[index]}"


def split_item(item: Any, row: int, sample: str | None, label: str | None) -> tuple[Any, Any]:
    """The sample and the label of one item of a data set."""
    if isinstance(item, Mapping):
        if label is None:
            raise ValueError(
                f"item {row} is a mapping with the keys {', '.join(map(str, item))}: say which is the label "
                'with nearkin.data.as_data_set(…, label="…")'
            )
        for key in (label, *([] if sample is None else [sample])):
            if key not in item:
                raise ValueError(f"item {row} has no {key!r}: its keys are {', '.join(map(str, item))}")
        rest = {key: value for key, value in item.items() if key != label}
        return rest if sample is None else item[sample], item[label]
    if not isinstance(item, tuple | list) or len(item) != 2:
        kind = f"{len(item)} values" if isinstance(item, tuple | list) else f"a {type(item).__name__}"
        raise ValueError(f"item {row} is {kind}, not a pair (sample, label)")
    return item[0], item[1]


def dataset_labels(
    dataset: Any, *, label: str | None = None, progress: Progress | None = None
) -> list[Hashable]:
    """The label of every item.

    They are taken from ``dataset.targets`` or ``dataset.labels`` where these have the right length and agree
    with the first, middle and last item; otherwise every item is fetched once.

    Args:
        dataset: A map-style data set.
        label: The entry that is the label, where items are mappings.
        progress: Called with the items done and the number of all.
    """
    if isinstance(dataset, Subset):
        of_all = dataset_labels(dataset.dataset, label=label, progress=progress)
        return [of_all[index] for index in dataset.indices]
    count = len(dataset)
    labels: list[Hashable] = []
    with seeded_generators() as seed:  # an item may be transformed at random, which must not show elsewhere
        seed(0)
        for attribute in ("targets", "labels"):
            listed = _listed(getattr(dataset, attribute, None), count)
            if listed is not None and all(
                _plain(split_item(dataset[row], row, None, label)[1], row) == listed[row]
                for row in sorted({0, count // 2, count - 1})
            ):
                return listed
        for row in range(count):
            labels.append(_plain(split_item(dataset[row], row, None, label)[1], row))
            if progress is not None:
                progress(row + 1, count)
    return labels


def _listed(values: Any, count: int) -> list[Hashable] | None:
    """A list of labels, if ``values`` can be one."""
    if isinstance(values, Tensor | np.ndarray):
        values = values.tolist() if values.ndim == 1 else None
    if not isinstance(values, list | tuple) or len(values) != count or count == 0:
        return None
    try:
        return [_plain(value, row) for row, value in enumerate(values)]
    except TypeError:
        return None


def _plain(label: Any, row: int) -> Hashable:
    """A label as a Python value: a tensor or an array of one number becomes that number."""
    if isinstance(label, Tensor | np.ndarray | np.generic):
        if label.size != 1 if not isinstance(label, Tensor) else label.numel() != 1:
            raise TypeError(
                f"the label of item {row} has the shape {tuple(label.shape)}: one value is needed"
            )
        return label.item()
    if not isinstance(label, Hashable) or isinstance(label, tuple):
        raise TypeError(f"the label of item {row} is a {type(label).__name__}: one value is needed")
    return label
