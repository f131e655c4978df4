"""Wait for a server that is gone, for longer and longer, but not for ever."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

FIRST, LONGEST = 0.1, 5.0
"""Seconds of the first pause and of the longest one."""


def attempts(
    seconds: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[int]:
    """The numbers of attempts, with a pause before each but the first, until the time is over.

    The pause doubles each time. There is one attempt at least, and one after the last pause.

    Args:
        seconds: How long, from the first failure on; the time that the first attempt takes does not count.
        clock: Tells the time, in seconds.
        sleep: Waits.

    >>> list(attempts(0))
    [0]
    """
    yield 0
    begin, pause, number = clock(), FIRST, 1
    while True:
        left = seconds - (clock() - begin)
        if left <= 0:
            return
        sleep(min(pause, left))
        yield number
        pause, number = min(2 * pause, LONGEST), number + 1
