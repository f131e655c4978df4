"""The one place where embeddings become similarities and weights become gradients.

Every loss here depends on the embeddings through a similarity matrix S (general pair weighting). A loss
states its value and its weights ∂L/∂S; this module normalises, multiplies, and carries the weights back.
Nothing of the size of S is kept for the backward pass except the weights themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import exp, inf, log, sqrt
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Measured(NamedTuple):
    """What a loss makes of a similarity matrix.

    Attributes:
        value: the loss, a scalar.
        weights: ∂L/∂S, of the shape of S, to be overwritten; ``None`` when nobody asked.
        parameter_gradients: ∂L/∂θ for each learnable parameter that the value depends on besides S.
        symmetric: promises that ``weights`` equals its transpose (only possible for a batch against itself).
    """

    value: Tensor
    weights: Tensor | None = None
    parameter_gradients: tuple[Tensor, ...] = ()
    symmetric: bool = False


class Side(NamedTuple):
    """One side of a comparison.

    Attributes:
        rows: ``(..., B, D)``.
        norms: their lengths ``(..., B, 1)``, to divide them by; without, they are compared as they are.
    """

    rows: Tensor
    norms: Tensor | None = None


Measure = Callable[[Tensor, bool], Measured]
"""``measure(S, with_weights)``; it leaves S as it is."""


def full_precision(tensor: Tensor) -> AbstractContextManager[Any]:
    """Autocast switched off on the device of ``tensor``, if it is on: similarities need float32."""
    device = tensor.device.type
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


def at_least_float32(tensor: Tensor) -> Tensor:
    """Half precision becomes float32; float32 and float64 stay."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def lengths(rows: Tensor) -> Tensor:
    """``(..., 1)`` Euclidean lengths of ``(..., D)`` rows, as constants."""
    norms: Tensor = torch.linalg.vector_norm(rows.detach(), dim=-1, keepdim=True)
    return norms


def refuse_second_derivative() -> None:
    """The weights are constants of the backward pass: a second derivative would silently lack their part."""
    if torch.is_grad_enabled():
        raise RuntimeError("nearkin losses can be differentiated once only: do not use create_graph=True")


def inverse_of(norms: Tensor) -> Tensor:
    """What rows of these lengths are multiplied by; 0 for a zero vector, which has no direction.

    So it stays zero and receives no gradient, instead of one of 1/ε. Zero is what is so short that its square
    is no number any more.
    """
    return torch.threshold(norms, sqrt(torch.finfo(norms.dtype).tiny), inf).reciprocal_()


def is_one(gradient: Tensor) -> bool:
    """Whether a gradient that arrives is the 1 it mostly is; only asked where an answer costs nothing."""
    return gradient.is_cpu and gradient.item() == 1


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        inverse = inverse_of(lengths(rows))
        units = rows * inverse
        ctx.save_for_backward(units, inverse)
        return units

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        refuse_second_derivative()
        units, inverse = ctx.saved_tensors
        scratch = units * gradient
        radial = scratch.sum(dim=-1, keepdim=True)
        torch.mul(units, radial, out=scratch)
        return torch.sub(gradient, scratch, out=scratch).mul_(inverse)


