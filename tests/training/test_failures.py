"""What can go wrong outside of the mathematics: a clear line, and nothing lost."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import warnings
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from interruptions import Interruption, StopAfterEpoch
from running import execute, new_run, train_on
from torch.utils.data import dataloader

from nearkin.data import ImageArray, SampleSet
from nearkin.recipe import Recipe
from nearkin.recipe.objects import recipe_of
from nearkin.training import Observer, Run, RunError, TrainingError


@contextmanager
def files_of_at_most(size: int):
    """What a full disk does to large files: writing fails half-way."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class FillsTheDisk(Observer):
    """Leaves no room for a checkpoint after an epoch, for as long as it lives."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.full = files_of_at_most(20_000)

    def epoch_end(self, row: dict) -> None:
        if row["epoch"] == self.epoch:
            self.full.__enter__()

    def end(self) -> None:
        self.full.__exit__(None, None, None)


def test_a_full_disk_names_the_file_and_keeps_the_last_checkpoint(small_recipe, tmp_path):
    recipe = Recipe.parse(small_recipe | {"training": {"epochs": 4}})
    whole = new_run(tmp_path / "whole", recipe)
    execute(whole)
    run = new_run(tmp_path / "run", recipe)
    with pytest.raises(RunError, match=r"cannot write .*step-000000018.safetensors: .*the same command"):
        execute(run, FillsTheDisk(3))
    assert run.last_checkpoint().state["epoch"] == 2
    assert sorted(file.name for file in (run.path / "checkpoint").iterdir()) == [
        "step-000000006.safetensors",
        "step-000000012.safetensors",
    ]
    execute(run)
    assert run.result_file.read_text() == whole.result_file.read_text()


def test_a_full_disk_when_text_is_written(tmp_path):
    run = new_run(tmp_path / "run", Recipe.parse({}))
    run.begin()
    run.write_metrics([{"epoch": 0}])
    with (
        files_of_at_most(100),
        pytest.raises(RunError, match=r"cannot write .*metrics.jsonl: File too large"),
    ):
        run.write_metrics([{"epoch": epoch} for epoch in range(100)])
    assert run.metrics() == [{"epoch": 0}]


class KillsAReader(Observer):
    def step(self, *, epoch: int, batch: int, **_) -> None:
        if (epoch, batch) == (1, 2):
            for child in multiprocessing.active_children():
                os.kill(child.pid, signal.SIGKILL)


def runs_whose_reader_dies(folder: Path, values: dict) -> None:
    """For a process of its own: torch raises the death of a reader wherever the process happens to be."""
    whole = new_run(folder / "whole", Recipe.parse(values))
    execute(whole)
    run = new_run(folder / "run", Recipe.parse(values))
    with pytest.raises(TrainingError, match=r"epoch 2, batch \d: a process that reads samples died"):
        execute(run, KillsAReader())


def test_a_reader_that_dies(small_recipe, tmp_path):
    values = small_recipe | {"data": small_recipe["data"] | {"workers": 1}}
    program = (
        "import json, os, pathlib, sys; sys.path.append('../helpers'); "
        "from test_failures import runs_whose_reader_dies as f; "
        "f(pathlib.Path(sys.argv[1]), json.loads(sys.argv[2])); os._exit(0)"
    )
    command = [sys.executable, "-c", program, str(tmp_path), json.dumps(values)]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    run = new_run(tmp_path / "run", Recipe.parse(values))
    assert not run.finished
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking a process that may have threads
        execute(run)
    assert run.result_file.read_text() == Run.existing(tmp_path / "whole").result_file.read_text()


@pytest.mark.parametrize("error", [ConnectionResetError, EOFError])
def test_a_reader_that_dies_while_a_batch_is_fetched(error, small_recipe, tmp_path, monkeypatch):
    def broken(*_, **__):
        raise error

    monkeypatch.setattr(dataloader._SingleProcessDataLoaderIter, "_next_data", broken)
    run = new_run(tmp_path / "run", Recipe.parse(small_recipe))
    with pytest.raises(TrainingError, match="a process that reads samples died"):
        execute(run)


def test_a_connection_that_breaks_elsewhere_is_not_a_reader(small_recipe, tmp_path):
    class Offline(Observer):
        def step(self, **_) -> None:
            raise ConnectionResetError("the tracker")

    run = new_run(tmp_path / "run", Recipe.parse(small_recipe))
    with pytest.raises(ConnectionResetError, match="the tracker"):
        execute(run, Offline())


def images_of(classes: int) -> SampleSet:
    labels = torch.arange(classes).repeat_interleave(6)
    pixels = torch.randint(0, 255, (len(labels), 1, 16, 16), generator=torch.Generator().manual_seed(0))
    return SampleSet(ImageArray(pixels.to(torch.uint8)), labels)


@pytest.mark.parametrize("loss", ["proxy_anchor", "contrastive"])
def test_a_class_that_is_missing_when_the_run_goes_on(loss, small_recipe, tmp_path):
    values = small_recipe | {
        "loss": {"name": loss},
        "protocol": {"name": "standard"},
        "training": {"epochs": 3},
    }
    run = new_run(tmp_path / "run", Recipe.parse(values))
    with pytest.raises(Interruption):
        train_on(run, images_of(12), StopAfterEpoch(2))
    message = "the data has changed since this run began: 72 samples of 12 classes then, 66 of 11 now"
    with pytest.raises(RunError, match=message):
        train_on(run, images_of(11))
    assert train_on(run, images_of(12)).epoch == 3


def test_a_class_without_images():
    pixels = ImageArray(torch.zeros(2, 1, 8, 8, dtype=torch.uint8))
    with pytest.raises(ValueError, match="class 'wren' has no sample"):
        SampleSet(pixels, torch.tensor([0, 2]), ["gull", "wren", "tern"])


def test_classes_of_one_image_train(small_recipe, tmp_path):
    """They have no positives; the others do, and the loss goes on with those."""
    images = images_of(12)
    few = images.select([*range(36), 36, 42, 48, 54, 60, 66])
    values = small_recipe | {"loss": {"name": "multi_similarity"}, "sampler": {"batch_size": 10}}
    trained = train_on(new_run(tmp_path / "run", Recipe.parse(values)), few)
    assert trained.epoch == 2


def of_each(embeddings, labels):
    return embeddings.square().sum(1)


def test_a_loss_that_is_no_scalar_is_told_without_advice_for_other_failures(small_recipe, tmp_path):
    recipe = recipe_of(Recipe.parse(small_recipe), loss=of_each)
    with pytest.raises(
        TrainingError, match="of_each must give a scalar tensor, not a tensor of shape"
    ) as told:
        execute(new_run(tmp_path / "run", recipe))
    assert "optimizer.lr" not in str(told.value)
