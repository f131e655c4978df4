"""How much memory a training will take, told before it takes it.

Two samples go forward once while autograd's saved tensors are counted; a batch keeps as much per sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor, nn

from nearkin.data.nested import move
from nearkin.losses.tiles import MOST_AT_ONCE
from nearkin.networks import has_trained_batch_norm
from nearkin.networks.splitting import device_of
from nearkin.observer import Observer
from nearkin.training.distributed import launched_processes
from nearkin.training.task import Task

_PROBED = 2  # samples
_MOST_PARAMETERS = 500_000_000  # of a network that is probed: more would take its time
_WORTH_A_WORD = 0.7  # of the memory that is free
_COMFORTABLE = 0.5
_MIXED = 0.6  # activations of mixed precision, in those of fp32
_NUMBER = 4  # bytes
_COPIES_OF_PARAMETERS = 5  # themselves, their gradients, two moments of the optimiser, the best epoch's
_MATRICES_OF_A_LOSS = 8  # (B, B), at a time


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes at the peak of a training.

    Attributes:
        fixed: Parameters, gradients, the optimiser's state and the loss.
        per_sample: Activations that one sample keeps until its gradient is computed.
        samples: Samples whose activations are kept at a time.
    """

    fixed: int
    per_sample: int
    samples: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.fixed + self.per_sample * self.samples


def estimate(task: Task) -> int:
    """Bytes that a task's training will take at its peak, within a factor of about two.

    Raises:
        ValueError: It cannot be told without training: the network is large, or its trunk is cached.
    """
    return detailed_estimate(task).total


def detailed_estimate(task: Task) -> MemoryEstimate:
    """What :func:`estimate` sums up."""
    network = task.embedder.network
    parameters = list(network.parameters())
    if task.embedder.trunk is not None or sum(p.numel() for p in parameters) > _MOST_PARAMETERS:
        raise ValueError("the memory of this training cannot be told in a moment")
    samples = task.learnt(task.protocol.split(task.data.without_test(), task.seed)[0])
    sampler = task.sampler(samples.labels, seed=task.seed, rank=0, world_size=1)
    settings = task.settings
    batch = -(-sampler.batch_size * settings.views // launched_processes())
    rows = [index % len(samples) for index in range(_PROBED)]
    inputs = task.embedder.evaluation_transform(samples.samples, rows, rows)
    kept = _kept_by_forward(network, move(inputs, device_of(network))) / _PROBED
    if settings.precision != "fp32":
        kept *= _MIXED
    trained = sum(p.numel() * p.element_size() for p in parameters if p.requires_grad)
    copies = _COPIES_OF_PARAMETERS + (settings.ema is not None)
    whole_batch = sampler.batch_size * settings.views
    similarities = max(whole_batch**2, min(whole_batch * samples.num_classes, MOST_AT_ONCE))
    loss = _MATRICES_OF_A_LOSS * _NUMBER * similarities
    read = _bytes(inputs) / _PROBED * batch * (1 + 2 * task.embedder.workers)
    return MemoryEstimate(
        fixed=round(copies * trained + loss + read),
        per_sample=round(kept),
        samples=min(settings.chunk or batch, batch),
    )


def warn_if_too_large(task: Task, observer: Observer) -> None:
    """Tell the observer if a training will take most of the free memory, and what to do about it.

    Takes a moment, changes nothing, and says nothing where nothing can be told.
    """
    try:
        needed = detailed_estimate(task)
        free = free_memory()
    except Exception:  # training itself says best what is wrong with a network, a sampler or a sample
        return
    if needed.total <= _WORTH_A_WORD * free:
        return
    advice = "a smaller sampler.batch_size"
    if task.settings.chunk is None:
        advice += f" (it is {needed.samples})"
    chunk = int((_COMFORTABLE * free - needed.fixed) / max(needed.per_sample, 1))
    if chunk >= 1 and not has_trained_batch_norm(task.embedder.trained_part()):
        advice = f"training.chunk={min(chunk, needed.samples - 1)} (exact, and slower), or {advice}"
    observer.warning(
        f"training will take about {_in_words(needed.total)} of memory and {_in_words(free)} are free: "
        f"try {advice}"
    )


def free_memory() -> int:
    """Bytes that a training can have: of the GPU, or of the machine or container."""
    if torch.cuda.is_available():
        return int(torch.cuda.mem_get_info()[0])
    free = int(psutil.virtual_memory().available)
    limit, used = (_cgroup_number(name) for name in ("memory.max", "memory.current"))
    return free if limit is None or used is None else min(free, max(limit - used, 0))


def _cgroup_number(name: str) -> int | None:
    """A number about the container that this process lives in; ``None`` outside of one."""
    try:
        return int((Path("/sys/fs/cgroup") / name).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _kept_by_forward(network: nn.Module, inputs: Any) -> int:
    """Bytes that autograd keeps after a forward pass in training, and what its backward pass adds."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*network.parameters(), *network.buffers())}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with _as_it_was(network), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        network.train()
        output = network(inputs)
        kept[output.untyped_storage().data_ptr()] = output.untyped_storage().nbytes()
    return sum(kept.values()) + 2 * max(kept.values())


@contextmanager
def _as_it_was(network: nn.Module) -> Iterator[None]:
    """Leave modes, buffers (statistics of batch norm) and generators as they were."""
    modes = {module: module.training for module in network.modules()}
    buffers = [(buffer, buffer.detach().clone()) for buffer in network.buffers()]
    with torch.random.fork_rng():
        try:
            yield
        finally:
            for module, training in modes.items():
                module.training = training
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)


def _bytes(inputs: Any) -> int:
    """Of all tensors in a batch's inputs."""
    if isinstance(inputs, Tensor):
        return inputs.nbytes
    if isinstance(inputs, dict):
        return sum(_bytes(part) for part in inputs.values())
    return sum(_bytes(part) for part in inputs) if isinstance(inputs, list | tuple) else 0


def _in_words(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
