"""The one place where embeddings become similarities and weights become gradients.

Every loss here depends on the embeddings through a similarity matrix S (general pair weighting). A loss
states its value as a function of S, and may state its weights ∂L/∂S as well; this module normalises,
multiplies, and carries the weights back. Nothing of the size of S is kept for the backward pass except the
weights themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import inf, sqrt
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Measured(NamedTuple):
    """What a loss makes of a similarity matrix.

    Attributes:
        value: the loss, a scalar.
        weights: ∂L/∂S, of the shape of S, to be overwritten; ``None`` where they were not asked for.
        parameter_gradients: ∂L/∂θ for each learnable parameter that the value depends on besides S.
    """

    value: Tensor
    weights: Tensor | None = None
    parameter_gradients: tuple[Tensor, ...] = ()


class Side(NamedTuple):
    """One side of a comparison.

    Attributes:
        rows: ``(B, D)``.
        norms: their lengths ``(B, 1)``, to divide them by; without, they are compared as they are.
    """

    rows: Tensor
    norms: Tensor | None = None

    def at(self, index: Tensor) -> Side:
        """Some of the rows."""
        norms = None if self.norms is None else self.norms.index_select(0, index)
        return Side(self.rows.index_select(0, index), norms)

    def followed_by(self, other: Side) -> Side:
        """These rows and, below them, those of another side."""
        norms = None
        if self.norms is not None and other.norms is not None:
            norms = torch.cat([self.norms, other.norms])
        return Side(torch.cat([self.rows, other.rows]), norms)


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


def inverse_of(norms: Tensor) -> Tensor:
    """What rows of these lengths are multiplied by; 0 for a zero vector, which has no direction.

    So it stays zero and receives no gradient, instead of one of 1/ε. Zero is what is so short that its square
    is no number any more.
    """
    return torch.threshold(norms, sqrt(torch.finfo(norms.dtype).tiny), inf).reciprocal()


def normalise(rows: Tensor) -> Tensor:
    """Rows (the last dimension) scaled to length 1, differentiable; a zero row stays zero.

    >>> normalise(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    return rows * inverse_of(torch.linalg.vector_norm(rows, dim=-1, keepdim=True))


def similarities(left: Side, right: Side | None = None) -> Tensor:
    """S ``(B, R)`` as a part of autograd's graph: of ``left`` and ``right``, or of ``left`` with itself."""
    rows, others = (
        side.rows if side.norms is None else normalise(side.rows) for side in (left, right or left)
    )
    return rows @ others.mT


def through_similarities(
    measure: Measure, left: Side, right: Side | None = None, parameters: Sequence[Tensor] = ()
) -> Tensor:
    """The value of ``measure`` on the similarities of ``left`` and ``right``, differentiable in all inputs.

    Args:
        measure: gives the value, and the weights ∂L/∂S where they are wanted.
        left: ``(B, D)``.
        right: ``(R, D)``, or ``None`` to compare ``left`` with itself, which may then be ``(..., B, D)``.
        parameters: learnable parameters that the value depends on, in the order of ``parameter_gradients``.
    """
    inputs = (*left, *((None, None) if right is None else right), *parameters)
    if torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in inputs):
        value: Tensor = _ThroughSimilarities.apply(  # type: ignore[no-untyped-call]
            measure, *inputs
        )
        return value
    return measure(similarities(left, right), False).value


