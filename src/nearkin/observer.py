"""What a training tells whoever is watching."""

from __future__ import annotations

from typing import Any

from torch import Tensor


class Observer:
    """Hears what a run does; this one keeps silent. The command line's draws a progress display."""

    def begin(self, *, epochs: int, batches: int, epoch: int, batch: int) -> None:
        """Training is about to go on in ``epoch`` at ``batch``, each epoch having ``batches``."""

    def step(self, *, epoch: int, batch: int, images: int, loss: Tensor) -> None:
        """A batch of so many samples is done; ``loss`` is still on its device."""

    def epoch_end(self, row: dict[str, Any]) -> None:
        """An epoch is scored; ``row`` is its line in ``metrics.jsonl``."""

    def warning(self, text: str) -> None:
        """Something goes wrong, and there is something to try; said once, in a line."""

    def tell(self, text: str) -> None:
        """Something worth knowing before it begins, such as what was chosen; a line."""

    def note(self, text: str) -> None:
        """Something to know about the data, such as how many files are not read; said once, in a line."""

    def stage(self, what: str) -> None:
        """Something that takes a while begins; it ends the stage before it."""

    def progress(self, done: int, total: int) -> None:
        """So much of the present stage is done: samples, mostly."""

    def end(self) -> None:
        """Training is over, or broke off."""


class PassingOn(Observer):
    """Passes everything on to another observer; whoever listens to one thing overrides that."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer

    def begin(self, *, epochs: int, batches: int, epoch: int, batch: int) -> None:
        """Pass on."""
        self.observer.begin(epochs=epochs, batches=batches, epoch=epoch, batch=batch)

    def step(self, *, epoch: int, batch: int, images: int, loss: Tensor) -> None:
        """Pass on."""
        self.observer.step(epoch=epoch, batch=batch, images=images, loss=loss)

    def epoch_end(self, row: dict[str, Any]) -> None:
        """Pass on."""
        self.observer.epoch_end(row)

    def warning(self, text: str) -> None:
        """Pass on."""
        self.observer.warning(text)

    def tell(self, text: str) -> None:
        """Pass on."""
        self.observer.tell(text)

    def note(self, text: str) -> None:
        """Pass on."""
        self.observer.note(text)

    def stage(self, what: str) -> None:
        """Pass on."""
        self.observer.stage(what)

    def progress(self, done: int, total: int) -> None:
        """Pass on."""
        self.observer.progress(done, total)

    def end(self) -> None:
        """Pass on."""
        self.observer.end()
