"""The ProxyGML loss."""

from __future__ import annotations

from math import ceil, inf
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot
from torch.utils.checkpoint import checkpoint

from nearkin.losses.base import register, require_count, require_non_negative, require_positive
from nearkin.losses.proxy import ProxyLoss
from nearkin.losses.search_space import MARGIN, Range, space
from nearkin.losses.similarity import normalise
from nearkin.losses.soft_triple import uniform_proxies
from nearkin.losses.tiles import Work, in_order

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_CHUNK = 1 << 24
"""Similarities between proxies held at a time."""


@register("proxy_gml")
class ProxyGML(ProxyLoss):
    """Each sample is classified on the small graph of its nearest proxies.

    Equation:
        L = mean over samples of −log softmax_c(Σ_{k selected} S_ck)_y over the classes with a selected proxy
            + λ · mean over all proxies of −log softmax_c(Σ_k u·u_ck)_{its class}

        Selected: the own M proxies and the nearest others, K = ⌈r·C·M⌉ (at least M) together.

        One value per sample: its own logarithm, and all of the second term.

    Source:
        Zhu, Yang, Deng, Liu. Fewer is More: A Deep Graph Metric Learning Perspective Using Fewer Proxies.
        NeurIPS 2020. arXiv:2010.13636.

    When to use:
        Several proxies per class without the cost of comparing with all of them in the gradient. The proxies
        want a learning rate of their own (0.03 in the paper).

    Relations to other losses:
        With all proxies selected and one per class it is ``softmax`` with normalized and scale 1, plus the
        regulariser between proxies.

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

    tiling = "rows"

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
        self._last_selected = torch.zeros(0, 1, dtype=torch.int64)

    @property
    def selected_per_sample(self) -> int:
        """K, how many proxies a sample sees."""
        return self._selected_of(self.num_classes)

    def _selected_of(self, classes: int) -> int:
        wanted = ceil(self.ratio * classes * self.proxies_per_class - 1e-9)  # 0.07 · 100 is 7, not 8
        return max(self.proxies_per_class, wanted)

    def initial_proxies(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Uniform in ±1/√(C·M), as the authors start them."""
        return uniform_proxies(shape, generator)

    def value(self, S: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy of the sums of selected similarities, over the classes that have one."""
        classes = S.shape[1] // self.proxies_per_class
        by_class = (-1, classes, self.proxies_per_class)
        is_own = one_hot(labels, classes).to(torch.bool).repeat_interleave(self.proxies_per_class, 1)
        ranked = S.detach().masked_fill(is_own, inf)
        nearest = ranked.topk(self._selected_of(classes), dim=1, sorted=False).indices
        selected = torch.zeros_like(S, dtype=torch.bool).scatter_(1, nearest, True)
        logits = torch.where(selected, S, 0).view(by_class).sum(dim=2)
        logits = logits.masked_fill(~selected.view(by_class).any(dim=2), -inf)
        return cross_entropy(logits, labels, reduction="none")

    def look_ahead(self, work: Work) -> None:
        """How near the last of a sample's selected proxies is."""
        self._last_selected = work.nth_largest(self._selected_of(work.compared()) - self.proxies_per_class)

    def by_class(self, S: Tensor) -> Tensor:
        """The sum of the selected; −∞ without any. Of equals at the end all are selected."""
        selected = (in_order(S.detach()) >= self._last_selected).view(len(S), -1, self.proxies_per_class)
        sums = torch.where(selected, S.view(selected.shape), 0).sum(dim=2)
        return sums.masked_fill(~selected.any(dim=2), -inf)

    def own_class(self, S: Tensor) -> Tensor:
        """The sum: the own proxies are selected."""
        return S.sum(dim=1, keepdim=True)

    def own_logits(self, own: Tensor) -> Tensor:
        """As they are."""
        return own

    def other_logits(self, others: Tensor, own: Tensor) -> Tensor:
        """As they are."""
        return others

    def shard(self, rank: int, count: int, group: ProcessGroup | None = None) -> None:
        """As for every loss, but without the term between proxies, which needs those of all processes."""
        if self.regularization:
            raise ValueError(
                f"regularization={self.regularization}: divided among processes, ProxyGML has no term "
                "between proxies, which would need those of all; use regularization=0"
            )
        super().shard(rank, count, group)

    def extra_term(self, proxies: Tensor) -> Tensor | None:
        """The classification of the proxies by each other."""
        if self.regularization == 0:
            return None
        return self.regularization * proxies_classify_proxies(normalise(proxies))


def proxies_classify_proxies(proxies: Tensor) -> Tensor:
    """Mean over all proxies ``(C, M, D)`` of the cross-entropy of their similarities to all, summed by class.

    A sum of inner products is an inner product with the sum, so C·M × C numbers are enough, some rows at a
    time, of which nothing is kept for the backward pass.
    """
    C, M, _ = proxies.shape
    rows, sums = proxies.flatten(0, 1), proxies.sum(dim=1)
    classes = torch.arange(C, device=proxies.device).repeat_interleave(M)

    def entropy(rows: Tensor, sums: Tensor, classes: Tensor) -> Tensor:
        return cross_entropy(rows @ sums.T, classes, reduction="sum")

    at_once = max(1, _CHUNK // C)
    if len(rows) <= at_once:
        return entropy(rows, sums, classes) / len(rows)
    parts = [
        checkpoint(entropy, some, sums, own, use_reentrant=False)
        for some, own in zip(rows.split(at_once), classes.split(at_once), strict=True)
    ]
    return torch.stack(parts).sum() / len(rows)