def through_weights(measure: Measure, S: Tensor, parameters: Sequence[Tensor] = ()) -> Tensor:
    """The value of ``measure`` on similarities that are part of autograd's graph, by its weights ∂L/∂S."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (S, *parameters)):
        value: Tensor = _ThroughWeights.apply(measure, S, *parameters)  # type: ignore[no-untyped-call]
        return value
    return measure(S, False).value


def measure_by_autograd(
    value: Callable[[Tensor], Tensor], S: Tensor, parameters: Sequence[Tensor], with_weights: bool
) -> Measured:
    """What :func:`through_similarities` needs of a loss that states its value only."""
    if not with_weights:
        return Measured(value(S))
    with torch.enable_grad():
        S = S.detach().requires_grad_()
        result = value(S)
        if not result.requires_grad:
            return Measured(result, torch.zeros_like(S), tuple(map(torch.zeros_like, parameters)))
        weights, *own = torch.autograd.grad(result, [S, *parameters], materialize_grads=True)
    return Measured(result.detach(), weights, tuple(own))


class _ThroughSimilarities(torch.autograd.Function):
    """The gradient of a unit vector z_i is ``Σ_j W_ij z_j``, less its part along z_i, ``Σ_j W_ij S_ij``.

    Rows compared with themselves are both sides of every pair: V = W + Wᵀ takes the place of W, and the part
    along z_i costs nothing in the diagonal of V. Between two sides, inner products and weights are divided by
    the lengths instead of the rows: B × R numbers, of which there are mostly fewer.
    """

    @staticmethod
    def forward(ctx: Any, measure: Measure, *sides_and_parameters: Any) -> Tensor:
        left, left_norms, right, right_norms, *_ = sides_and_parameters
        # Embeddings made in inference mode may be compared, but only a copy may be kept.
        left, right = _ordinary(left), None if right is None else _ordinary(right)
        by_left, by_right = (
            None if norms is None else inverse_of(norms) for norms in (left_norms, right_norms)
        )
        if right is None:
            left = left if by_left is None else left * by_left
            S = left @ left.mT
        else:
            S = _scale(left @ right.mT, by_left, by_right)
        version = S._version
        value, weights, parameter_gradients = measure(S, True)
        if S._version != version:
            raise RuntimeError(
                "the measure of a loss must leave the similarities as they are: copy them first"
            )
        assert weights is not None
        along_left = along_right = None
        if right is None:
            weights = _plus_transpose(weights)
            if by_left is not None:
                weights.diagonal(dim1=-2, dim2=-1).sub_(S.mul_(weights).sum(dim=-1))
        elif by_left is not None and by_right is not None:
            S.mul_(weights)
            along_left = S.sum(dim=1, keepdim=True).mul_(by_left.square())
            along_right = S.sum(dim=0).unsqueeze(1).mul_(by_right.square())
            weights = _scale(weights, by_left, by_right)
        ctx.save_for_backward(left, by_left, along_left, right, along_right, weights, *parameter_gradients)
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        left, by_left, along_left, right, along_right, weights, *own = ctx.saved_tensors
        to_left = to_right = None
        with full_precision(left):
            if right is None:
                to_left = weights @ left
                to_left = to_left if by_left is None else to_left.mul_(by_left)
            else:
                if ctx.needs_input_grad[1]:
                    to_left = _across(weights @ right, left, along_left)
                if ctx.needs_input_grad[3]:
                    to_right = _across(weights.mT @ left, right, along_right)
        if not (gradient.is_cpu and gradient.item() == 1):  # as it mostly is
            to_left, to_right = (
                None if rows is None else rows.mul_(gradient) for rows in (to_left, to_right)
            )
        return None, to_left, None, to_right, None, *(gradient * part for part in own)


class _ThroughWeights(torch.autograd.Function):
    """The gradient of S is the weights."""

    @staticmethod
    def forward(ctx: Any, measure: Measure, S: Tensor, *parameters: Tensor) -> Tensor:
        value, weights, parameter_gradients = measure(S, True)
        ctx.save_for_backward(weights, *parameter_gradients)
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        return None, *(gradient * part for part in ctx.saved_tensors)


def _ordinary(rows: Tensor) -> Tensor:
    """A copy of what was made in inference mode, everything else as it is."""
    return rows.clone() if rows.is_inference() else rows


def _scale(S: Tensor, by_row: Tensor | None, by_column: Tensor | None) -> Tensor:
    """A matrix ``(B, R)`` times ``(B, 1)`` and ``(R, 1)``, in place, where these are given."""
    if by_row is None or by_column is None:
        return S
    return S.mul_(by_row).mul_(by_column.mT)


def _across(towards: Tensor, rows: Tensor, along: Tensor | None) -> Tensor:
    """Gradients ``(B, D)`` less their part along the rows, of which ``along`` tells the size; in place."""
    return towards if along is None else towards.addcmul_(rows, along, value=-1)


def refuse_second_derivative() -> None:
    """The weights are constants of the backward pass: a second derivative would silently lack their part."""
    if torch.is_grad_enabled():
        raise RuntimeError("nearkin losses can be differentiated once only: do not use create_graph=True")


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


def distance(S: Tensor) -> Tensor:
    """``D = √(2 − 2S)``, differentiable; 0 with derivative 0 where the two coincide up to rounding."""
    squared = 2 - 2 * S
    apart = squared > 8 * torch.finfo(S.dtype).eps
    return torch.where(apart, torch.where(apart, squared, 1).sqrt(), 0)


def distance_and_inverse(S: Tensor) -> tuple[Tensor, Tensor]:
    """``D = √(2 − 2S)`` and ``1/D``; both are 0 where the two coincide up to rounding.

    There the distance has no derivative, and 1/D would only magnify the rounding.
    """
    squared = torch.rsub(S, 2, alpha=2)
    D = torch.threshold_(squared, 8 * torch.finfo(S.dtype).eps, 0).sqrt_()
    return D, D.reciprocal().nan_to_num_(posinf=0.0)


def inverse_distance(S: Tensor) -> Tensor:
    """``1/D = 1/√(2 − 2S)``, differentiable; 0 where the two coincide up to rounding."""
    return torch.threshold(torch.rsub(S, 2, alpha=2), 8 * torch.finfo(S.dtype).eps, inf).rsqrt()
