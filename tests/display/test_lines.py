from __future__ import annotations

import io
import subprocess
import sys

import pytest
import torch
from rich.console import Console

from nearkin.display.lines import LineDisplay

LOSS = torch.tensor(2.5)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def shown():
    """A display with its lines so far, and a clock."""
    out, err, clock = io.StringIO(), io.StringIO(), Clock()
    display = LineDisplay(Console(file=out), Console(file=err), clock)
    return display, lambda: out.getvalue().splitlines(), lambda: err.getvalue().splitlines(), clock


def test_a_stage_is_a_line_and_a_long_one_some_more(shown):
    display, lines, _, clock = shown
    display.stage("checking images")
    for done in range(1001):
        clock.now += 0.1  # 100 seconds in all
        display.progress(done, 1000)
    assert lines()[0] == "checking images"
    assert lines()[1] == "  checking images: 100 of 1,000 (10%), 1 min 30 s left"
    assert len(lines()) == 10
    assert "100%" not in lines()[-1]


def test_a_short_stage_is_one_line(shown):
    display, lines, _, clock = shown
    display.stage("checking images")
    for done in range(1001):
        clock.now += 0.001
        display.progress(done, 1000)
    assert lines() == ["checking images"]


def test_a_very_long_stage_talks_twice_a_minute(shown):
    display, lines, _, clock = shown
    display.stage("embedding the test classes")
    for done in range(600):  # ten minutes, a hundredth of all
        clock.now += 1
        display.progress(done, 60_000)
    assert len(lines()) == 1 + 20


def test_an_epoch_is_a_line_with_time_left(shown):
    display, lines, _, clock = shown
    display.epoch_end({"epoch": 0, "lr": 0.1, "recall_at_1": 0.25, "map_at_r": 0.125})
    display.begin(epochs=3, batches=10, epoch=0, batch=0)
    for batch in range(1, 11):
        clock.now += 2
        display.step(epoch=0, batch=batch, images=30, loss=LOSS)
    display.epoch_end({"epoch": 1, "lr": 0.1, "loss": 2.5, "recall_at_1": 0.5, "map_at_r": 0.25})
    assert lines() == [
        "epoch  0  untrained  Recall@1 25.00  MAP@R 12.50",
        "training: 3 epochs of 10 batches",
        "epoch  1/3  loss 2.5000  Recall@1 50.00  MAP@R 25.00  15 samples/s, 40 s left",
    ]


def test_a_long_epoch_talks_in_between(shown):
    display, lines, _, clock = shown
    display.begin(epochs=1, batches=100, epoch=0, batch=0)
    for batch in range(1, 51):
        clock.now += 10
        display.step(epoch=0, batch=batch, images=30, loss=LOSS)
    assert lines()[1] == "  epoch 1: batch 3 of 100, loss 2.5, 16 min left"
    assert len(lines()) == 1 + 16


def test_time_left_covers_all_folds(shown):
    display, lines, _, clock = shown
    for fold in (1, 2):
        display.stage(f"fold {fold} of 4")
        display.begin(epochs=1, batches=1, epoch=0, batch=0)
        clock.now += 60
        display.step(epoch=0, batch=1, images=30, loss=LOSS)
        display.epoch_end({"epoch": 1, "lr": 0.1, "loss": 2.5})
        display.end()
    assert "fold 2 of 4" in lines()
    assert lines()[2].endswith("3 min 00 s left")
    assert lines()[-1].endswith("2 min 00 s left")


def test_a_continued_training_says_where(shown):
    display, lines, _, _ = shown
    display.begin(epochs=5, batches=1200, epoch=3, batch=20)
    assert lines() == ["training: 5 epochs of 1,200 batches, going on after epoch 3, batch 20"]


def test_one_epoch_of_one_batch_is_told_as_one(shown):
    display, lines, _, _ = shown
    display.begin(epochs=1, batches=1, epoch=0, batch=0)
    assert lines() == ["training: 1 epoch of 1 batch"]


def test_warnings_do_not_disturb_the_result(shown):
    display, lines, warnings, _ = shown
    display.warning("the loss does not fall [at all]")
    assert lines() == []
    assert warnings() == ["warning: the loss does not fall [at all]"]


def test_lines_arrive_while_the_work_goes_on():
    code = (
        "import time; from nearkin.display import observer_for; "
        "observer_for(True).stage('opening data'); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "opening data\n"
        assert process.poll() is None
        process.kill()
