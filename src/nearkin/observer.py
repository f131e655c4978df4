"""What a training tells whoever is watching."""

from __future__ import annotations

from typing import Any

from torch import Tensor


class Observer:
    """Hears what a run does; this one keeps silent. The command line's draws a progress display."""

    def begin(self, *, epochs: int, batches: int, epoch: int, batch: int) -> None:
        """Training is about to go on in ``epoch`` at ``batch``, each epoch having ``batches``."""

    def step(self, *, epoch: int, batch: int, images: int, loss: Tensor) -> None:
        """A batch of so many images is done; ``loss`` is still on its device."""

    def epoch_end(self, row: dict[str, Any]) -> None:
        """An epoch is scored; ``row`` is its line in ``metrics.jsonl``."""

    def warning(self, text: str) -> None:
        """Something goes wrong, and there is something to try; said once, in a line."""

    def stage(self, what: str) -> None:
        """Something that takes a while begins."""

    def end(self) -> None:
        """Training is over, or broke off."""
