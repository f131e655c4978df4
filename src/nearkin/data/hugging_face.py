"""A Hugging Face ``datasets.Dataset`` as samples; the package itself is not needed."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

SAMPLE_COLUMNS = ("image", "img", "text", "sentence", "audio")
LABEL_COLUMNS = ("label", "labels", "fine_label")


class HuggingFaceSamples:
    """One column of a Hugging Face data set; a sample is what the column holds (a text, a PIL image, …).

    Args:
        dataset: A ``datasets.Dataset``.
        column: The column that holds the samples.
        rows: Which rows are samples, in which order; all of them by default.
    """

    def __init__(self, dataset: Any, column: str, rows: Sequence[int] | None = None) -> None:
        self.dataset = dataset
        self.column = column
        self._rows = list(range(len(dataset))) if rows is None else list(rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[self._rows[index]][self.column]

    def select(self, indices: Sequence[int]) -> HuggingFaceSamples:
        """The samples at ``indices``, in that order."""
        return HuggingFaceSamples(self.dataset, self.column, [self._rows[index] for index in indices])

    def name(self, index: int) -> str:
        """The row of the data set."""
        return f"row {self._rows[index]}"


def is_hugging_face(data: Any) -> bool:
    """Whether this looks like a ``datasets.Dataset`` or an ``IterableDataset`` of that package."""
    return hasattr(data, "column_names") and hasattr(data, "features")


def hugging_face_columns(dataset: Any, sample: str | None, label: str | None) -> tuple[str, str]:
    """The columns of samples and labels: the ones named, or the only ones of a usual name."""
    columns = list(dataset.column_names)
    return (
        _column(columns, sample, "sample", SAMPLE_COLUMNS),
        _column(columns, label, "label", LABEL_COLUMNS),
    )


def _column(columns: list[str], named: str | None, keyword: str, usual: Sequence[str]) -> str:
    listed = ", ".join(columns)
    if named is not None:
        if named not in columns:
            raise ValueError(f"{keyword}={named!r} is not a column: the data set has {listed}")
        return named
    found = [column for column in usual if column in columns]
    if len(found) != 1:
        raise ValueError(
            f'say which column holds the {keyword} with {keyword}="…": the data set has {listed}'
        )
    return found[0]


def hugging_face_labels(dataset: Any, column: str) -> list[Hashable]:
    """The labels of all rows, by name where the column is a ``ClassLabel``."""
    values = list(dataset[column])
    names = getattr(dataset.features[column], "names", None)
    if names is None:
        return values
    missing = [row for row, value in enumerate(values) if not 0 <= value < len(names)]
    if missing:
        raise ValueError(f"row {missing[0]} has no label: its {column} is {values[missing[0]]}")
    return [names[value] for value in values]
