"""Soft histograms of similarities: each is shared by the two nodes around it, so that there is a slope."""

from __future__ import annotations

import torch
from torch import Tensor


def shares_of_nodes(values: Tensor, low: float, high: float, bins: int) -> tuple[Tensor, Tensor]:
    """The node below each value, and the share that the node above it has; the rest is the lower one's.

    Args:
        values: of any shape, between ``low`` and ``high`` up to rounding.
        low: where the first node is.
        high: where the last one is.
        bins: how many intervals there are between nodes, one less than nodes.

    >>> shares_of_nodes(torch.tensor([0.0, 0.25, 1.0]), 0, 1, 2)
    (tensor([0, 0, 1]), tensor([0.0000, 0.5000, 1.0000]))
    """
    places = torch.mul(values - low, bins / (high - low))
    below = places.detach().floor().clamp_(0, bins - 1)
    return below.long(), places - below


def histogram(below: Tensor, above_share: Tensor, counts: Tensor, bins: int) -> Tensor:
    """How much of each row ``(B, R)`` is at each node, ``(B, bins + 1)``, differentiable in the shares.

    Args:
        below: the node below each value.
        above_share: the share of the node above it.
        counts: how often each value counts.
        bins: as above.
    """
    upper = above_share * counts
    nodes = upper.new_zeros(len(upper), bins + 1).scatter_add(1, below, counts - upper)
    return nodes.scatter_add(1, below + 1, upper)
