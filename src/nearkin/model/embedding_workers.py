"""Samples embedded beside each other, by processes of this machine or on a Ray cluster.

Samples come in shards. A shard goes to one worker as a whole, and its vectors come back as a whole, in the
order of the shards; the shard of a worker that is lost goes to another one. Workers write nothing: what
becomes of the vectors, and what is left to do after a kill, is known to whoever handed the shards out.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol

import torch

from nearkin.atomic import write_json
from nearkin.data import Samples
from nearkin.model.model import Chunk, Model
from nearkin.networks.splitting import device_of
from nearkin.ray_cluster import RayCluster
from nearkin.workers import available_cores, code_in_words, import_folders, start_worker, stop_worker

MODEL, JOB = "model", "job.json"
"""What a process finds in the folder that it is told: the model, and how to embed with it."""
_LOSSES = 3  # workers that a shard may outlive
_AT_HAND = 2  # shards of a process: one that it embeds, one that waits there
_PREFIX = "nearkin-embedding-"
_AHEAD = 2  # times as many shards may be done, or wait to be handed out, before the next one in order is done

_ALONE, _REMEDY = "other processes cannot", "embed with one process"

Embed = Callable[[Iterable[Samples]], Iterator[Chunk | None]]
"""Embeds shards, in order; ``None`` for one that the caller has to embed itself: workers met a bad file, or
there are no workers."""


@contextmanager
def embedding_workers(
    model: Model,
    *,
    processes: int | None = None,
    ray: str | None = None,
    batch_size: int | None = None,
    skip_bad: bool = False,
) -> Iterator[Embed]:
    """Workers for as long as the block lasts.

    Args:
        model: Embeds.
        processes: How many there are; one is this process. On a cluster: how many shards are handed over at a
            time, by default twice as many as it has cores.
        ray: The address of a Ray cluster (``auto``, or ``local`` for one that is started for the time). Every
            node needs nearkin, and finds files under the paths that they have here.
        batch_size: Samples at a time through the network.
        skip_bad: Leave files out that cannot be read.

    Raises:
        ValueError: The workers cannot read the model, or there is no Ray.
        RuntimeError: A shard was lost with its worker again and again.
    """
    if processes is not None and processes < 1:
        raise ValueError(f"processes={processes} must be at least 1")
    job = {"batch_size": batch_size or model.embedders[0].batch_size, "skip_bad": skip_bad}
    if ray is not None:
        with closing(_ClusterTasks(model, job, ray, processes)) as tasks:
            yield lambda shards: _in_order(tasks, shards)
    elif processes is None or processes == 1:
        yield lambda shards: (None for _ in shards)
    else:
        with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder:
            _write_work(Path(folder), model, job)
            with closing(_Processes(Path(folder), processes)) as workers:
                yield lambda shards: _in_order(workers, shards)


def embed_shard(model: Model, samples: Samples, job: Mapping[str, Any]) -> Chunk | None:
    """What a worker does with a shard; ``None`` where it holds a file that cannot be read."""
    size = int(job["batch_size"])
    try:
        (chunk,) = model.embed_in_chunks(
            samples, batch_size=size, skip_bad=bool(job["skip_bad"]), chunk=len(samples) + size
        )
    except Exception:  # whoever handed the shard out meets the same, and tells it
        return None
    return chunk


class _Workers(Protocol):
    room: int
    """Shards that may be on their way at a time."""

    def start(self, number: int, samples: Samples) -> None:
        """Hand a shard over."""

    def finished(self) -> dict[int, Chunk | None]:
        """Wait for shards, and take them."""


def _pickled(samples: Samples) -> bytes:
    """Samples as they travel: a worker reads them when it can import what its parent could."""
    try:
        return pickle.dumps(samples)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(f"{_ALONE} be sent these samples: {error}; {_REMEDY}") from error


def _in_order(workers: _Workers, shards: Iterable[Samples]) -> Iterator[Chunk | None]:
    """What becomes of shards, in their order; no more of them are begun than there is room for."""
    coming = enumerate(shards)
    done: dict[int, Chunk | None] = {}
    begun = wanted = 0
    while True:
        while begun - wanted < workers.room and (shard := next(coming, None)) is not None:
            workers.start(*shard)
            begun += 1
        if wanted == begun:
            return
        while wanted not in done:
            done |= workers.finished()
        yield done.pop(wanted)
        wanted += 1


@dataclass(eq=False)
class _Process:
    """A process that embeds: shards go in by its standard input, chunks come out by its standard output."""

    process: subprocess.Popen[bytes]
    to: Connection = field(init=False)
    back: Connection = field(init=False)
    shards: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.to = Connection(os.dup(self.process.stdin.fileno()), readable=False)
        self.back = Connection(os.dup(self.process.stdout.fileno()), writable=False)
        self.process.stdin.close()
        self.process.stdout.close()

    def end(self, patience: float = 0.0) -> int:
        """End it, unless it ends by itself soon; its exit code."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(patience)
        stop_worker(self.process)
        self.to.close()
        self.back.close()
        return self.process.returncode


