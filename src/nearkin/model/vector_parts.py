"""Vectors of samples by their content, in parts beside the file that they will make.

A part holds the vectors of one shard and is written whole. It says which content (a SHA-256) each vector is
of, and which files had which content when they were read, by their names, sizes and times of change: what was
embedded is never embedded again, under whatever name it comes back, and only what changed is read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from nearkin.model.model import Chunk
from nearkin.tensor_files import DamagedFileError, TensorFile, read_tensors, write_tensors


@dataclass(frozen=True)
class Shard:
    """Samples that are embedded together, each content once.

    Attributes:
        block: The samples among which these are new.
        rows: Which of the samples.
        contents: Hashes of their contents.
        seen: The contents of the whole block, by the names, sizes and times of change of files.
    """

    block: range
    rows: list[int]
    contents: list[str]
    seen: dict[str, str]


class Parts:
    """The parts in a folder; what is damaged, or of another model, is removed.

    Args:
        folder: Where they are.
        fingerprint: Of the model.

    Attributes:
        seen: Contents by the names, sizes and times of change of files.
        unreadable: The name of a file that could not be read and the reason, by its content.
    """

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self._folder, self._fingerprint = folder, fingerprint
        self.seen: dict[str, str] = {}
        self.unreadable: dict[str, tuple[str, str]] = {}
        self._places: dict[str, tuple[int, int]] = {}  # of a content: the part, the row there
        self._next = 0
        for file in sorted(folder.glob("part-*.safetensors")):
            part = _readable(file)
            if part is None or part.state.get("fingerprint") != fingerprint:
                file.unlink()
                continue
            number = int(file.stem.removeprefix("part-"))
            self._take_in(number, part)
            self._next = number + 1

    def contents(self) -> set[str]:
        """Of all that was embedded, or could not be read."""
        return self._places.keys() | self.unreadable.keys()

    def _file(self, number: int) -> Path:
        return self._folder / f"part-{number:06d}.safetensors"

    def _take_in(self, number: int, part: TensorFile) -> None:
        self.seen |= part.state["seen"]
        self.unreadable |= {content: (name, why) for content, name, why in part.state["unreadable"]}
        self._places |= {content: (number, row) for row, content in enumerate(part.state["contents"])}

    def add(self, shard: Shard, chunk: Chunk) -> None:
        """Write what became of a shard."""
        kept = set(chunk.indices)
        bad = [content for index, content in enumerate(shard.contents) if index not in kept]
        state = {
            "fingerprint": self._fingerprint,
            "contents": [shard.contents[index] for index in chunk.indices],
            "unreadable": [(content, *told) for content, told in zip(bad, chunk.skipped, strict=True)],
            "seen": shard.seen,
        }
        part = TensorFile({"vectors": chunk.embeddings}, state)
        write_tensors(self._file(self._next), part.tensors, part.state)
        self._take_in(self._next, part)
        self._next += 1

    def gather(self, contents: Sequence[str], into: np.ndarray) -> None:
        """Write the vectors of contents into the rows of an array; every part is read once.

        Raises:
            ValueError: A part was damaged meanwhile.
        """
        places = np.array([self._places[content] for content in contents], dtype=np.int64).reshape(-1, 2)
        order = np.argsort(places[:, 0], kind="stable")
        numbers, starts = np.unique(places[order, 0], return_index=True)
        for number, rows in zip(numbers.tolist(), np.split(order, starts[1:]), strict=True):
            part = _readable(self._file(number))
            if part is None:
                raise ValueError(f"{self._file(number)} is damaged: run the same command again")
            into[rows] = part.tensors["vectors"][torch.from_numpy(places[rows, 1])].numpy()


def _readable(file: Path) -> TensorFile | None:
    try:
        return read_tensors(file)
    except DamagedFileError:
        return None
