"""Waiting for a server: longer and longer, and not for ever."""

from __future__ import annotations

import pytest

from nearkin.index.patience import FIRST, LONGEST, attempts


class Clock:
    def __init__(self) -> None:
        self.now, self.pauses = 0.0, []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.mark.parametrize("seconds", [0.0, 0.05, 1.0, 60.0])
def test_pauses_double_up_to_the_longest_and_end_in_time(seconds):
    clock = Clock()
    tried = list(attempts(seconds, clock=clock, sleep=clock.sleep))
    assert tried == list(range(len(clock.pauses) + 1))
    assert clock.now == pytest.approx(seconds)
    assert clock.pauses[:-1] == [min(FIRST * 2**n, LONGEST) for n in range(len(clock.pauses) - 1)]


def test_work_before_the_first_failure_does_not_count():
    clock = Clock()
    tried = attempts(1.0, clock=clock, sleep=clock.sleep)
    next(tried)
    clock.now = 1000.0
    assert len(list(tried)) > 2
