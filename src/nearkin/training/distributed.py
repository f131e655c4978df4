"""Several processes that train one network: every sample is embedded once, every pair of the batch counts.

``torchrun --nproc_per_node 2 -m nearkin train …`` (or ``accelerate launch``) starts them; the recipe stays
the same, and so does the result, up to rounding: ``sampler.batch_size`` is the batch over all processes.

A pair loss is no sum over samples, so averaging the losses of parts would leave out every pair across them.
Here each process embeds its slice of the batch, the embeddings of all meet in every process, and every
process computes the one loss of the whole batch. What it sends back into its own network is the gradient of
its own rows; the network's gradient is the *sum* over processes. The loss's own parameters (proxies) get
their whole gradient in every process already.

Batch norm that is not frozen is the one thing that depends on the number of processes: each normalises over
its own slice, as is usual, and the running statistics are the first process's.
"""

from __future__ import annotations

import atexit
import importlib
import os
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from accelerate import Accelerator, InitProcessGroupKwargs
from accelerate.state import AcceleratorState
from torch import Tensor, nn

from nearkin.data.loading import sample_seed
from nearkin.distributed import gather_rows

Value = TypeVar("Value")

_MIXED_PRECISION = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}
_PATIENCE = timedelta(hours=6)  # of processes that wait while the first one scores a large data set
_BUCKET_NUMBERS = 1 << 23  # gradients that travel together: a few messages instead of one per parameter


