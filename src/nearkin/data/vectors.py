"""Vectors as samples, in memory or in a ``.npy`` file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ROWS_AT_A_TIME = 65536


class Vectors:
    """Rows of an array ``(N, F)``; a sample is a float32 vector ``(F,)``.

    Args:
        array: A tensor or array of floating-point numbers, or the path of a ``.npy`` file, which is mapped
            into memory and read where it is needed; a worker process opens it again.
        rows: Which rows are samples, in which order; all of them by default.

    >>> Vectors(torch.eye(3))[1]
    tensor([0., 1., 0.])
    """

    def __init__(
        self,
        array: Tensor | NDArray[Any] | str | os.PathLike[str],
        rows: Sequence[int] | NDArray[np.int64] | None = None,
    ) -> None:
        self.path = Path(array).absolute() if isinstance(array, str | os.PathLike) else None
        self._array = _opened(self.path) if isinstance(array, str | os.PathLike) else _as_array(array)
        where = f"{self.path}: " if self.path else ""
        if self._array.ndim != 2 or not np.issubdtype(self._array.dtype, np.floating):
            raise ValueError(
                f"{where}vectors must be floating-point numbers (N, F), not {self._array.dtype} "
                f"{self._array.shape}"
            )
        if self._array.shape[1] == 0:
            raise ValueError(f"{where}vectors of no numbers: the array is {self._array.shape}")
        if rows is None:  # those that are chosen later come from an array that has been looked through
            self._refuse_what_is_not_finite(where)
            rows = np.arange(len(self._array))
        self._rows = np.asarray(rows, dtype=np.int64)

    def __getstate__(self) -> dict[str, Any]:
        """Without the bytes of a file: pickled, a memory map would become all of them."""
        return {
            key: value for key, value in vars(self).items() if key != "_array" or vars(self)["path"] is None
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if self.path is not None:
            self._array = _opened(self.path)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Tensor:
        return self.batch([index])[0]

    def batch(self, indices: Sequence[int]) -> Tensor:
        """The vectors at ``indices``, float32 ``(B, F)``."""
        return torch.from_numpy(self._array[self._rows[list(indices)]].astype(np.float32))

    def select(self, indices: Sequence[int]) -> Vectors:
        """The vectors at ``indices``, in that order."""
        chosen = Vectors.__new__(Vectors)
        vars(chosen).update(vars(self), _rows=self._rows[list(indices)])
        return chosen

    def name(self, index: int) -> str:
        """The row of the array."""
        return f"row {self._rows[index]}"

    def _refuse_what_is_not_finite(self, where: str) -> None:
        for start in range(0, len(self._array), _ROWS_AT_A_TIME):
            finite = np.isfinite(self._array[start : start + _ROWS_AT_A_TIME]).all(axis=1)
            if not finite.all():
                row = start + int(np.argmin(finite))
                raise ValueError(f"{where}vector {row} holds a number that is not finite (NaN or infinity)")


def _as_array(array: Tensor | NDArray[Any]) -> NDArray[Any]:
    if isinstance(array, Tensor):
        array = array.detach().cpu()
        return (array.float() if array.dtype == torch.bfloat16 else array).numpy()
    return np.asarray(array)


def _opened(path: str | os.PathLike[str] | None) -> NDArray[Any]:
    assert path is not None
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path} is not a .npy file of numbers: {error}") from None
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{path} holds several arrays: save one of them as .npy")
    return array
