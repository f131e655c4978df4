"""LoRA: a transformer learns through small additions to its weights, which become part of them in the end."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from nearkin.networks.freezing import in_frozen_batch_norm


class LowRank(nn.Module):
    """``W + (α / r) B A``, of which only A ``(r, in)`` and B ``(out, r)`` are trained.

    Hu, Shen, Wallis, Allen-Zhu, Li, Wang, Wang, Chen. LoRA: Low-Rank Adaptation of Large Language Models.
    ICLR 2022. B starts at 0, so that the network starts as it was; α is r.

    Args:
        weight: W ``(out, in)``.
        rank: r.
    """

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        out, inputs = weight.shape
        self.A = nn.Parameter(weight.new_empty(rank, inputs))
        self.B = nn.Parameter(weight.new_zeros(out, rank))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))

    def forward(self, weight: Tensor) -> Tensor:
        """The weight with what was added to it."""
        return weight + self.B @ self.A


def add_lora(network: nn.Module, rank: int, *, seed: int = 0) -> int:
    """Hold a transformer's backbone still but for low-rank additions to its linear layers; returns how many.

    Args:
        network: With a ``backbone``, whose linear layers (those of attention and of the MLPs) are adapted.
        rank: r; 4 to 16 are usual.
        seed: Draws the start of A; the global random state is left as it was.

    Raises:
        ValueError: The backbone is no transformer: it has no attention.

    >>> from nearkin import networks
    >>> vit = networks.build("timm:vit_tiny_patch16_224", embedding_dim=8, size=32, img_size=32, depth=2)
    >>> add_lora(vit, 4)
    8
    """
    backbone = network.get_submodule("backbone")
    if not any("attention" in type(module).__name__.lower() for module in backbone.modules()):
        raise ValueError("network.lora is for transformers, and this network has no attention")
    layers = [module for module in backbone.modules() if type(module) is nn.Linear]
    backbone.requires_grad_(False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for layer in layers:
            parametrize.register_parametrization(layer, "weight", LowRank(layer.weight, rank))
            layer.parametrizations.weight.original.requires_grad_(False)  # type: ignore[union-attr]
    return len(layers)


def merge_lora(network: nn.Module) -> None:
    """Make what :func:`add_lora` added part of the weights, for good; a network without it stays as it is."""
    for module in list(network.modules()):
        if parametrize.is_parametrized(module, "weight"):
            held = module.parametrizations["weight"]  # type: ignore[index]
            if any(isinstance(one, LowRank) for one in held):
                parametrize.remove_parametrizations(module, "weight", leave_parametrized=True)


def held_still(network: nn.Module) -> set[nn.Parameter]:
    """Parameters that no training moves: of frozen batch norms, and what low-rank additions stand on."""
    still = in_frozen_batch_norm(network)
    if any(isinstance(module, LowRank) for module in network.modules()):
        backbone = network.get_submodule("backbone")
        added = {
            p for module in backbone.modules() if isinstance(module, LowRank) for p in module.parameters()
        }
        still |= {parameter for parameter in backbone.parameters() if parameter not in added}
    return still
