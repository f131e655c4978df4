"""The one place where embeddings become similarities and weights become gradients.

Every loss here depends on the embeddings through a similarity matrix S (general pair weighting). A loss
states its value and its weights ∂L/∂S; this module normalises, multiplies, and carries the weights back.
Nothing of the size of S is kept for the backward pass except the weights themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Measured(NamedTuple):
    """What a loss makes of a similarity matrix.

    Attributes:
        value: the loss, a scalar.
        weights: ∂L/∂S, of the shape of S; ``None`` when nobody asked.
        parameter_gradients: ∂L/∂θ for each learnable parameter that the value depends on besides S.
        symmetric: promises that ``weights`` equals its transpose (only possible for a batch against itself).
    """

    value: Tensor
    weights: Tensor | None = None
    parameter_gradients: tuple[Tensor, ...] = ()
    symmetric: bool = False


Measure = Callable[[Tensor, bool], Measured]
"""``measure(S, with_weights)``; it may overwrite S."""


class full_precision(torch.autocast):  # noqa: N801 - reads as the statement it is
    """Switch autocast off for the device of ``tensor``: similarities need float32."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__(tensor.device.type, enabled=False)


def at_least_float32(tensor: Tensor) -> Tensor:
    """Half precision becomes float32; float32 and float64 stay."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def refuse_second_derivative() -> None:
    """The weights are constants of the backward pass: a second derivative would silently lack their part."""
    if torch.is_grad_enabled():
        raise RuntimeError("nearkin losses can be differentiated once only: do not use create_graph=True")


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, norms: Tensor) -> Tensor:
        # A zero vector has no direction: it stays zero and receives no gradient, instead of one of 1/ε.
        inverse = torch.where(norms > 0, norms.reciprocal(), 0).unsqueeze(-1)
        units = rows * inverse
        ctx.save_for_backward(units, inverse)
        return units

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        refuse_second_derivative()
        units, inverse = ctx.saved_tensors
        radial = (units * gradient).sum(dim=-1, keepdim=True)
        return torch.addcmul(gradient, units, radial, value=-1).mul_(inverse), None


def normalise(rows: Tensor, norms: Tensor | None = None) -> Tensor:
    """Rows (the last dimension) scaled to length 1; a zero row stays zero.

    Args:
        rows: ``(..., D)``.
        norms: their lengths ``(...)``, where the caller has them already.
    """
    if norms is None:
        norms = torch.linalg.vector_norm(rows.detach(), dim=-1)
    units: Tensor = _Normalise.apply(rows, norms)  # type: ignore[no-untyped-call]
    return units


class _ThroughSimilarities(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, measure: Measure, left: Tensor, right: Tensor | None, *parameters: Tensor
    ) -> Tensor:
        S = left @ (left if right is None else right).mT
        measured = measure(S, True)
        assert measured.weights is not None
        ctx.symmetric = measured.symmetric
        ctx.save_for_backward(left, right, measured.weights, *measured.parameter_gradients)
        return measured.value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        left, right, weights, *parameter_gradients = ctx.saved_tensors
        to_left = to_right = None
        with full_precision(left):
            if right is None:
                to_left = _to_both_sides(weights, left, ctx.symmetric).mul_(gradient)
            else:
                if ctx.needs_input_grad[1]:
                    to_left = (weights @ right).mul_(gradient)
                if ctx.needs_input_grad[2]:
                    to_right = (weights.mT @ left).mul_(gradient)
        return None, to_left, to_right, *(gradient * own for own in parameter_gradients)


def _to_both_sides(weights: Tensor, rows: Tensor, symmetric: bool) -> Tensor:
    """∂L/∂z of a batch against itself: each row is an anchor and somebody's reference."""
    if symmetric:
        return (weights @ rows).mul_(2)
    return (weights @ rows).add_(weights.mT @ rows)


def through_similarities(
    left: Tensor, right: Tensor | None, measure: Measure, parameters: Sequence[Tensor] = ()
) -> Tensor:
    """The value of ``measure`` on ``left @ right.mT``, differentiable in both and in ``parameters``.

    Args:
        left: ``(..., B, D)``.
        right: ``(..., R, D)``, or ``None`` to compare ``left`` with itself.
        measure: gives the value, and the weights ∂L/∂S where they are wanted.
        parameters: learnable parameters that the value depends on, in the order of ``parameter_gradients``.
    """
    inputs = [left, *([] if right is None else [right]), *parameters]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs):
        value: Tensor = _ThroughSimilarities.apply(  # type: ignore[no-untyped-call]
            measure, left, right, *parameters
        )
        return value
    return measure(left @ (left if right is None else right).mT, False).value


def safe_distance(S: Tensor) -> tuple[Tensor, Tensor]:
    """``D = √(2 − 2S)`` and ``1/D``; both are 0 where the two coincide up to rounding.

    There the distance has no derivative, and 1/D would only magnify the rounding.
    """
    squared = torch.mul(S, -2).add_(2)
    squared.masked_fill_(squared < 8 * torch.finfo(S.dtype).eps, 0)
    D = squared.sqrt_()
    return D, torch.where(D > 0, D.reciprocal(), 0)


def log_sum_exp_(T: Tensor, dim: int) -> Tensor:
    """``log Σ eᵗ`` along ``dim``, and T becomes its gradient (the softmax), in place.

    Entries of −∞ are outside the sum; an empty sum gives −∞ and no gradient.

    >>> T = torch.tensor([[0.0, 0.0, -torch.inf]])
    >>> log_sum_exp_(T, dim=1)
    tensor([0.6931])
    >>> T
    tensor([[0.5000, 0.5000, 0.0000]])
    """
    shift = T.amax(dim=dim, keepdim=True).clamp_min_(torch.finfo(T.dtype).min)
    total = T.sub_(shift).exp_().sum(dim=dim, keepdim=True)
    T.div_(total.clamp_min(torch.finfo(T.dtype).tiny))
    return shift.add_(total.log_()).squeeze(dim)


def log_one_plus_sum_exp_(T: Tensor, dim: int) -> Tensor:
    """``log(1 + Σ eᵗ)`` along ``dim``, and T becomes its gradient, in place.

    Entries of −∞ are outside the sum; an empty sum gives an exact 0 and no gradient.

    >>> T = torch.tensor([[0.0, 0.0, -torch.inf]])
    >>> log_one_plus_sum_exp_(T, dim=1)
    tensor([1.0986])
    >>> T
    tensor([[0.3333, 0.3333, 0.0000]])
    """
    shift = T.amax(dim=dim, keepdim=True).clamp_min_(0)
    T.sub_(shift).exp_()
    shift = shift.squeeze(dim)
    beyond_one = torch.expm1(-shift).add_(T.sum(dim=dim))
    T.div_((1 + beyond_one).unsqueeze(dim))
    return shift.add_(beyond_one.log1p_())
