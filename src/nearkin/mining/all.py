"""No mining: everything counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from nearkin.mining.base import Masks, register


@register("all")
@dataclass(frozen=True)
class All:
    """Every positive and every negative pair, and so every triplet.

    >>> import torch
    >>> same = torch.tensor([[False, True], [True, False]])
    >>> All()(torch.zeros(2, 2), same, ~same).positive is same
    True
    """

    traceable: ClassVar[bool] = True

    def __call__(self, similarities: Tensor, positive: Tensor, negative: Tensor, **_: Any) -> Masks:
        """The masks as they are."""
        return Masks(positive, negative)
