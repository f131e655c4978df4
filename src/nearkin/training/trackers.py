"""TensorBoard and Weights & Biases as observers of a training; ``metrics.jsonl`` is written anyway."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from nearkin.observer import Observer
from nearkin.registry import Registry
from nearkin.training.run import Run, RunError

_LOSS_EVERY = 25  # batches between two values of the loss: reading one waits for the device


class Observers(Observer):
    """Several observers as one."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers

    def begin(self, **keywords: int) -> None:
        """Tell all."""
        self._tell(lambda one: one.begin(**keywords))

    def step(self, *, epoch: int, batch: int, images: int, loss: Tensor) -> None:
        """Tell all."""
        self._tell(lambda one: one.step(epoch=epoch, batch=batch, images=images, loss=loss))

    def epoch_end(self, row: dict[str, Any]) -> None:
        """Tell all."""
        self._tell(lambda one: one.epoch_end(row))

    def warning(self, text: str) -> None:
        """Tell all."""
        self._tell(lambda one: one.warning(text))

    def note(self, text: str) -> None:
        """Tell all."""
        self._tell(lambda one: one.note(text))

    def tell(self, text: str) -> None:
        """Tell all."""
        self._tell(lambda one: one.tell(text))

    def stage(self, what: str) -> None:
        """Tell all."""
        self._tell(lambda one: one.stage(what))

    def progress(self, done: int, total: int) -> None:
        """Tell all."""
        self._tell(lambda one: one.progress(done, total))

    def end(self) -> None:
        """Tell all."""
        self._tell(lambda one: one.end())

    def _tell(self, news: Callable[[Observer], None]) -> None:
        for one in self._observers:
            news(one)


class _Tracker(Observer):
    """Numbers over batches since the beginning; a subclass says where they go."""

    package: str

    def __init__(self, run: Run) -> None:
        self.run = run
        self._batches = 0
        self._untrained: dict[str, Any] | None = None

    def begin(self, *, epochs: int, batches: int, epoch: int, batch: int) -> None:
        """Open the books, at the place where the training goes on."""
        self._batches = batches
        self.open(epoch * batches + batch)
        if self._untrained is not None:
            self.epoch_end(self._untrained)

    def step(self, *, epoch: int, batch: int, images: int, loss: Tensor) -> None:
        """Note the loss now and then."""
        if batch % _LOSS_EVERY == 0:
            self.plot({"batch_loss": loss.item()}, epoch * self._batches + batch)

    def epoch_end(self, row: dict[str, Any]) -> None:
        """Note the epoch's scores; those of the untrained network come before the beginning."""
        if not self._batches:
            self._untrained = row
            return
        self.plot(dict(row), row["epoch"] * self._batches)

    def open(self, step: int) -> None:
        """Begin after ``step`` batches; what was noted later than that, before a kill, is void."""
        raise NotImplementedError

    def plot(self, numbers: dict[str, float], step: int) -> None:
        """Keep numbers of a moment."""
        raise NotImplementedError


class TensorBoard(_Tracker):
    """Event files in the run's folder ``tensorboard``."""

    package = "tensorboard"

    def open(self, step: int) -> None:
        """Write into a new event file."""
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  (only where it is installed)

        purge = step + 1 if step else None
        self._writer = SummaryWriter(str(self.run.path / "tensorboard"), purge_step=purge)

    def plot(self, numbers: dict[str, float], step: int) -> None:
        """A point on every curve."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def warning(self, text: str) -> None:
        """Shown under Text."""
        if self._batches:
            self._writer.add_text("warnings", text)

    def end(self) -> None:
        """Close the file."""
        if self._batches:
            self._writer.close()


class WeightsAndBiases(_Tracker):
    """A run of a W&B project, continued by the process that continues the training."""

    package = "wandb"

    def __init__(self, run: Run, *, project: str = "nearkin") -> None:
        super().__init__(run)
        self.project = project

    def open(self, step: int) -> None:
        """Begin or continue."""
        wandb: Any = importlib.import_module(self.package)
        what = f"{self.run.path.resolve()}\n{json.dumps(self.run.terms, sort_keys=True)}"
        self._wandb = wandb.init(
            project=self.project,
            name=self.run.path.name,
            id=hashlib.sha256(what.encode()).hexdigest()[:16],
            resume="allow",
            dir=str(self.run.path),
            config=self.run.terms,
        )

    def plot(self, numbers: dict[str, float], step: int) -> None:
        """A point on every curve."""
        self._wandb.log(numbers, step=step)

    def warning(self, text: str) -> None:
        """An alert, which may reach a telephone."""
        if self._batches:
            self._wandb.alert(title=f"nearkin: {self.run.path.name}", text=text)

    def end(self) -> None:
        """Close the books."""
        if self._batches:
            self._wandb.finish()


registry: Registry[_Tracker] = Registry("tracker")
register = registry.register
names = registry.names
registry.register("tensorboard")(TensorBoard)
registry.register("wandb")(WeightsAndBiases)


def require_tracker(maker: Any) -> None:
    """Refuse a tracker whose package is not installed, before anything runs.

    Raises:
        RunError: It is not; the message has the pip line.
    """
    package = getattr(maker, "package", None)
    if package is not None and importlib.util.find_spec(package) is None:
        raise RunError(
            f"training.trackers needs {package}, which is not installed: pip install {package}, or leave it "
            "out (metrics.jsonl is always written)"
        )
