"""The proxy repulsion loss."""

from __future__ import annotations

from math import inf
from typing import Any

import torch
from torch import Tensor

from nearkin.losses.base import register, require_non_negative, require_positive
from nearkin.losses.proxy import ProxyLoss
from nearkin.losses.proxy_anchor import positive_term
from nearkin.losses.search_space import MARGIN, SCALE, space
from nearkin.losses.similarity import Measured, log_one_plus_sum_exp_, normalise, refuse_second_derivative

_CHUNK = 1 << 24
"""Products between proxies held at a time."""


@register("proxy_repulsion")
class ProxyRepulsion(ProxyLoss):
    """Proxies pull their samples and repel each other, directly or as the samples see them.

    Equation:
        L = (1/|W⁺|) Σ_{c∈W⁺} log(1 + Σ_{x∈X_c⁺} e^{−α(S − δ)})
            + (1/C) Σ_c log(1 + Σ_{c'≠c} e^{α(R_cc' + δ)}),
        R_cc' = v_c·v_c', or with through_samples=True Σ_x (v_c·z)(z·v_c') over the batch

    Source:
        The thesis "Metric Learning: A Deep Dive", chapter 6: its own loss; variant 2 is
        through_samples=True.

    When to use:
        When proxies of different classes crowd together. Through samples, only directions that the batch
        occupies count, and the repulsion grows with the batch.

    Args:
        num_classes: C.
        embedding_dim: D.
        alpha: α.
        margin: δ.
        through_samples: which R.
        generator: starts the proxies.

    Example:
        >>> loss = ProxyRepulsion(num_classes=3, embedding_dim=4)
        >>> bool(loss(torch.eye(4), torch.tensor([0, 1, 2, 0])) > 0)
        True
    """

    search_space = space(alpha=SCALE, margin=MARGIN)

    def __init__(
        self,
        num_classes: int,
        embedding_dim: int,
        *,
        alpha: float = 32.0,
        margin: float = 0.1,
        through_samples: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        require_positive(alpha=alpha)
        require_non_negative(margin=margin)
        super().__init__(num_classes, embedding_dim, generator)
        self.alpha = alpha
        self.margin = margin
        self.through_samples = through_samples

    def measure(self, S: Tensor, labels: Tensor, with_weights: bool) -> Measured:
        """The positive term of Proxy-Anchor and, through samples, the repulsion: R is SᵀS."""
        own = labels.unsqueeze(1)
        pulls = S.gather(1, own).squeeze(1).sub_(self.margin).mul_(-self.alpha)
        per_class, shares, present = positive_term(
            pulls, labels, self.num_classes, self.alpha * (1 + self.margin)
        )
        value = per_class.sum() / present
        weights = None
        if self.through_samples:
            repelled, weights = repulsion(S, self.alpha, self.margin, with_weights)
            value = value + repelled
        if not with_weights:
            return Measured(value)
        weights = torch.zeros_like(S) if weights is None else weights
        return Measured(value, weights.scatter_add_(1, own, (shares * (-self.alpha / present)).unsqueeze(1)))

    def value(self, embeddings: Tensor, norms: Tensor, proxies: Tensor, labels: Tensor) -> Tensor:
        """Adds the repulsion where it does not go through the samples: R is VVᵀ."""
        value = super().value(embeddings, norms, proxies, labels)
        if self.through_samples:
            return value
        direct: Tensor = _Repulsion.apply(  # type: ignore[no-untyped-call]
            normalise(proxies), self.alpha, self.margin
        )
        return value + direct


def repulsion(
    columns: Tensor, alpha: float, margin: float, with_weights: bool
) -> tuple[Tensor, Tensor | None]:
    """``(1/C) Σ_c log(1 + Σ_{c'≠c} e^{α(R_cc' + δ)})``, R the inner products of columns, and its gradient.

    R is symmetric and C × C: some rows are made at a time, and each contributes to the gradient twice.

    Args:
        columns: ``(N, C)``.
        alpha: α.
        margin: δ.
        with_weights: whether the gradient ``(N, C)`` is wanted.
    """
    C = columns.shape[1]
    value = columns.new_zeros(())
    gradient = torch.zeros_like(columns) if with_weights else None
    at_once = max(1, _CHUNK // C)
    for start in range(0, C, at_once):
        chunk = columns[:, start : start + at_once]
        T = (chunk.T @ columns).add_(margin).mul_(alpha)
        T.diagonal(start).fill_(-inf)
        per_class, share = log_one_plus_sum_exp_(T, dim=1)
        value += per_class.sum() / C
        if gradient is not None:
            weights = T.mul_(share.mul_(alpha / C))
            gradient.addmm_(chunk, weights)
            gradient[:, start : start + at_once].addmm_(columns, weights.T)
    return value, gradient


class _Repulsion(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, proxies: Tensor, alpha: float, margin: float) -> Tensor:
        value, gradient = repulsion(proxies.T, alpha, margin, with_weights=True)
        ctx.save_for_backward(gradient)
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        refuse_second_derivative()
        (to_columns,) = ctx.saved_tensors
        return to_columns.T * gradient, None, None
