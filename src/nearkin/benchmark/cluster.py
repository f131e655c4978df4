"""A plan on a Ray cluster: every run is a task with its share of cores and GPUs.

A task trains in a scratch directory of its node and sends every file that changes, checkpoints among them,
back to the benchmark, which keeps them in the run's directory. When a worker or its node is lost, the run is
handed out again with the files that had come back, and goes on from its last checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from nearkin.atomic import atomic_path
from nearkin.benchmark.snapshots import Snapshot, in_safe_order
from nearkin.benchmark.worker import start_run
from nearkin.benchmark.workforce import Event, Kind, shares
from nearkin.ray_cluster import PATIENCE, RayCluster
from nearkin.training import Run
from nearkin.training.run import lock_of
from nearkin.workers import ERROR, failure_of, import_folders, read_error, stop_worker, write_error

Files = dict[str, bytes | None]
_LOOK_EVERY = 0.5  # seconds between two looks at a run's files on its node


@dataclass
class _HandedOver:
    run: Run
    lock: FileLock
    updates: Any
    begun: bool = False
    losses: int = 0


class RayTasks:
    """One Ray task per run.

    Args:
        address: The address of the cluster; ``auto`` finds the one of this machine, ``local`` starts one that
            lives as long as the benchmark.
        jobs: Runs handed over at a time; by default twice as many as the cluster has room for, so that a
            cluster that can grow does.
        cpus: Cores of a run.
        gpus: GPUs of a run.
        retries: How often a run is handed out again after its worker was lost.
    """

    def __init__(
        self, address: str, jobs: int | None = None, *, cpus: float = 1, gpus: float = 0, retries: int = 3
    ) -> None:
        self._cluster = RayCluster(address)
        self._ray = self._cluster.ray
        self._cpus, self._gpus, self._retries, self._most = cpus, gpus, retries, jobs
        self._tasks: dict[Path, _HandedOver] = {}
        self._remote = self._ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0)(_carry_out)
        if not self._room():
            warnings.warn(
                f"no node of the cluster has cpus={cpus:g} and gpus={gpus:g}: runs wait until one joins",
                stacklevel=2,
            )

    @property
    def jobs(self) -> int:
        """How many runs the cluster has room for; at least one, for a node that may join."""
        return max(1, self._room())

    def _room(self) -> int:
        wanted = {kind: share for kind, share in (("CPU", self._cpus), ("GPU", self._gpus)) if share}
        return sum(
            min(shares(node.get(kind, 0), share) for kind, share in wanted.items())
            for node in self._cluster.nodes()
        )

    def has_room(self) -> bool:
        """Whether another run may be handed over."""
        return len(self._tasks) < (self._most or 2 * self.jobs)

    def start(self, run: Run) -> bool:
        """Hand a run over, unless another process holds its lock."""
        lock = lock_of(run.path)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return False
        (run.path / ERROR).unlink(missing_ok=True)
        self._tasks[run.path] = _HandedOver(run, lock, self._submit(run))
        return True

    def _submit(self, run: Run) -> Any:
        return self._remote.options(name=run.path.name).remote(
            run.path.name, _all_files(run.path), self._cpus, str(Path.cwd()), import_folders()
        )

    def events(self) -> list[Event]:
        """Keep the files that came back and tell which runs began, ended or lost their worker."""
        waiting = {id(task.updates): task for task in self._tasks.values()}
        if not waiting:
            return []
        ready, _ = self._ray.wait(
            [task.updates for task in waiting.values()],
            num_returns=len(waiting),
            timeout=0,
            fetch_local=False,
        )
        return [event for updates in ready if (event := self._next_event(waiting[id(updates)])) is not None]

    def _next_event(self, task: _HandedOver) -> Event | None:
        """Take a task's next update, or find out that there will be none."""
        try:
            files: Files = self._ray.get(next(task.updates))
        except StopIteration:
            return self._ended(task)
        except self._ray.exceptions.RayTaskError as error:
            return self._failed(task, " ".join(str(error.cause).split()), str(error))
        except self._ray.exceptions.RayError as error:
            return self._lost(task, type(error).__name__)
        _write_files(task.run.path, files)
        if task.begun:
            return None
        task.begun = True
        return Event(task.run.path, "begun")

    def _ended(self, task: _HandedOver) -> Event:
        if task.run.finished:
            return self._release(task, "finished")
        if (task.run.path / ERROR).exists():
            return self._release(task, "failed", read_error(task.run.path))
        return self._lost(task, "its task ended without a word")

    def _lost(self, task: _HandedOver, reason: str) -> Event:
        task.losses += 1
        if task.losses > self._retries:
            return self._failed(task, f"its worker was lost {task.losses} times ({reason})")
        task.updates, task.begun = self._submit(task.run), False
        return Event(task.run.path, "lost", reason)

    def _failed(self, task: _HandedOver, reason: str, details: str = "") -> Event:
        """A failure of the cluster's, about which the run itself could not leave a word."""
        write_error(task.run.path, reason, details)
        return self._release(task, "failed", reason)

    def _release(self, task: _HandedOver, kind: Kind, reason: str = "") -> Event:
        del self._tasks[task.run.path]
        task.lock.release()
        return Event(task.run.path, kind, reason)

    def stop(self) -> None:
        """Cancel all tasks and, if the cluster was started for this, end it."""
        with contextlib.suppress(Exception):  # a cluster that is gone has nothing to cancel
            for task in self._tasks.values():
                self._ray.cancel(task.updates)  # not by force: a task tidies its node up
            ends = [task.updates.completed() for task in self._tasks.values()]
            self._ray.wait(ends, num_returns=len(ends), timeout=PATIENCE)
        for task in list(self._tasks.values()):
            self._release(task, "lost")
        self._cluster.close()