def launched_processes() -> int:
    """How many processes ``torchrun`` or ``accelerate launch`` started; 1 without them."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_first_process() -> bool:
    """Whether this is the process that writes files and talks."""
    return launched_processes() == 1 or int(os.environ.get("RANK", "0")) == 0


def build_accelerator(precision: str) -> Accelerator:
    """Devices and precision of a training; joins the other processes if there are any."""
    if launched_processes() > 1:
        # Its functions keep the group that exists when they are imported, and so its threads, for ever.
        importlib.import_module("torch.distributed.nn.functional")
    AcceleratorState._reset_state()  # a process may train several recipes, of different precision
    accelerator = Accelerator(
        mixed_precision=_MIXED_PRECISION[precision],
        cpu=launched_processes() > 1 and not torch.cuda.is_available(),
        kwargs_handlers=[InitProcessGroupKwargs(timeout=_PATIENCE)],
    )
    if dist.is_initialized() and "nccl" not in dist.get_backend():
        atexit.register(leave_other_processes)  # not NCCL, which would wait here for one that has failed
    return accelerator


def leave_other_processes() -> None:
    """Part from the processes that were joined, if any: this one is done.

    A process that ends without it may be aborted while Python shuts down: a thread of gloo's that frees a
    tensor of the last exchange then finds no interpreter any more.
    """
    if dist.is_initialized():
        dist.destroy_process_group()


class Processes:
    """The processes of a training, as one of them sees it; alone, every method leaves things as they are.

    Args:
        rank: Which one this is.
        count: How many there are.
        device: Where tensors are exchanged.
    """

    def __init__(self, rank: int, count: int, device: torch.device) -> None:
        self.rank = rank
        self.count = count
        self.device = device

    @classmethod
    def of(cls, accelerator: Accelerator) -> Processes:
        """Those that an accelerator has joined."""
        return cls(accelerator.process_index, accelerator.num_processes, accelerator.device)

    def share(self, total: int) -> range:
        """Which of ``total`` rows are this process's, by the rule of the samplers.

        >>> Processes(1, 3, torch.device("cpu")).share(10)
        range(3, 6)
        """
        return range(total * self.rank // self.count, total * (self.rank + 1) // self.count)

    def gather(self, rows: Tensor, total: int) -> Tensor:
        """The rows of all processes, in their order ``(total, …)``; the gradient of one's own flows back."""
        if self.count == 1:
            return rows
        sizes = [len(Processes(rank, self.count, self.device).share(total)) for rank in range(self.count)]
        return gather_rows(rows, sizes, gradients="summed")

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Add up the gradients of all processes: of parameters that only a part of the batch went through."""
        self._reduce([p.grad for p in parameters if p.grad is not None], factor=1.0)

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Of parameters that saw the whole batch everywhere, so that rounding cannot drive them apart."""
        self._reduce([p.grad for p in parameters if p.grad is not None], factor=1 / self.count)

    def _reduce(self, gradients: list[Tensor], factor: float) -> None:
        if self.count == 1:
            return
        for sparse in (gradient for gradient in gradients if gradient.is_sparse):
            # Of sampled classes: every process saw the whole batch and drew the same ones.
            values = sparse._values()
            dist.all_reduce(values)
            values.mul_(factor)
        for bucket in _buckets([gradient for gradient in gradients if not gradient.is_sparse]):
            together = torch.cat([gradient.flatten() for gradient in bucket])
            dist.all_reduce(together)
            if factor != 1:
                together.mul_(factor)
            sizes = [gradient.numel() for gradient in bucket]
            for gradient, numbers in zip(bucket, together.split(sizes), strict=True):
                gradient.copy_(numbers.view(gradient.shape))

    @torch.no_grad()
    def copy_from_first(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite tensors with the first process's."""
        if self.count == 1:
            return
        for tensor in tensors:
            travelling = tensor.to(self.device).contiguous()
            dist.broadcast(travelling, src=0)
            tensor.copy_(travelling)

    def collect(self, rows: Tensor) -> Tensor:
        """The rows of all processes, in their order, in the first one; the others keep their own.

        Unlike ``gather`` it makes no process hold all of them but the first, and nothing flows back.
        """
        if self.count == 1:
            return rows
        rows = rows.detach().contiguous()
        sizes = torch.zeros(self.count, dtype=torch.long, device=self.device)
        sizes[self.rank] = len(rows)
        dist.all_reduce(sizes)
        if self.rank:
            if len(rows):
                dist.send(rows, 0)
            return rows
        parts = [rows, *(rows.new_empty(size, *rows.shape[1:]) for size in sizes[1:].tolist())]
        for rank, part in enumerate(parts):
            if rank and len(part):
                dist.recv(part, rank)
        return torch.cat(parts)

    def ask_first(self, question: Callable[[], Value]) -> Value:
        """What the first process finds; the others wait for its answer."""
        if self.count == 1:
            return question()
        answer: list[Any] = [question() if self.rank == 0 else None]
        dist.broadcast_object_list(answer, src=0)
        found: Value = answer[0]
        return found

    def seed_apart(self, seed: int) -> None:
        """Let the global generators of processes differ, so that dropout does; the first keeps its own."""
        if self.rank:
            torch.manual_seed(sample_seed(seed, 0, self.rank))

    def random_states(self) -> dict[str, Tensor]:
        """Where the global generators of all processes stand, by device and rank."""
        states = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            states["cuda"] = torch.cuda.get_rng_state(self.device)
        of_all: list[Any] = [states]
        if self.count > 1:
            of_all = [None] * self.count
            dist.all_gather_object(of_all, states)
        return {f"{device}.{rank}": s for rank, own in enumerate(of_all) for device, s in own.items()}

    def set_random_states(self, states: Mapping[str, Tensor]) -> None:
        """Go on from ``random_states``; a process that was not there keeps its own."""
        if f"cpu.{self.rank}" in states:
            torch.set_rng_state(states[f"cpu.{self.rank}"])
        if f"cuda.{self.rank}" in states and self.device.type == "cuda":
            torch.cuda.set_rng_state(states[f"cuda.{self.rank}"], self.device)


def _buckets(gradients: list[Tensor]) -> list[list[Tensor]]:
    """Gradients of one dtype in groups of bounded size."""
    buckets: list[list[Tensor]] = []
    filled = _BUCKET_NUMBERS
    for gradient in sorted(gradients, key=lambda one: str(one.dtype)):
        if filled + gradient.numel() > _BUCKET_NUMBERS or buckets[-1][0].dtype != gradient.dtype:
            buckets.append([])
            filled = 0
        buckets[-1].append(gradient)
        filled += gradient.numel()
    return buckets
