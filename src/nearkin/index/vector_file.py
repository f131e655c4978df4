"""Rows of numbers in a file that only grows: what is counted elsewhere is there, the rest is nobody's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


class VectorFile:
    """Rows of one length and type, one after the other, without a header.

    How many rows count is written elsewhere, after the rows: whoever is killed in between leaves bytes behind
    the last row that counts, and the next writer overwrites them.

    Args:
        path: The file; made when the first row is written.
        columns: Numbers in a row.
        dtype: Their type, little-endian.
    """

    def __init__(self, path: Path, columns: int, dtype: type[np.generic]) -> None:
        self.path = path
        self.columns = columns
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self._mapped: NDArray[Any] = np.empty((0, columns), dtype=dtype)

    def write(self, first: int, rows: NDArray[Any]) -> None:
        """Write rows to their place, and to the disk, before it returns."""
        data = np.ascontiguousarray(rows, dtype=self.dtype).tobytes()
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            offset = first * self.columns * self.dtype.itemsize
            view = memoryview(data)
            while view:
                written = os.pwrite(handle, view, offset)
                view, offset = view[written:], offset + written
            os.fsync(handle)
        finally:
            os.close(handle)

    def read(self, count: int) -> NDArray[Any]:
        """The first ``count`` rows, mapped into memory: nothing is read before it is needed.

        Raises:
            FileNotFoundError: There is no file.
            ValueError: The file has fewer rows: it is damaged.
        """
        if count == 0:
            return self._mapped[:0]
        if len(self._mapped) < count:
            there = self.path.stat().st_size // (self.columns * self.dtype.itemsize)
            if there < count:
                raise ValueError(
                    f"{self.path} is damaged: it holds {there:,} vectors, and {count:,} were added; build "
                    "the index again"
                )
            # Copy on write: what a caller changes by mistake never reaches the file.
            mapped = np.memmap(self.path, self.dtype, mode="c", shape=(count, self.columns))
            self._mapped = np.asarray(mapped)
        return self._mapped[:count]
