"""Samples that end the process that reads them, as a system without memory does: once, or always."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from nearkin.data import ImageArray


class DeadlySamples:
    """Images, one of which is deadly.

    Args:
        images: What they are.
        deadly: The place of the one, among all.
        survived: A file that is made by the first death, and then prevents others; none: it is always deadly.
        parent: A process that nothing happens to.
        pause: Seconds that every image takes.
    """

    def __init__(
        self,
        images: ImageArray,
        deadly: int,
        survived: Path | None = None,
        *,
        pause: float = 0.0,
        parent: int | None = None,
        places: Sequence[int] | None = None,
    ) -> None:
        self._images, self._deadly, self._survived, self._pause = images, deadly, survived, pause
        self._parent = parent or os.getpid()
        self._places = range(len(images)) if places is None else list(places)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(self._pause)
        place = self._places[index]
        if place == self._deadly and os.getpid() != self._parent and not self._is_survived():
            os.kill(os.getpid(), signal.SIGKILL)
        return self._images[place]

    def _is_survived(self) -> bool:
        if self._survived is None:
            return False
        there = self._survived.exists()
        self._survived.touch()
        return there

    def select(self, indices: Sequence[int]) -> DeadlySamples:
        return DeadlySamples(
            self._images,
            self._deadly,
            self._survived,
            pause=self._pause,
            parent=self._parent,
            places=[self._places[index] for index in indices],
        )

    def name(self, index: int) -> str:
        return str(self._places[index])


def deadly_images(count: int, deadly: int, survived: Path | None = None, pause: float = 0.0) -> DeadlySamples:
    pixels = torch.randint(
        0, 256, (count, 3, 20, 24), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    return DeadlySamples(ImageArray(pixels), deadly, survived, pause=pause)