def _carry_out(name: str, files: Files, cpus: float, home: str, python_path: list[str]) -> Iterator[Files]:
    """The task: carry a run out in a process of its own and yield the files that change, until it is over."""
    if Path(home).is_dir():
        os.chdir(home)  # where the paths of a recipe begin
    yield {}
    with tempfile.TemporaryDirectory(prefix="nearkin-") as scratch:
        path = Path(scratch) / name
        _write_files(path, files)
        snapshot = Snapshot(path)
        snapshot.changes()
        folders = [*import_folders(), *python_path]
        process = start_run(path, threads=max(1, int(cpus)), python_path=folders)
        try:
            yield from _changes_until_the_end(process, path, snapshot)
        finally:
            stop_worker(process)
        if process.returncode:
            failure_of(path, process.returncode)
        yield _changed_files(path, snapshot)


def _changes_until_the_end(
    process: subprocess.Popen[bytes], path: Path, snapshot: Snapshot
) -> Iterator[Files]:
    while process.poll() is None:
        time.sleep(_LOOK_EVERY)
        if changed := _changed_files(path, snapshot):
            yield changed


def _changed_files(path: Path, snapshot: Snapshot) -> Files:
    changes = snapshot.changes()
    files: Files = dict.fromkeys(changes.removed)
    for file in changes.written:
        try:
            files[file] = (path / file).read_bytes()
        except FileNotFoundError:  # noqa: PERF203
            snapshot.forget(file)  # replaced in this moment: the next look has what came after it
    return files


def _all_files(path: Path) -> Files:
    return _changed_files(path, Snapshot(path))


def _write_files(folder: Path, files: Files) -> None:
    """Bring a folder up to date so that it is whole at every moment."""
    for file in in_safe_order(files):
        if (content := files[file]) is not None:
            with atomic_path(folder / file) as temporary:
                temporary.write_bytes(content)
    for file, content in files.items():
        if content is None:
            (folder / file).unlink(missing_ok=True)
