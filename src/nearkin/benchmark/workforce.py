"""Who carries out the runs of a plan: what every kind of workforce does, and the one of local processes."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import torch

from nearkin.benchmark.worker import start_run
from nearkin.training import Run
from nearkin.training.run import is_taken
from nearkin.workers import TAKEN, available_cores, failure_of, stop_worker

Kind = Literal["begun", "finished", "failed", "lost", "taken"]


@dataclass(frozen=True)
class Event:
    """What happened to a run.

    Attributes:
        run: Its directory.
        kind: ``begun``, ``finished``, ``failed``, ``lost`` (its worker vanished, it is tried again) or
            ``taken`` (another process trains it).
        reason: The reason in one line, for ``failed`` and ``lost``.
    """

    run: Path
    kind: Kind
    reason: str = ""


class Workforce(Protocol):
    """Carries out runs, several at a time. A run is handed over, and events tell what became of it."""

    @property
    def jobs(self) -> int:
        """How many at a time."""
        ...

    def has_room(self) -> bool:
        """Whether another run can be handed over now."""
        ...

    def start(self, run: Run) -> bool:
        """Take a run on; ``False`` if another process has it."""
        ...

    def events(self) -> list[Event]:
        """What happened since the last call; never waits."""
        ...

    def stop(self) -> None:
        """End everybody; what they wrote is whole, and the next start goes on from there."""
        ...


class LocalProcesses:
    """One process per run on this machine.

    Args:
        jobs: Runs at a time; by default one per GPU or, without one, as many as the cores
            allow at ``cpus`` each.
        cpus: Cores of a run, for the default number of jobs.
    """

    def __init__(self, jobs: int | None = None, *, cpus: float = 1) -> None:
        if jobs is not None and jobs < 1:
            raise ValueError(f"jobs={jobs} must be at least 1")
        self._devices = _visible_devices()
        self.jobs = jobs or len(self._devices) or max(1, shares(available_cores(), cpus))
        self.threads = max(1, available_cores() // self.jobs)
        self._slots: list[tuple[Run, subprocess.Popen[bytes]] | None] = [None] * self.jobs
        self._news: list[Event] = []

    def has_room(self) -> bool:
        """Whether fewer than ``jobs`` processes are at work."""
        return None in self._slots

    def start(self, run: Run) -> bool:
        """Start a process for a run, unless another one holds its lock."""
        if is_taken(run.path):
            return False
        slot = self._slots.index(None)
        device = {"CUDA_VISIBLE_DEVICES": self._devices[slot % len(self._devices)]} if self._devices else {}
        self._slots[slot] = run, start_run(run.path, threads=self.threads, environment=device)
        self._news.append(Event(run.path, "begun"))
        return True

    def events(self) -> list[Event]:
        """The runs that began or ended since the last call."""
        news, self._news = self._news, []
        for slot, busy in enumerate(self._slots):
            if busy is not None and (code := busy[1].poll()) is not None:
                run, process = busy
                stop_worker(process)
                self._slots[slot] = None
                news.append(_ended(run, code))
        return news

    def stop(self) -> None:
        """End all processes and wait for their end."""
        for busy in self._slots:
            if busy is not None:
                stop_worker(busy[1])
        self._slots = [None] * self.jobs


def _ended(run: Run, code: int) -> Event:
    path = run.path
    if run.finished:
        return Event(path, "finished")
    return Event(path, "taken") if code == TAKEN else Event(path, "failed", failure_of(path, code))


def shares(total: float, share: float) -> int:
    """How many shares a total has room for; fractions are not lost to rounding.

    >>> shares(1, 0.1), shares(8, 3), shares(1, 2)
    (10, 2, 0)
    """
    return int(total / share + 1e-6)


def _visible_devices() -> list[str]:
    """The GPUs that this process may use, as CUDA is told about them."""
    count = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",")[:count] if named else [str(device) for device in range(count)]
