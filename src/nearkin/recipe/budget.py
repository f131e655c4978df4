"""A training that fits into so many minutes on this machine: its speed is measured first."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from nearkin.networks import EmbeddingNetwork, freeze_batch_norm
from nearkin.networks.anatomy import Anatomy, make_backbone
from nearkin.networks.splitting import PooledTrunk
from nearkin.observer import Observer
from nearkin.recipe.recipe import Recipe

_BATCH = 24
_ROUNDS = 2
_USED = 0.85  # of the minutes: reading images, scoring and pictures take the rest
_MIRRORED = 2  # views of a training image in the cache
_MOST_EPOCHS = 40
# Shares of the network that may be trained, the largest first, and the epochs that each is worth having.
_SHARES = ((1.0, 12), (0.7, 12), (0.6, 10), (0.4, 4), (0.15, 3))


@dataclass(frozen=True)
class Speed:
    """Seconds per image.

    Attributes:
        trunk: To compute what the trunk makes of an image.
        step: To train on it once.
        score: To embed it for a score.
    """

    trunk: float
    step: float
    score: float


@dataclass(frozen=True)
class Budgeted:
    """What fits.

    Attributes:
        trunk: The stage after which the network is trained; ``None`` for all of it.
        epochs: How many.
        seconds: How long all of it takes, by the measured speed.
    """

    trunk: str | None
    epochs: int
    seconds: float


def fit_budget(
    minutes: float,
    anatomy: Anatomy,
    speed_after: Callable[[str | None], Speed],
    *,
    train: int,
    validation: int,
    test: int,
    again: int = 0,
    runs: int = 1,
    trunk: str | bool | None = True,
) -> Budgeted:
    """The largest part of a network, and the epochs, that fit into the minutes.

    Args:
        minutes: The budget.
        anatomy: Of the network.
        speed_after: Measures the speed behind a stage, or (``None``) of the whole network.
        train: Images to learn from.
        validation: Images that select.
        test: Images that test.
        again: Images of a second training on all classes, as long as the first chose: at most as long.
        runs: Trainings that share the minutes, and what the trunk makes of the images.
        trunk: The stage, where a recipe says one; ``None`` for the whole network, ``True`` to choose.

    >>> parts = Anatomy(8, True, True, 32, {"a": 0.7, "b": 0.3})
    >>> fit_budget(1, parts, lambda stage: Speed(0, 0.01, 0), train=500, validation=0, test=0)
    Budgeted(trunk='b', epochs=10, seconds=50.0)
    """
    seconds = 60 * minutes * _USED
    places = [(trunk, 1)] if trunk is not True else _places(anatomy)
    best: Budgeted | None = None
    for stage, worth in places:
        assert stage is None or isinstance(stage, str)
        speed = speed_after(stage)
        seen = _MIRRORED * max(again, train + validation)
        before = 0.0 if stage is None else speed.trunk * (seen + test)
        epoch = speed.step * (train + again) + speed.score * validation
        scoring = speed.score * (train + test)
        epochs = min(int(((seconds - before) / runs - scoring) / max(epoch, 1e-9)), _MOST_EPOCHS)
        best = Budgeted(stage, max(epochs, 1), before + runs * (scoring + max(epochs, 1) * epoch))
        if epochs >= worth:
            break
    assert best is not None
    return best


def _places(anatomy: Anatomy) -> list[tuple[str | None, int]]:
    found: dict[str | None, int] = {}
    for share, worth in _SHARES:
        stage = None if share == 1.0 else anatomy.trunk(share)
        found.setdefault(stage, worth)
    found.setdefault(PooledTrunk.stage, 1)
    return list(found.items())


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
        rest.train()(inputs).square().mean().backward()

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
