"""Each positive of an anchor by itself against all its negatives: ``log(1 + Σ_n e^{a_n − b_p})``."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from nearkin.losses.exponentials import Outside, log_sum_exp, log_sum_exp_, without_underflow_


class AgainstAll(NamedTuple):
    """What the terms of each anchor give.

    Attributes:
        sums: over its positives, ``(B,)``.
        by_negatives: the sum's derivative by a, ``(B, R)``.
        by_positives: the same by b.
    """

    sums: Tensor
    by_negatives: Tensor
    by_positives: Tensor


def sum_against_all(a: Tensor, b: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    """``Σ_p log(1 + Σ_n e^{a_n − b_p})`` of each row, differentiable.

    Args:
        a: the exponents of negatives, ``(B, R)``.
        b: the exponents of positives, ``(B, R)`` too.
        positive: which pairs are positive, boolean ``(B, R)``.
        negative: which are negative.
    """
    terms = softplus(log_sum_exp(a, negative).unsqueeze(1) - b)
    return torch.where(positive, terms, 0).sum(dim=1)


def sum_against_all_(
    a: Tensor, b: Tensor, positive: Tensor, negative: Tensor, bound: float = inf
) -> AgainstAll:
    """The same in closed form; overwrites a and b. The masks are ones and zeros, ``|a| ≤ bound``.

    >>> a, b = torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 0.0]])
    >>> found = sum_against_all_(a, b, torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]]))
    >>> found.sums, found.by_negatives, found.by_positives
    (tensor([0.6931]), tensor([[0.0000, 0.5000]]), tensor([[-0.5000, -0.0000]]))
    """
    near, share = log_sum_exp_(a, 1, bound, Outside(negative))
    differences = torch.sub(near.unsqueeze(1), b, out=b)
    sums = softplus(differences).mul_(positive).sum(dim=1)
    chances = without_underflow_(differences.sigmoid_()).mul_(positive)
    return AgainstAll(sums, a.mul_(share.mul_(chances.sum(dim=1, keepdim=True))), chances.neg_())