def normalise(rows: Tensor) -> Tensor:
    """Rows (the last dimension) scaled to length 1; a zero row stays zero.

    >>> normalise(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    units: Tensor = _Normalise.apply(rows)  # type: ignore[no-untyped-call]
    return units


def _with_weights(measure: Measure, S: Tensor) -> Measured:
    """What ``measure`` makes of S, which it must not touch: the gradient would be wrong without a word."""
    version = S._version
    measured = measure(S, True)
    if S._version != version:
        raise RuntimeError("the measure of a loss must leave the similarities as they are: copy them first")
    return measured


class _AmongRows(torch.autograd.Function):
    """Rows compared with each other.

    The gradient of a unit vector z_i is ``Σ_j V_ij z_j`` with V = W + Wᵀ, and its part along z_i, which
    normalisation takes away, is ``Σ_j V_ij S_ij``: B × B numbers tell it, and in the diagonal of V it costs
    nothing.
    """

    @staticmethod
    def forward(ctx: Any, measure: Measure, rows: Tensor, norms: Tensor | None, *_: Tensor) -> Tensor:
        inverse = None if norms is None else inverse_of(norms)
        units = rows if inverse is None else rows * inverse
        S = units @ units.mT
        value, weights, parameter_gradients, symmetric = _with_weights(measure, S)
        assert weights is not None
        # Each row is an anchor and somebody's reference.
        both = weights if symmetric else _plus_transpose(weights)
        if inverse is not None:
            both.diagonal(dim1=-2, dim2=-1).sub_(S.mul_(both).sum(dim=-1))
        ctx.share = 2 if symmetric else 1
        ctx.save_for_backward(units, inverse, both, *parameter_gradients)
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        units, inverse, both, *to_parameters = ctx.saved_tensors
        scale = ctx.share if is_one(gradient) else ctx.share * gradient
        with full_precision(units):
            to_rows = (both @ units).mul_(scale if inverse is None else inverse * scale)
        return None, to_rows, None, *(gradient * own for own in to_parameters)


class _BetweenRows(torch.autograd.Function):
    """Rows compared with others.

    Inner products are divided by the lengths, and weights as well, instead of the rows themselves: B × R
    numbers, of which there are fewer as long as the batch is not much larger than the dimension.
    """

    @staticmethod
    def forward(ctx: Any, measure: Measure, *sides_and_parameters: Tensor) -> Tensor:
        left, left_norms, right, right_norms, *_ = sides_and_parameters
        # Embeddings made in inference mode may be compared, but only a copy may be kept.
        left, right = (rows.clone() if rows.is_inference() else rows for rows in (left, right))
        by_row = None if left_norms is None else inverse_of(left_norms)
        by_column = None if right_norms is None else inverse_of(right_norms).mT
        inverses = [inverse for inverse in (by_row, by_column) if inverse is not None]
        S = left @ right.mT
        for inverse in inverses:
            S.mul_(inverse)
        measured = _with_weights(measure, S)
        weights = measured.weights
        assert weights is not None
        if inverses:
            S.mul_(weights)
        along_left = None if by_row is None else S.sum(dim=-1, keepdim=True).mul_(by_row.square())
        along_right = None if by_column is None else S.sum(dim=-2, keepdim=True).mul_(by_column.square())
        for inverse in inverses:
            weights.mul_(inverse)
        ctx.save_for_backward(left, right, weights, along_left, along_right, *measured.parameter_gradients)
        return measured.value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        left, right, weights, along_left, along_right, *to_parameters = ctx.saved_tensors
        if not is_one(gradient):
            parts = (weights, along_left, along_right)
            weights, along_left, along_right = (None if part is None else part * gradient for part in parts)
        to_left = to_right = None
        with full_precision(left):
            if ctx.needs_input_grad[1]:
                to_left = weights @ right
                if along_left is not None:
                    to_left.addcmul_(left, along_left, value=-1)
            if ctx.needs_input_grad[3]:
                to_right = weights.mT @ left
                if along_right is not None:
                    to_right.addcmul_(right, along_right.mT, value=-1)
        return None, to_left, None, to_right, None, *(gradient * own for own in to_parameters)


_TILE = 256
"""Rows and columns of a tile that a processor's cache holds, however it is strided."""


def _plus_transpose(weights: Tensor) -> Tensor:
    """``W + Wᵀ``, tile by tile: across the strides of a large matrix every entry would be a cache miss."""
    size = weights.shape[-1]
    if size <= _TILE or not weights.is_cpu or weights.dim() > 2:
        return weights + weights.mT
    both = torch.empty_like(weights)
    starts = range(0, size, _TILE)
    for rows, columns in (
        (slice(i, i + _TILE), slice(j, j + _TILE)) for i in starts for j in starts if j >= i
    ):
        torch.add(weights[rows, columns], weights[columns, rows].mT, out=both[rows, columns])
        if rows != columns:
            both[columns, rows] = both[rows, columns].mT
    return both


def through_similarities(
    measure: Measure, left: Side, right: Side | None = None, parameters: Sequence[Tensor] = ()
) -> Tensor:
    """The value of ``measure`` on the similarities of ``left`` and ``right``, differentiable in all inputs.

    Args:
        measure: gives the value, and the weights ∂L/∂S where they are wanted.
        left: ``(..., B, D)``.
        right: ``(..., R, D)``, or ``None`` to compare ``left`` with itself.
        parameters: learnable parameters that the value depends on, in the order of ``parameter_gradients``.
    """
    sides = left if right is None else (*left, *right)
    inputs = (*sides, *parameters)
    if torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in inputs):
        node = _AmongRows if right is None else _BetweenRows
        value: Tensor = node.apply(measure, *inputs)  # type: ignore[no-untyped-call]
        return value
    rows, others = (
        side.rows if side.norms is None else side.rows * inverse_of(side.norms)
        for side in (left, right or left)
    )
    return measure(rows @ others.mT, False).value


def inverse_distance(S: Tensor, out: Tensor | None = None) -> Tensor:
    """``1/D = 1/√(2 − 2S)``, 0 where the two coincide up to rounding; in the place of ``out``, if given."""
    squared = torch.sub(S.new_full((), 2), S, alpha=2, out=out)  # torch.rsub, which takes no out
    return torch.threshold_(squared, 8 * torch.finfo(S.dtype).eps, inf).rsqrt_()


def safe_distance(S: Tensor) -> tuple[Tensor, Tensor]:
    """``D = √(2 − 2S)`` and ``1/D``; both are 0 where the two coincide up to rounding.

    There the distance has no derivative, and 1/D would only magnify the rounding.
    """
    squared = torch.rsub(S, 2, alpha=2)
    D = torch.threshold_(squared, 8 * torch.finfo(S.dtype).eps, 0).sqrt_()
    return D, D.reciprocal().nan_to_num_(posinf=0.0)


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
