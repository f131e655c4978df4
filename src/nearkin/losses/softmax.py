"""Softmax cross-entropy, and what the losses that end in one share."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from nearkin.losses.base import register, require_positive
from nearkin.losses.exponentials import exp_, exponentials_fit
from nearkin.losses.proxy import ProxyLoss
from nearkin.losses.search_space import SCALE, SearchSpace, space
from nearkin.losses.similarity import Measured


@register("softmax")
class Softmax(ProxyLoss):
    """Classify the training classes; the embedding is what the classifier sees.

    Equation:
        L = mean over samples of −log softmax_c(W x)_y (no bias)

        With normalized=True the logits are s·v_c·z.

    Source:
        Zhai, Wu. Classification is a Strong Baseline for Deep Metric Learning. BMVC 2019. arXiv:1811.12649.

    When to use:
        The baseline every other loss should beat; normalized=True usually retrieves better.

    Relations to other losses:
        With normalized it is NormFace, and ``arcface`` with a margin of 0; ``proxy_nca_pp`` is the same on
        squared distances (scale = 2/T), and ``soft_triple`` has several centres per class.

    Args:
        num_classes: C.
        embedding_dim: D.
        normalized: compare directions instead of raw vectors.
        scale: s, only with normalized=True; 16 if not given.
        generator: starts the proxies.

    Example:
        >>> loss = Softmax(num_classes=3, embedding_dim=4, normalized=True)
        >>> bool(loss(torch.eye(4), torch.tensor([0, 1, 2, 0])) > 0)
        True
    """

    tiling = "rows"
    searches_rate = True

    def __init__(
        self,
        num_classes: int,
        embedding_dim: int,
        *,
        normalized: bool = False,
        scale: float | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        if scale is not None:
            require_positive(scale=scale)
            if not normalized:
                raise ValueError(f"scale={scale} only means something with normalized=True")
        super().__init__(num_classes, embedding_dim, generator)
        self.normalized = normalized
        self.scale = scale
        self.on_sphere = normalized

    @classmethod
    def space_with(cls, keywords: Mapping[str, Any]) -> SearchSpace:
        """The scale, where there is one."""
        return space(scale=SCALE) if keywords.get("normalized") else {}

    def value(self, S: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy of the (scaled) similarities."""
        return cross_entropy(self._slope * S, labels, reduction="none")

    def own_logits(self, own: Tensor) -> Tensor:
        """Scaled."""
        return self._slope * own

    def other_logits(self, others: Tensor, own: Tensor) -> Tensor:
        """Scaled."""
        return self._slope * others

    @property
    def _slope(self) -> float:
        return 1.0 if not self.normalized else 16.0 if self.scale is None else self.scale

    def measure(self, S: Tensor, labels: Tensor, with_weights: bool) -> Measured:
        """The gradient of a cross-entropy, scaled."""
        bound = self._slope if self.normalized else inf
        return Measured(*cross_entropy_(S * self._slope, labels.unsqueeze(1), bound, slope=self._slope))


def cross_entropy_(
    logits: Tensor, own: Tensor, bound: float = inf, slope: float = 1.0, own_slopes: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The mean of ``−log softmax(logits)_y`` over rows, and its gradient by what the logits were made of.

    Args:
        logits: ``(B, C)``, overwritten; −∞ is outside the softmax (never the label's own).
        own: the labels, ``(B, 1)``.
        bound: a promise that ``|logit| ≤ bound``.
        slope: the derivative of the logits by what they were made of.
        own_slopes: by what factor that of the label's own logit differs, ``(B, 1)``.
    """
    share = slope / len(logits)
    if exponentials_fit(logits, 1, bound):
        own_logits = logits.gather(1, own)
        total = logits.exp_().sum(dim=1, keepdim=True)
        own_logs = own_logits.sub_(total.log())
        weights = logits.mul_(total.reciprocal_().mul_(share))
    else:
        logs = torch.log_softmax(logits, dim=1)
        own_logs = logs.gather(1, own)
        weights = exp_(logs).mul_(share)
    value = own_logs.mean().neg_()
    to_own = own_logs.expm1_().mul_(share)  # p − 1
    return value, weights.scatter_(1, own, to_own if own_slopes is None else to_own.mul_(own_slopes))
