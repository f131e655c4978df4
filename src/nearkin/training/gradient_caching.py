"""Gradient caching: one loss over a large batch, with the activations of a small part of it in memory.

A pair loss wants large batches, and the network's activations are what fills the memory. The loss, though,
depends on the network through the embeddings alone, so the chain rule can be walked in two passes (Gao,
Zhang, Han, Callan 2021, "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup",
arXiv 2101.06983): embed the batch in chunks without a graph, take ∂L/∂embeddings of the whole batch, then
embed chunk after chunk again, with a graph, and send each its rows of that gradient. The sum over the chunks
is the gradient of the whole batch, exactly, for the price of a second forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from nearkin.data.nested import len_of, split
from nearkin.networks import has_trained_batch_norm
from nearkin.networks.splitting import device_of


def backward_in_chunks(
    network: nn.Module,
    inputs: Any,
    loss: Callable[[Tensor], Tensor],
    *,
    chunk: int | None,
    backward: Callable[[Tensor], None] = Tensor.backward,
) -> Tensor:
    """The loss of a batch; its gradients are added to those of all parameters, as ``backward()`` does.

    What the network draws from PyTorch's global generators (dropout) in the second pass is what it drew in
    the first, and the generators are left where one pass leaves them.

    Args:
        network: Inputs to embeddings ``(B, D)``, each sample by itself: see
            :func:`refuse_trained_batch_norm`.
        inputs: The whole batch: a tensor, or a list, tuple or mapping of them.
        loss: Embeddings of the whole batch to a scalar.
        chunk: Samples whose activations are kept at a time; ``None`` for all of them, in one pass.
        backward: How a scalar is differentiated; a gradient scaler's or accelerate's way, if not the plain.

    Returns:
        The value, detached.

    >>> network = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    >>> value = backward_in_chunks(network, torch.ones(6, 1, 2, 2), lambda z: z.square().sum(), chunk=4)
    >>> network[1].weight.grad.shape
    torch.Size([2, 4])
    """
    if chunk is None or chunk >= len_of(inputs):
        value = loss(network(inputs))
        backward(value)
        return value.detach()
    parts = split(inputs, chunk)
    device = device_of(network)
    draws = []
    with torch.no_grad():
        embeddings = []
        for part in parts:
            draws.append(_Draws(device))
            embeddings.append(network(part))
    whole = torch.cat(embeddings).requires_grad_()
    value = loss(whole)
    backward(value)
    assert whole.grad is not None
    for part, drawn, gradient in zip(parts, draws, whole.grad.split(chunk), strict=True):
        with drawn.again():
            again = network(part)
        again.backward(gradient)
    return value.detach()


def refuse_trained_batch_norm(network: nn.Module, chunk: int | None) -> None:
    """Refuse chunks where their gradients would not be those of the batch.

    A batch norm in training mode gives every sample statistics of the samples it is processed with: of a
    chunk, not of the batch.
    """
    if chunk is not None and has_trained_batch_norm(network):
        raise ValueError(
            f"training.chunk={chunk} would change what the network's batch norm sees: set "
            "network.freeze_batch_norm=true, or choose a network without batch norm, or training.accumulate"
        )


class _Draws:
    """Where the global generators stood at a moment, to draw the same numbers again."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cpu = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    @contextmanager
    def again(self) -> Iterator[None]:
        devices = [] if self._cuda is None else [self._device]
        with torch.random.fork_rng(devices=devices):
            torch.set_rng_state(self._cpu)
            if self._cuda is not None:
                torch.cuda.set_rng_state(self._cuda, self._device)
            yield
