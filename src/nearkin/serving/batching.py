"""Requests that come together are answered together: one thread, a bounded queue, no waiting on purpose."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

from nearkin.serving.errors import busy

T = TypeVar("T")
R = TypeVar("R")


class Batcher(Generic[T, R]):
    """Calls a function on many inputs at once, for callers that have one each.

    Whatever arrived while the last batch was computed is the next one: a lone request never waits for
    others, and the more there are the larger the batches.

    Args:
        work: ``n`` inputs to ``n`` results; called from one thread only.
        batch: The most inputs of one call.
        waiting: The most inputs that wait; one more is refused.
        observe: Told the size of every batch.

    >>> batcher = Batcher(lambda numbers: [2 * number for number in numbers], batch=8, waiting=8)
    >>> batcher.submit(3).result()
    6
    >>> batcher.close()
    """

    def __init__(
        self,
        work: Callable[[list[T]], Iterable[R]],
        *,
        batch: int,
        waiting: int,
        observe: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._work = work
        self._batch = batch
        self._waiting = waiting
        self._observe = observe
        self._queue: deque[tuple[T, Future[R]]] = deque()
        self._news = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="nearkin-batches", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """How many inputs wait."""
        return len(self._queue)

    def submit(self, value: T) -> Future[R]:
        """The result of one input, once it is there.

        Raises:
            RequestError: Too many wait already, or the server is about to end.
        """
        future: Future[R] = Future()
        with self._news:
            if self._closed or len(self._queue) >= self._waiting:
                raise busy()
            self._queue.append((value, future))
            self._news.notify()
        return future

    def close(self, patience: float | None = None) -> None:
        """Finish what waits, then end the thread; wait for that so many seconds, or as long as it takes."""
        with self._news:
            self._closed = True
            self._news.notify()
        self._thread.join(patience)

    def _serve(self) -> None:
        while jobs := self._next():
            self._run(jobs)

    def _next(self) -> list[tuple[T, Future[R]]]:
        """The next batch, without those that nobody waits for any more; empty when closed."""
        while True:
            with self._news:
                while not self._queue and not self._closed:
                    self._news.wait()
                if not self._queue:
                    return []
                taken = [self._queue.popleft() for _ in range(min(self._batch, len(self._queue)))]
            jobs = [job for job in taken if job[1].set_running_or_notify_cancel()]
            if jobs:
                return jobs

    def _run(self, jobs: Sequence[tuple[T, Future[R]]]) -> None:
        self._observe(len(jobs))
        try:
            results = self._work([value for value, _ in jobs])
            pairs = list(zip(results, jobs, strict=True))
        except Exception as error:
            if len(jobs) == 1:
                jobs[0][1].set_exception(error)
                return
            for job in jobs:  # one that cannot be embedded must not fail the others
                self._run([job])
            return
        for result, (_, future) in pairs:
            future.set_result(result)
