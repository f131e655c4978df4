"""A step of training after a cached trunk: in bf16 as nearkin takes it, in torch's own bf16, and in float32.

    python benchmarks/precision.py

The part of EfficientNet-Lite0 that comes after ``blocks.4``, with random weights, a batch of 120 images of
256 pixels, and AdamW. Torch's autocast leaves the backward pass of depthwise convolutions to oneDNN's bf16;
ours computes that one in float32. The floor is the matrix products of the step in bf16: three for every
pointwise convolution and for the head. It needs a processor with instructions for bf16.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

import harness
from harness import FLOOR, OURS, Benchmark, Options, Taken
from nearkin import networks
from nearkin.allocation import keep_freed_memory
from nearkin.training.mixed_precision import autocast, steps_are_faster_in_bf16

STAGE, SIZE, BATCH = "blocks.4", 256, 120
CPU = torch.device("cpu")


def trained_part() -> tuple[networks.Network, tuple[int, ...]]:
    """What comes after the trunk, and the shape of what the trunk gives it."""
    torch.manual_seed(0)
    network = networks.build("timm:tf_efficientnet_lite0", embedding_dim=512, pooling="avg+max", size=SIZE)
    networks.freeze_batch_norm(network)
    trunk, rest = network.to(memory_format=torch.channels_last).split(STAGE)
    with torch.no_grad():
        given = trunk(torch.zeros(1, 3, SIZE, SIZE))
    return rest, tuple(given.shape[1:])


def step(
    network: networks.Network, inputs: Tensor, precision: Callable[[], AbstractContextManager[None]]
) -> Callable[[], None]:
    """One step, its forward pass in a precision; the loss is cheap, so that the network is measured."""
    network = copy.deepcopy(network).train()
    optimiser = torch.optim.AdamW(network.param_groups(1e-5))

    def run() -> None:
        optimiser.zero_grad()
        with precision():
            rows = network(inputs)
        rows.float().square().mean().backward()
        optimiser.step()

    return run


def products(network: networks.Network, inputs: Tensor) -> Callable[[], None]:
    """The matrix products of a step in bf16: forward, towards the inputs, towards the weights."""
    found: list[tuple[Tensor, Tensor, Tensor]] = []

    def note(layer: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> None:
        if isinstance(layer, nn.Conv2d) and (layer.groups > 1 or layer.kernel_size != (1, 1)):
            return
        rows = made.numel() // made.shape[1]
        sizes = ((rows, given[0].shape[1]), (given[0].shape[1], made.shape[1]), (rows, made.shape[1]))
        found.append(tuple(torch.randn(size).bfloat16() for size in sizes))

    layers = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    hooks = [layer.register_forward_hook(note) for layer in layers]
    with torch.no_grad():
        network(inputs)
    for hook in hooks:
        hook.remove()

    def run() -> None:
        for before, weight, after in found:
            torch.mm(before, weight)
            torch.mm(after, weight.T)
            torch.mm(before.T, after)

    return run


def measure(options: Options) -> Iterator[Taken]:
    """A step in every precision; milliseconds per image."""
    keep_freed_memory()  # as the commands do: all sides gain by it
    network, shape = trained_part()
    batch = 4 if options.small else BATCH
    inputs = torch.randn(batch, *shape).contiguous(memory_format=torch.channels_last)
    sides = {
        FLOOR: products(network, inputs),
        OURS: step(network, inputs, lambda: autocast("bf16", CPU)),
        "torch's bf16": step(network, inputs, lambda: torch.autocast("cpu", torch.bfloat16)),
        "float32": step(network, inputs, nullcontext),
    }
    taken = harness.take_turns(sides, rounds=8, least=2, seed=options.process, scale=1000 / batch)
    yield Taken(f"a step after {STAGE}, batch {BATCH}", taken, "ms per image")


def missing(_: Options) -> str | None:
    return None if steps_are_faster_in_bf16() else "it needs a processor with instructions for bf16"


BENCHMARKS = [
    Benchmark(
        "precision",
        "Training EfficientNet-Lite0 after a cached trunk in bf16",
        "its matrix products in bf16",
        measure,
        packages=("torch", "timm"),
        missing=missing,
    )
]

if __name__ == "__main__":
    harness.main(BENCHMARKS, __file__, __doc__)
