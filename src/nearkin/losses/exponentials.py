"""Sums of exponentials, as nearly every loss has them: stable, and in few passes over a matrix.

Functions that end in ``_`` overwrite their input with what its gradient is made of, for losses that state
their weights ∂L/∂S in closed form. :func:`log_sum_exp` and :func:`log_one_plus_sum_exp` are left to autograd.
"""

from __future__ import annotations

from math import exp, inf, log, sqrt
from typing import NamedTuple

import torch
from torch import Tensor


def log_sum_exp(T: Tensor, among: Tensor, dim: int = 1) -> Tensor:
    """``log Σ eᵗ`` along ``dim`` over the entries in ``among``; about the lowest number if there is none.

    >>> log_sum_exp(torch.tensor([[0.0, 0.0, 5.0]]), torch.tensor([[True, True, False]]))
    tensor([0.6931])
    """
    # Not −∞: a row of nothing else would have no gradient that is a number.
    return T.masked_fill(~among, torch.finfo(T.dtype).min).logsumexp(dim)


def log_one_plus_sum_exp(T: Tensor, among: Tensor, dim: int = 1) -> Tensor:
    """``log(1 + Σ eᵗ)`` along ``dim`` over the entries where ``among`` holds; an empty sum gives 0.

    >>> log_one_plus_sum_exp(torch.tensor([[0.0, 0.0, 5.0]]), torch.tensor([[True, True, False]]))
    tensor([1.0986])
    """
    total = log_sum_exp(T, among, dim)
    return torch.logaddexp(total, torch.zeros_like(total))


class Outside(NamedTuple):
    """Which entries of a matrix are outside a sum.

    Attributes:
        mask: 1 where an entry counts and 0 where it does not; or
        columns: ``(B, 1)``, the one column of each row that does not.
    """

    mask: Tensor | None = None
    columns: Tensor | None = None

    def zero_(self, T: Tensor) -> Tensor:
        """Make the entries outside 0, in place."""
        if self.columns is not None:
            T.scatter_(1, self.columns, 0)
        return T if self.mask is None else T.mul_(self.mask)

    def drop_(self, T: Tensor) -> Tensor:
        """Make the entries outside the lowest number there is, in place."""
        lowest = torch.finfo(T.dtype).min
        if self.columns is not None:
            T.scatter_(1, self.columns, lowest)
        return T if self.mask is None else T.masked_fill_(self.mask == 0, lowest)


_NONE = Outside()


class Exponentials(NamedTuple):
    """What a sum of exponentials gives.

    Attributes:
        log: of the sum, without the summed dimension.
        share: the exponentials times it are the gradient of ``log``; it keeps that dimension.
    """

    log: Tensor
    share: Tensor


def log_sum_exp_(T: Tensor, dim: int, bound: float = inf, outside: Outside = _NONE) -> Exponentials:
    """``log Σ eᵗ`` along ``dim``; T becomes exponentials, in place, which times ``share`` are its gradient.

    An empty sum gives −∞ and no gradient.

    Args:
        T: the exponents.
        dim: the dimension to sum.
        bound: a promise that ``|t| ≤ bound``. Cosines have one, and where ``e^{±bound}`` is a comfortable
            number nothing has to be shifted.
        outside: what is not in the sum.

    >>> T = torch.tensor([[0.0, 0.0, 5.0]])
    >>> log, share = log_sum_exp_(T, dim=1, outside=Outside(columns=torch.tensor([[2]])))
    >>> log
    tensor([0.6931])
    >>> T * share
    tensor([[0.5000, 0.5000, 0.0000]])
    """
    tiny = torch.finfo(T.dtype).tiny
    if exponentials_fit(T, dim, bound):
        total = outside.zero_(T.exp_()).sum(dim=dim, keepdim=True)
        return Exponentials(total.log().squeeze(dim), total.clamp_min_(tiny).reciprocal_())
    shift = outside.drop_(T).amax(dim=dim, keepdim=True)
    total = outside.zero_(exp_(T.sub_(shift))).sum(dim=dim, keepdim=True)
    log = shift.add_(total.log()).squeeze(dim)
    return Exponentials(log, total.clamp_min_(tiny).reciprocal_())


def log_one_plus_sum_exp_(
    T: Tensor, dim: int, bound: float = inf, outside: Outside = _NONE, offset: float = 0.0
) -> Exponentials:
    """``log(1 + Σ e^{t + offset})`` along ``dim``; T becomes exponentials, in place, as above.

    An empty sum gives an exact 0 and no gradient. Arguments as for :func:`log_sum_exp_`, but ``bound`` only
    promises ``t ≤ bound``: beside the 1, terms far below 0 may vanish. What is added to every exponent costs
    least as ``offset``.

    >>> T = torch.tensor([[0.0, 0.0, 5.0]])
    >>> mask = torch.tensor([[1.0, 1.0, 0.0]])
    >>> log, share = log_one_plus_sum_exp_(T, dim=1, outside=Outside(mask=mask))
    >>> log
    tensor([1.0986])
    >>> T * share
    tensor([[0.3333, 0.3333, 0.0000]])
    """
    if exponentials_fit(T, dim, bound + max(0, offset)):
        total = outside.zero_(T.exp_()).sum(dim=dim, keepdim=True)
        if offset:
            total.mul_(exp(offset))
        share = (total + 1).reciprocal_()
        return Exponentials(total.log1p_().squeeze(dim), share.mul_(exp(offset)) if offset else share)
    if offset:
        T.add_(offset)
    shift = outside.drop_(T).amax(dim=dim, keepdim=True).clamp_min_(0)
    total = outside.zero_(exp_(T.sub_(shift))).sum(dim=dim, keepdim=True)
    beyond_one = total.add_(torch.expm1(-shift))
    log = shift.add_(beyond_one.log1p()).squeeze(dim)
    return Exponentials(log, beyond_one.add_(1).reciprocal_())


def exp_(T: Tensor) -> Tensor:
    """``eᵗ`` for ``t ≤ 0`` in place, and 0 below the root of the smallest number: underflow is slow.

    Even a billion such terms are lost beside the largest, which is 1.
    """
    return without_underflow_(T.clamp_(min=log(torch.finfo(T.dtype).tiny) / 2).exp_())


def without_underflow_(factors: Tensor) -> Tensor:
    """Factors from 0 to 1 whose products with each other cannot underflow: the tiniest become 0, in place."""
    return torch.threshold_(factors, 2 * sqrt(torch.finfo(factors.dtype).tiny), 0)


def exponentials_fit(T: Tensor, dim: int, bound: float) -> bool:
    """Whether a sum of ``e^{±bound}`` along ``dim`` stays far inside the range of the dtype."""
    return bound + log(max(1, T.shape[dim])) < 0.95 * log(torch.finfo(T.dtype).max)
