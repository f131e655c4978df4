"""Requests that come together are embedded together, and none pays for another's mistake."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError, wait

import pytest

from nearkin.serving.batching import Batcher
from nearkin.serving.errors import RequestError


class Slow:
    """Doubles numbers, when it is let; remembers what it was given together."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.go = threading.Event()
        self.busy = threading.Event()

    def __call__(self, numbers: list[int]) -> list[int]:
        self.batches.append(numbers)
        self.busy.set()
        assert self.go.wait(10)
        if 113 in numbers:
            raise ValueError("113")
        return [2 * number for number in numbers]


@pytest.fixture
def slow():
    work = Slow()
    yield work
    work.go.set()


def test_what_arrives_meanwhile_is_one_batch(slow):
    batcher = Batcher(slow, batch=100, waiting=100)
    first = batcher.submit(0)
    assert slow.busy.wait(10)
    others = [batcher.submit(number) for number in range(1, 20)]
    assert len(batcher) == 19
    slow.go.set()
    assert [future.result(10) for future in [first, *others]] == [2 * number for number in range(20)]
    assert slow.batches == [[0], list(range(1, 20))]
    batcher.close()


def test_batches_are_no_larger_than_allowed(slow):
    sizes = []
    batcher = Batcher(slow, batch=4, waiting=100, observe=sizes.append)
    futures = [batcher.submit(number) for number in range(10)]
    slow.go.set()
    wait(futures, 10)
    assert max(map(len, slow.batches)) <= 4
    assert sizes == [len(batch) for batch in slow.batches]
    batcher.close()


def test_one_more_than_may_wait_is_refused(slow):
    batcher = Batcher(slow, batch=4, waiting=3)
    batcher.submit(0)
    assert slow.busy.wait(10)
    kept = [batcher.submit(number) for number in (1, 2, 3)]
    with pytest.raises(RequestError, match="too many requests") as refused:
        batcher.submit(4)
    assert refused.value.status == 503
    assert refused.value.headers == {"Retry-After": "1"}
    slow.go.set()
    assert [future.result(10) for future in kept] == [2, 4, 6]
    batcher.close()


def test_a_bad_input_fails_alone(slow):
    batcher = Batcher(slow, batch=10, waiting=10)
    first = batcher.submit(0)
    assert slow.busy.wait(10)
    futures = [batcher.submit(number) for number in (1, 113, 2)]
    slow.go.set()
    assert [first.result(10), futures[0].result(10), futures[2].result(10)] == [0, 2, 4]
    with pytest.raises(ValueError, match="113"):
        futures[1].result(10)
    batcher.close()


def test_what_nobody_waits_for_is_not_computed(slow):
    batcher = Batcher(slow, batch=10, waiting=10)
    batcher.submit(0)
    assert slow.busy.wait(10)
    unwanted, wanted = batcher.submit(1), batcher.submit(2)
    assert unwanted.cancel()
    slow.go.set()
    assert wanted.result(10) == 4
    assert slow.batches == [[0], [2]]
    with pytest.raises(CancelledError):
        unwanted.result(0)
    batcher.close()


def test_closing_finishes_what_waits_and_takes_no_more(slow):
    batcher = Batcher(slow, batch=2, waiting=10)
    futures = [batcher.submit(number) for number in range(5)]
    slow.go.set()
    batcher.close()
    assert [future.result(0) for future in futures] == [0, 2, 4, 6, 8]
    with pytest.raises(RequestError, match="try again"):
        batcher.submit(1)


def test_a_function_that_returns_too_few_results_is_an_error():
    batcher = Batcher(lambda numbers: numbers[1:], batch=2, waiting=2)
    with pytest.raises(ValueError, match="longer"):
        batcher.submit(1).result(10)
    batcher.close()
