"""The ProxyGML loss."""

from __future__ import annotations

from math import ceil, inf
from typing import Any

import torch
from torch import Tensor

from nearkin.losses.base import register, require_count, require_non_negative, require_positive
from nearkin.losses.proxy import ProxyLoss
from nearkin.losses.search_space import MARGIN, Range, space
from nearkin.losses.similarity import Measured, normalise, refuse_second_derivative
from nearkin.losses.soft_triple import uniform_proxies
from nearkin.losses.softmax import cross_entropy_

_CHUNK = 1 << 24
"""Similarities between proxies held at a time."""


@register("proxy_gml")
class ProxyGML(ProxyLoss):
    """Each sample is classified on the small graph of its nearest proxies.

    Equation:
        L = mean over samples of −log softmax_c(Σ_{k selected} S_ck)_y over the classes with a selected proxy
            + λ · mean over all proxies of −log softmax_c(Σ_k u·u_ck)_{its class}

        Selected: the own M proxies and the nearest others, K = ⌈r·C·M⌉ (at least M) together.

    Source:
        Zhu, Yang, Deng, Cheng. Fewer is More: A Deep Graph Metric Learning Perspective Using Fewer Proxies.
        NeurIPS 2020. arXiv:2010.13636.

    When to use:
        Several proxies per class without the cost of comparing with all of them in the gradient. The proxies
        want a learning rate of their own (0.03 in the paper).

    Args:
        num_classes: C.
        embedding_dim: D.
        proxies_per_class: M.
        ratio: r, which part of all proxies a sample sees.
        regularization: λ.
        generator: starts the proxies.

    Example:
        >>> loss = ProxyGML(num_classes=3, embedding_dim=4, proxies_per_class=2)
        >>> bool(loss(torch.eye(4), torch.tensor([0, 1, 2, 0])) > 0)
        True
    """

    search_space = space(ratio=Range(0.01, 0.5, log=True), regularization=MARGIN)

    def __init__(
        self,
        num_classes: int,
        embedding_dim: int,
        *,
        proxies_per_class: int = 12,
        ratio: float = 0.05,
        regularization: float = 0.3,
        generator: torch.Generator | None = None,
    ) -> None:
        require_count(proxies_per_class=proxies_per_class)
        require_positive(ratio=ratio)
        require_non_negative(regularization=regularization)
        if ratio > 1:
            raise ValueError(f"ratio={ratio} must be at most 1: it is a part of all proxies")
        super().__init__(num_classes, embedding_dim, generator, proxies_per_class)
        self.proxies_per_class = proxies_per_class
        self.ratio = ratio
        self.regularization = regularization

    @property
    def selected_per_sample(self) -> int:
        """K, how many proxies a sample sees."""
        wanted = ceil(self.ratio * self.num_classes * self.proxies_per_class - 1e-9)  # 0.07 · 100 is 7, not 8
        return max(self.proxies_per_class, wanted)

    def initial_proxies(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Uniform in ±1/√(C·M), as the authors start them."""
        return uniform_proxies(shape, generator)

    def measure(self, S: Tensor, labels: Tensor, with_weights: bool) -> Measured:
        """Cross-entropy of the sums of selected similarities; a selected proxy weighs as its class does."""
        C, M = self.num_classes, self.proxies_per_class
        ranked = S.clone()
        ranked.view(-1, C, M).scatter_(1, labels.view(-1, 1, 1).expand(-1, 1, M), inf)
        nearest = ranked.topk(self.selected_per_sample, dim=1, sorted=False).indices
        selected = torch.zeros_like(S, dtype=torch.bool).scatter_(1, nearest, True)
        logits = torch.where(selected, S, 0).view(-1, C, M).sum(dim=2)
        logits.masked_fill_(~selected.view(-1, C, M).any(dim=2), -inf)
        value, towards_classes = cross_entropy_(logits, labels.unsqueeze(1))
        if not with_weights:
            return Measured(value)
        return Measured(value, towards_classes.repeat_interleave(M, dim=1).mul_(selected))

    def value(self, embeddings: Tensor, norms: Tensor, proxies: Tensor, labels: Tensor) -> Tensor:
        """Adds the classification of the proxies by each other."""
        value = super().value(embeddings, norms, proxies, labels)
        if self.regularization == 0:
            return value
        return value + self.regularization * proxies_classify_proxies(normalise(proxies))


def proxies_classify_proxies(proxies: Tensor) -> Tensor:
    """Mean over all proxies ``(C, M, D)`` of the cross-entropy of their similarities to all, summed by class.

    A sum of inner products is an inner product with the sum, so C·M × C numbers are enough, some rows at a
    time.
    """
    value: Tensor = _ProxiesClassifyProxies.apply(proxies)  # type: ignore[no-untyped-call]
    return value


class _ProxiesClassifyProxies(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, proxies: Tensor) -> Tensor:
        C, M, _ = proxies.shape
        rows, sums = proxies.flatten(0, 1), proxies.sum(dim=1)
        classes = torch.arange(C, device=proxies.device).repeat_interleave(M)
        to_rows, to_sums = torch.empty_like(rows), torch.zeros_like(sums)
        value = rows.new_zeros(())
        at_once = max(1, _CHUNK // C)
        for start in range(0, len(rows), at_once):
            chunk = slice(start, start + at_once)
            part = len(classes[chunk]) / len(rows)
            mean, weights = cross_entropy_(rows[chunk] @ sums.T, classes[chunk].unsqueeze(1), slope=part)
            value += mean * part
            torch.mm(weights, sums, out=to_rows[chunk])
            to_sums.addmm_(weights.T, rows[chunk])
        ctx.save_for_backward(to_rows.view_as(proxies).add_(to_sums.unsqueeze(1)))
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        refuse_second_derivative()
        (to_proxies,) = ctx.saved_tensors
        return gradient * to_proxies
