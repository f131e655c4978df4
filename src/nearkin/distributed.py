"""Every process sees the embeddings of all: one loss over the whole batch, with the right gradient.

A loss over pairs is no sum over images: averaging the losses of the parts of a batch leaves out every pair
across parts. So each process embeds its own part, :func:`gather` brings the embeddings of all parts together
in every process, and the loss sees the whole batch.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args, overload

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["Gradients", "gather"]

Gradients = Literal["averaged", "summed"]

_MOST_DIMENSIONS = 8

if dist.is_available():
    # Its functions keep the process group that exists when they are imported, and so gloo's threads: a
    # process that ends with such threads may be aborted. DistributedDataParallel imports it late.
    importlib.import_module("torch.distributed.nn.functional")


@overload
def gather(
    embeddings: Tensor,
    labels: None = None,
    *,
    gradients: Gradients = "averaged",
    group: ProcessGroup | None = None,
) -> Tensor: ...


@overload
def gather(
    embeddings: Tensor,
    labels: Tensor,
    *,
    gradients: Gradients = "averaged",
    group: ProcessGroup | None = None,
) -> tuple[Tensor, Tensor]: ...


def gather(
    embeddings: Tensor,
    labels: Tensor | None = None,
    *,
    gradients: Gradients = "averaged",
    group: ProcessGroup | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """The embeddings (and labels) of all processes, in the order of their ranks; gradients flow back.

    In one process, or before ``torch.distributed`` is initialised, it gives back what it was given. The
    processes may bring different numbers of rows, none included. All of them must call it, and all of them
    must call ``backward`` if one does: both exchange messages.

    The gradient is that of the *mean over processes* of the losses they compute. Where every process computes
    the same loss of the whole batch, that is the gradient a single process would have; where each process
    computes the part of its own rows as anchors (``references=``), it is the gradient of the mean of these
    parts. What ``backward`` has to give for that depends on what happens to the gradients of the network
    afterwards, in the training loop around it:

    - ``gradients="averaged"``: they are averaged over processes, as ``DistributedDataParallel``, and so
      Lightning, accelerate and the Hugging Face Trainer do.
    - ``gradients="summed"``: they are added up, as a loop does that calls ``all_reduce`` on them.

    Parameters of the loss itself (proxies) get their whole gradient in every process. Average it, for which
    it is enough to wrap the loss in ``DistributedDataParallel`` as well.

    Args:
        embeddings: The embeddings of this process, ``(b, …)``; all but the first dimension must be equal
            everywhere.
        labels: The labels of this process, ``(b, …)``. They come back on the device of the embeddings.
        gradients: What the training loop does with the gradients of all processes.
        group: The processes to gather from; all by default.

    Returns:
        The embeddings ``(B, …)``, B the number of rows of all processes, or with ``labels`` both.

    >>> rows = torch.ones(2, 3)
    >>> gather(rows) is rows  # a single process
    True
    >>> embeddings, labels = gather(rows, torch.tensor([4, 5]))
    >>> labels
    tensor([4, 5])
    """
    if gradients not in get_args(Gradients):
        raise ValueError(f"gradients={gradients!r} must be one of: {', '.join(get_args(Gradients))}")
    if embeddings.ndim == 0:
        raise ValueError("embeddings must have rows to gather, (b, …), but they are a single number")
    if labels is not None and (labels.ndim == 0 or len(labels) != len(embeddings)):
        raise ValueError(f"{len(embeddings)} embeddings but labels of shape {tuple(labels.shape)}")
    if not _several(group):
        return embeddings if labels is None else (embeddings, labels)
    sizes = _sizes(embeddings, group)
    gathered = gather_rows(embeddings, sizes, gradients=gradients, group=group)
    if labels is None:
        return gathered
    return gathered, gather_rows(labels.to(embeddings.device), sizes, gradients=gradients, group=group)


def gather_rows(
    rows: Tensor, sizes: Sequence[int], *, gradients: Gradients, group: ProcessGroup | None = None
) -> Tensor:
    """:func:`gather` where every process knows how many rows each of them has.

    Args:
        rows: The rows of this process, ``(sizes[rank], …)``.
        sizes: Rows per process, in the order of ranks.
        gradients: What the training loop does with the gradients of all processes.
        group: The processes to gather from; all by default.
    """
    scale = 1.0 if gradients == "averaged" else 1 / len(sizes)
    gathered: Tensor = _Gather.apply(rows, list(sizes), scale, group)  # type: ignore[no-untyped-call]
    return gathered


def _several(group: ProcessGroup | None) -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size(group) > 1


def _sizes(rows: Tensor, group: ProcessGroup | None) -> list[int]:
    """How many rows each process has; an error in every process where they are not of one shape."""
    if rows.ndim > _MOST_DIMENSIONS:
        raise ValueError(f"rows of {rows.ndim} dimensions cannot be gathered, {_MOST_DIMENSIONS} at most")
    shape = torch.zeros(_MOST_DIMENSIONS, dtype=torch.long, device=rows.device)
    shape[: rows.ndim] = torch.tensor(rows.shape)
    shapes = [torch.empty_like(shape) for _ in range(dist.get_world_size(group))]
    dist.all_gather(shapes, shape, group=group)
    of_all: list[list[int]] = torch.stack(shapes).tolist()
    if any(other[1:] != of_all[0][1:] for other in of_all):
        told = ", ".join(str(tuple(size for size in other if size)) for other in of_all)
        raise ValueError(f"embeddings of different shapes cannot be gathered: processes have {told}")
    return [other[0] for other in of_all]


class _Gather(torch.autograd.Function):
    """All-gather of rows; backward adds up what the losses of all processes say about one's own rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sizes: list[int], scale: float, group: ProcessGroup | None) -> Tensor:
        rank = dist.get_rank(group)
        if len(rows) != sizes[rank]:
            raise ValueError(f"process {rank} has {len(rows)} rows, but the sizes of all are {sizes}")
        ctx.own = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
        ctx.scale, ctx.group = scale, group
        padded = rows.new_zeros(max(sizes), *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded, group=group)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        total = gradient.contiguous().clone()
        dist.all_reduce(total, group=ctx.group)
        return total[ctx.own] * ctx.scale, None, None, None
