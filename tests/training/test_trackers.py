from __future__ import annotations

import sys
import types

import pytest
import torch
from interruptions import Interruption, StopAfterEpoch
from running import new_run, train_on

from nearkin.data import ImageArray, SampleSet
from nearkin.recipe import Recipe
from nearkin.training import Run, RunError


def images() -> SampleSet:
    pixels = torch.randint(0, 255, (40, 1, 8, 8), generator=torch.Generator().manual_seed(0))
    return SampleSet(ImageArray(pixels.to(torch.uint8)), torch.arange(40) % 4)


def run_with(path, *trackers: str) -> Run:
    values = {
        "network": {"name": "mlp", "size": 8, "hidden": [8], "embedding_dim": 4},
        "loss": {"name": "contrastive"},
        "sampler": {"batch_size": 10},
        "training": {"epochs": 3, "trackers": list(trackers)},
    }
    return new_run(path, Recipe.parse(values))


class FakeWandb(types.ModuleType):
    """Keeps what it is told, as Weights & Biases would."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.__spec__ = types.SimpleNamespace(name="wandb")
        self.begun: list[dict] = []
        self.logged: list[tuple[int, dict]] = []
        self.alerts: list[str] = []
        self.finished = 0

    def init(self, **keywords) -> FakeWandb:
        self.begun.append(keywords)
        return self

    def log(self, numbers: dict, *, step: int) -> None:
        self.logged.append((step, numbers))

    def alert(self, *, title: str, text: str) -> None:
        self.alerts.append(text)

    def finish(self) -> None:
        self.finished += 1


def test_weights_and_biases_hears_of_every_epoch_and_of_a_resumed_run(tmp_path, monkeypatch):
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    run = run_with(tmp_path / "run", "wandb")
    with pytest.raises(Interruption):
        train_on(run, images(), StopAfterEpoch(2))
    train_on(run, images())
    assert fake.finished == 2
    assert len({begun["id"] for begun in fake.begun}) == 1
    assert fake.begun[0]["config"] == run.terms
    steps = [step for step, numbers in fake.logged if "epoch" in numbers]
    assert steps == [0, 4, 8, 12]  # the second epoch's end broke the first attempt off before it was noted
    assert [numbers for _, numbers in fake.logged if "epoch" in numbers] == run.metrics()


def test_a_tracker_that_is_not_installed_is_said_before_training(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(RunError, match="wandb, which is not installed: pip install wandb"):
        train_on(run_with(tmp_path / "run", "wandb"), images())
    assert run_with(tmp_path / "run", "wandb").metrics() == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # tensorboard's own
def test_tensorboard_writes_curves(tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = run_with(tmp_path / "run", "tensorboard")
    train_on(run, images())
    written = events.EventAccumulator(str(run.path / "tensorboard"))
    written.Reload()
    points = written.Scalars("loss")
    assert [point.step for point in points] == [4, 8, 12]
    assert [point.value for point in points] == pytest.approx([row["loss"] for row in run.metrics()[1:]])