class _Processes:
    """Processes of this machine; one that is lost is replaced."""

    def __init__(self, folder: Path, count: int) -> None:
        self.room = _AHEAD * _AT_HAND * count
        self._count, self._threads = count, max(1, available_cores() // count)
        self._waiting: deque[int] = deque()
        self._shards: dict[int, bytes] = {}
        self._losses: Counter[int] = Counter()
        self._processes: list[_Process] = []
        self._folder = folder

    def start(self, number: int, samples: Samples) -> None:
        """Hand a shard over."""
        self._shards[number] = _pickled(samples)
        self._waiting.append(number)
        if len(self._processes) < self._count:
            self._start_process()
        self._hand_out()

    def _start_process(self) -> None:
        module = "nearkin.model.embedding_worker"
        process = start_worker(module, self._folder, threads=self._threads, answers=True)
        self._processes.append(_Process(process))

    def _hand_out(self) -> None:
        """Give what waits to the processes that have the least."""
        while self._waiting and self._processes:
            process = min(self._processes, key=lambda one: len(one.shards))
            if len(process.shards) == _AT_HAND:
                return
            number = self._waiting.popleft()
            process.shards.append(number)
            try:
                process.to.send_bytes(pickle.dumps((number, self._shards[number])))
            except OSError:
                self._replace(process)

    def finished(self) -> dict[int, Chunk | None]:
        """Wait for processes, and take what they have done."""
        done: dict[int, Chunk | None] = {}
        ready = wait([process.back for process in self._processes])
        for process in [one for one in self._processes if one.back in ready]:
            try:
                answer = pickle.loads(process.back.recv_bytes())  # noqa: S301  (of a process started here)
            except (EOFError, OSError):
                self._replace(process)
                continue
            if isinstance(answer, str):
                raise ValueError(f"{_ALONE} read {answer}; {_REMEDY}")
            number, done[number] = answer
            process.shards.remove(number)
            del self._shards[number]
        self._hand_out()
        return done

    def _replace(self, lost: _Process) -> None:
        """Start another process for one that is lost, and give it the shards."""
        self._processes.remove(lost)
        how = code_in_words(lost.end(patience=1.0))
        self._waiting.extendleft(reversed(lost.shards))
        self._losses.update(lost.shards[:1])
        if lost.shards and self._losses[lost.shards[0]] > _LOSSES:
            raise RuntimeError(
                f"processes that embedded the same samples ended {_LOSSES + 1} times, at last with {how}: "
                "fewer processes need less memory, and one alone tells more"
            )
        warnings.warn(f"a process that embedded ended with {how}: another one goes on", stacklevel=2)
        if self._waiting:
            self._start_process()

    def close(self) -> None:
        """End all of them."""
        for process in self._processes:
            process.end()


def _write_work(folder: Path, model: Model, job: Mapping[str, Any]) -> None:
    """What processes are told."""
    model.save(folder / MODEL)
    device = str(device_of(model.embedders[0].network))
    write_json(folder / JOB, {**job, "fingerprint": model.fingerprint, "device": device})


class _ClusterTasks:
    """Tasks on a Ray cluster, one core each; Ray hands the task of a lost worker or node to another one."""

    def __init__(self, model: Model, job: Mapping[str, Any], address: str, most: int | None) -> None:
        files = _files_of(model)
        self._cluster = RayCluster(address)
        self._ray = self._cluster.ray
        cores = sum(int(node.get("CPU", 0)) for node in self._cluster.nodes())
        self.room = most or 2 * max(1, cores)
        self._numbers: dict[Any, int] = {}
        self._job = {**job, "fingerprint": model.fingerprint}
        self._from = (str(Path.cwd()), import_folders())
        # In a list Ray leaves it where it is until a task asks for it, once per process.
        self._model = [self._ray.put(files)]
        self._remote = self._ray.remote(num_cpus=1, max_retries=_LOSSES)(_embed_on_node)

    def start(self, number: int, samples: Samples) -> None:
        """Hand a shard over."""
        self._numbers[self._remote.remote(self._model, self._job, self._from, _pickled(samples))] = number

    def finished(self) -> dict[int, Chunk | None]:
        """Wait for a task, and take what it found."""
        (ready,), _ = self._ray.wait(list(self._numbers), num_returns=1)
        number = self._numbers.pop(ready)
        try:
            return {number: self._ray.get(ready)}
        except self._ray.exceptions.RayTaskError as error:
            raise ValueError(f"a node of the cluster cannot embed: {error.cause}") from None
        except self._ray.exceptions.RayError as error:
            raise RuntimeError(
                f"the workers of a shard were lost {_LOSSES + 1} times ({type(error).__name__}): ray status "
                "shows which nodes there are"
            ) from error

    def close(self) -> None:
        """Cancel what is at work, and leave the cluster."""
        with suppress(Exception):  # a cluster that is gone has nothing to cancel
            for task in self._numbers:
                self._ray.cancel(task, force=True)
        self._cluster.close()


def _files_of(model: Model) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder:
        home = model.save(Path(folder) / MODEL)
        files = [path for path in home.rglob("*") if path.is_file()]
        return {path.relative_to(home).as_posix(): path.read_bytes() for path in files}


_on_node: dict[str, Model] = {}
"""The model that this process of a cluster embeds with, by its fingerprint."""


def _embed_on_node(
    model: list[Any], job: Mapping[str, Any], home: tuple[str, list[str]], pickled: bytes
) -> Chunk | None:
    """The task."""
    folder, python_path = home
    if Path(folder).is_dir():
        os.chdir(folder)  # where the paths of samples begin
    sys.path += [entry for entry in python_path if entry not in sys.path]
    fingerprint = str(job["fingerprint"])
    if fingerprint not in _on_node:
        torch.set_num_threads(1)
        _on_node.clear()
        _on_node[fingerprint] = _model_from(import_module("ray").get(model[0]), fingerprint)
    samples: Samples = pickle.loads(pickled)  # noqa: S301  (from whoever uses the cluster, who may run code on it)
    return embed_shard(_on_node[fingerprint], samples, job)


def _model_from(files: Mapping[str, bytes], fingerprint: str) -> Model:
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder:
        for name, content in files.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return read_model(Path(folder), fingerprint)


def read_model(folder: Path, fingerprint: str) -> Model:
    """The model in a folder, as a worker reads it.

    Raises:
        ValueError: It cannot be read here, or embeds otherwise than the one of this fingerprint.
    """
    model = Model.read(folder)
    if model.fingerprint != fingerprint:
        raise ValueError("it is another model when it is read from a file")
    return model
