"""Who else uses this machine: work beside a measurement slows one side more than the other.

The share of the others is what all processors did, and what the host of a virtual machine took from them,
without what this program and its finished children did themselves.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import NamedTuple

import psutil

SHARE_LIMIT = 0.05
"""Of all processors together; an idle machine's own housekeeping stays below 0.02."""
AVERAGE_LIMIT = 0.25
"""Load average of the last minute, for each processor."""


class LoadedMachineError(RuntimeError):
    """Others use the machine, so that figures taken now would be wrong."""


class Reading(NamedTuple):
    """Counters of one moment, in seconds: on the clock, of all processors' work, and of our own."""

    clock: float
    busy: float
    own: float
    average: float
    processors: int


class Load(NamedTuple):
    """What others did in a stretch of time: their share of all processors, and the load average."""

    when: str
    share: float
    average: float


def read() -> Reading:
    """The counters now."""
    times = psutil.cpu_times()
    busy = times.user + times.system
    busy += sum(getattr(times, name, 0.0) for name in ("nice", "irq", "softirq", "steal"))
    return Reading(
        time.perf_counter(), busy, sum(os.times()[:4]), psutil.getloadavg()[0], psutil.cpu_count() or 1
    )


class Watch:
    """Looks at the load and refuses where it is too high; remembers all it saw.

    The load average is judged at the first look only: later it is of our own making.
    """

    def __init__(
        self,
        reader: Callable[[], Reading] = read,
        sleep: Callable[[float], object] = time.sleep,
        *,
        refuse: bool = True,
    ) -> None:
        self.read = reader
        self.refuse = refuse
        self.loads: list[Load] = []
        self._sleep = sleep

    def look(self, when: str, seconds: float = 1.0) -> Load:
        """See what others do while we do nothing."""
        start = self.read()
        self._sleep(seconds)
        return self.since(start, when)

    def since(self, start: Reading, when: str) -> Load:
        """See what others did since ``start``, beside our own work."""
        end = self.read()
        others = (end.busy - start.busy) - (end.own - start.own)
        capacity = max(end.clock - start.clock, 1e-9) * end.processors
        load = Load(when, max(others / capacity, 0.0), end.average)
        first = not self.loads
        self.loads.append(load)
        average_limit = AVERAGE_LIMIT * end.processors
        if self.refuse and (load.share > SHARE_LIMIT or (first and load.average > average_limit)):
            raise LoadedMachineError(
                f"{when}, others used {load.share:.0%} of this machine's {end.processors} processors (at "
                f"most {SHARE_LIMIT:.0%} is allowed) and the load average was {load.average:.2f} (at most "
                f"{average_limit:.2f} at the start): figures taken now would be wrong, so none are written. "
                "End what else runs, wait a minute and start again, or look without writing: --anyway"
            )
        return load
