"""A training that fits into so many minutes on this machine: its speed is measured first."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from nearkin.data import SampleSet
from nearkin.data.transforms import Transform
from nearkin.networks import EmbeddingNetwork, freeze_batch_norm
from nearkin.networks.anatomy import Anatomy, make_backbone
from nearkin.observer import Observer
from nearkin.recipe.recipe import Recipe
from nearkin.training.mixed_precision import autocast

_BATCH = 24
_ROUNDS = 2
_READ = 16  # images, spread over all of them
_USED = 0.85  # of the minutes: scoring, pictures and what nobody measured take the rest
_MIRRORED = 2  # views of a training image in the cache, before any crops
_DISK = 0.5  # of what is free, for the cache
_MOST_EPOCHS = 40
USUAL_SHARE = 0.4  # of the multiplications that are trained where nobody says how many minutes there are


@dataclass(frozen=True)
class Speed:
    """Seconds per image.

    Attributes:
        trunk: To compute what the trunk makes of an image.
        step: To train on it once.
        score: To embed it for a score.
        read: To read it from disk and cut a view out of it.
    """

    trunk: float
    step: float
    score: float
    read: float = 0.0


@dataclass(frozen=True)
class Rung:
    """How much of a network may be trained, and what that must be worth.

    Attributes:
        share: Of the network's multiplications that are trained, at most.
        crops: Random crops of every image that are cached beside the image and its mirror image.
        fewest: Epochs that must fit; otherwise the next rung is tried.
        lr: The learning rate for it.
    """

    share: float
    crops: int
    fewest: int
    lr: float


# The largest first. The learning rates are from two trials on CUB's training classes, scored on some that
# were held out: eight epochs after blocks.4 at 2e-4 (Recall@1 89.0, MAP@R 47.4), and six after blocks.3 with
# crops at 1e-4 (88.6, 47.4, still rising). All else, crops after blocks.4 included, was not tried.
LADDER = (
    Rung(1.0, 0, 12, 1e-4),  # the whole network sees new crops all the time, and needs none that are cached
    Rung(0.7, 4, 8, 1e-4),
    Rung(0.7, 0, 12, 1e-4),
    Rung(0.6, 4, 8, 1e-4),
    Rung(0.6, 0, 10, 1e-4),
    Rung(USUAL_SHARE, 4, 8, 2e-4),
    Rung(USUAL_SHARE, 2, 6, 2e-4),
    Rung(USUAL_SHARE, 0, 4, 2e-4),
    Rung(0.15, 0, 3, 2e-4),
)


@dataclass(frozen=True)
class Budgeted:
    """What fits.

    Attributes:
        trunk: The stage after which the network is trained; ``None`` for all of it.
        epochs: How many.
        seconds: How long all of it takes, by the measured speed.
        crops: How many random crops of every image are cached.
        lr: The learning rate that suits so much of the network; ``None`` where the stage was said.
    """

    trunk: str | None
    epochs: int
    seconds: float
    crops: int = 0
    lr: float | None = None


@dataclass(frozen=True)
class Amounts:
    """How many images there are.

    Attributes:
        train: To learn from.
        validation: That select.
        test: That test.
        again: Of a second training on all classes, as long as the first chose: at most as long.
        runs: Trainings that share the minutes, and what the trunk makes of the images.
    """

    train: int
    validation: int = 0
    test: int = 0
    again: int = 0
    runs: int = 1

    @property
    def cached(self) -> int:
        """Images that are kept in several views."""
        return max(self.again, self.train + self.validation)

    def seconds_before(self, speed: Speed, stage: str | None, crops: int) -> float:
        """To fill the cache: mirroring needs no second reading, another crop does."""
        if stage is None:
            return 0.0
        views = speed.trunk * (_MIRRORED + crops) + speed.read * (1 + crops)
        return views * self.cached + (speed.trunk + speed.read) * self.test

    def seconds_of_epoch(self, speed: Speed, stage: str | None) -> float:
        """Without a trunk, images are read anew all the time."""
        read = speed.read if stage is None else 0.0
        return (speed.step + read) * (self.train + self.again) + (speed.score + read) * self.validation

    def seconds_of_scoring(self, speed: Speed) -> float:
        """What is left to do after the last epoch."""
        return speed.score * (self.train + self.test)

    def bytes_on_disk(self, numbers: int, crops: int) -> int:
        """What the cache takes: two bytes a number, for every view.

        >>> Amounts(train=8, validation=2, test=5).bytes_on_disk(100, crops=4)
        13000
        """
        return 2 * numbers * (self.cached * (_MIRRORED + crops) + self.test)


def fit_budget(
    minutes: float,
    anatomy: Anatomy,
    speed_after: Callable[[str | None], Speed],
    amounts: Amounts,
    *,
    trunk: str | bool | None = True,
    crops: int | None = 0,
    free_bytes: int | None = None,
) -> Budgeted:
    """The largest part of a network, the cached crops and the epochs that fit into the minutes.

    Args:
        minutes: The budget.
        anatomy: Of the network.
        speed_after: Measures the speed behind a stage, or (``None``) of the whole network.
        amounts: How many images there are, and how many trainings.
        trunk: The stage, where a recipe says one; ``None`` for the whole network, ``True`` to choose.
        crops: How many are cached, where a recipe says it; ``None`` to choose.
        free_bytes: On the disk that the cache is for; half of them may be taken.

    >>> parts = Anatomy(8, True, True, 32, {"a": 0.7, "b": 0.3})
    >>> fit_budget(1, parts, lambda stage: Speed(0, 0.01, 0), Amounts(train=500))
    Budgeted(trunk='b', epochs=10, seconds=50.0, crops=0, lr=0.0002)
    """
    speeds: dict[str | None, Speed] = {}
    best: Budgeted | None = None
    for rung, stage in _places(anatomy, trunk, crops):
        own = rung.crops if stage is not None else 0
        size = amounts.bytes_on_disk(anatomy.numbers.get(stage or "", 0), own)
        if own and crops is None and free_bytes is not None and size > _DISK * free_bytes:
            continue
        if stage not in speeds:
            speeds[stage] = speed_after(stage)
        epochs, seconds = _fitting_epochs(60 * minutes * _USED, amounts, speeds[stage], stage, own)
        best = Budgeted(stage, max(epochs, 1), seconds, own, rung.lr if trunk is True else None)
        if epochs >= rung.fewest:
            break
    assert best is not None  # the last rung has no crops
    return best


def _fitting_epochs(
    seconds: float, amounts: Amounts, speed: Speed, stage: str | None, crops: int
) -> tuple[int, float]:
    """How many epochs fit, and how long all of it takes with them, or with one."""
    before = amounts.seconds_before(speed, stage, crops)
    scoring, epoch = amounts.seconds_of_scoring(speed), amounts.seconds_of_epoch(speed, stage)
    epochs = min(int(((seconds - before) / amounts.runs - scoring) / max(epoch, 1e-9)), _MOST_EPOCHS)
    return epochs, before + amounts.runs * (scoring + max(epochs, 1) * epoch)


def _places(anatomy: Anatomy, trunk: str | bool | None, crops: int | None) -> list[tuple[Rung, str | None]]:
    """Rungs with the stage of this network that each is for; of those that come to the same, the last."""
    rungs = [*LADDER, Rung(0.0, 0, 1, LADDER[-1].lr)]
    if trunk is not True:  # what is trained was said, and any epoch is better than none
        cached = [rung for rung in rungs if rung.share == USUAL_SHARE and trunk is not None]
        rungs = [*cached, rungs[-1]]
    found: dict[tuple[str | None, int], tuple[Rung, str | None]] = {}
    for rung in rungs:
        chosen = None if rung.share == 1.0 else anatomy.trunk(rung.share)
        stage = chosen if isinstance(trunk, bool) else trunk
        own = rung if crops is None else replace(rung, crops=crops)
        found[stage, 0 if stage is None else own.crops] = own, stage
    return list(found.values())


def seconds_to_read(samples: SampleSet, transform: Transform) -> float:
    """Seconds to read an image and cut a view out of it, by a few of them.

    Args:
        samples: Images.
        transform: Makes the view.
    """
    rows = list(range(0, len(samples), -(-len(samples) // _READ)))
    transform(samples.samples, rows[:1], [0])
    began = time.perf_counter()
    for row in rows:
        transform(samples.samples, [row], [row])
    return (time.perf_counter() - began) / len(rows)


def measured_speed(recipe: Recipe, stage: str | None, observer: Observer) -> Speed:
    """Seconds per image on this machine, by a few batches through a network of this shape."""
    observer.stage(f"measuring this machine's speed {'' if stage is None else f'after {stage}'}".rstrip())
    with torch.random.fork_rng(devices=[]):
        backbone = make_backbone(recipe.network.name, **recipe.network.keywords)
        network = EmbeddingNetwork(backbone, embedding_dim=recipe.network.embedding_dim or 64)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if recipe.network.freeze_batch_norm:
        freeze_batch_norm(network)
    network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    size, channels = backbone.preprocessing.size, backbone.preprocessing.channels
    images = torch.rand(_BATCH, channels, size, size, device=device)
    images = images.contiguous(memory_format=torch.channels_last)
    trunk, rest = (None, network) if stage is None else network.split(stage)
    inputs = images if trunk is None else trunk(images)
    first = 0.0 if trunk is None else _seconds(lambda: trunk(images), device)

    def step() -> None:
        with autocast(recipe.training.precision, device):
            rows = rest.train()(inputs)
        rows.float().square().mean().backward()

    def score() -> None:
        with torch.inference_mode():
            rest.eval()(inputs)

    return Speed(first / _BATCH, _seconds(step, device) / _BATCH, _seconds(score, device) / _BATCH)


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """The shorter of a few rounds, after one that warms up."""
    work()
    found = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        found.append(time.perf_counter() - began)
    return min(found)
