from __future__ import annotations

import pytest

from nearkin.display.pace import StagePace, TrainingPace


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def train(pace: TrainingPace, clock: Clock, *, epochs: int, batches: int, first: int = 0, seconds: float = 1):
    """Batches that take so many seconds each."""
    pace.begin(epochs=epochs, batches=batches, epoch=first, batch=0)
    for epoch in range(first, epochs):
        for batch in range(1, batches + 1):
            clock.now += seconds
            pace.step(epoch, batch, samples=10)


def test_time_left_is_that_of_the_batches_to_come(clock):
    pace = TrainingPace(clock)
    pace.begin(epochs=4, batches=5, epoch=0, batch=0)
    assert pace.left() is None
    for batch in range(1, 6):
        clock.now += 2
        pace.step(0, batch, samples=30)
    assert pace.left() == pytest.approx(15 * 2)
    assert pace.rate() == pytest.approx(15)
    assert pace.rate() is None


def test_what_was_done_in_an_earlier_process_took_no_time_in_this_one(clock):
    pace = TrainingPace(clock)
    pace.begin(epochs=10, batches=10, epoch=8, batch=0)
    clock.now += 3
    pace.step(8, 1, samples=1)
    assert pace.left() == pytest.approx(19 * 3)


def test_time_left_covers_all_folds(clock):
    pace = TrainingPace(clock)
    for fold in (1, 2):
        assert pace.enter_fold(f"fold {fold} of 10")
        train(pace, clock, epochs=2, batches=5)
    assert pace.total == 100
    assert pace.left() == pytest.approx(80)
    pace.enter_fold("fold 3 of 10")  # was trained as far as its second epoch before
    pace.begin(epochs=2, batches=5, epoch=1, batch=0)
    pace.step(1, 1, samples=10)
    assert pace.left() == pytest.approx((100 - 26) * 20 / 21)


def test_another_training_starts_afresh(clock):
    pace = TrainingPace(clock)
    train(pace, clock, epochs=2, batches=5, seconds=100)
    pace.begin(epochs=2, batches=5, epoch=0, batch=0)
    clock.now += 1
    pace.step(0, 1, samples=1)
    assert pace.left() == pytest.approx(9)


def test_a_stage_is_no_fold(clock):
    assert not TrainingPace(clock).enter_fold("checking images")


def test_a_stage_with_a_second_part_starts_afresh(clock):
    pace = StagePace(clock)
    assert pace.left(0, 100) is None
    clock.now += 10
    assert pace.left(20, 100) == pytest.approx(40)
    assert pace.left(0, 50) is None  # the gallery after the queries
    clock.now += 1
    assert pace.left(1, 50) == pytest.approx(49)
