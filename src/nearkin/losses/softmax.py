"""Softmax cross-entropy, and what the losses that end in one share."""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor

from nearkin.losses.base import register, require_positive
from nearkin.losses.proxy import ProxyLoss
from nearkin.losses.similarity import Measured, log_sum_exp_


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

    def measure(self, S: Tensor, labels: Tensor, with_weights: bool) -> Measured:
        """Cross-entropy of the (scaled) similarities."""
        scale = 1.0 if not self.normalized else 16.0 if self.scale is None else self.scale
        bound = scale if self.normalized else inf
        value, weights = cross_entropy_(S.mul_(scale), labels, bound)
        return Measured(value, weights.mul_(scale) if with_weights else None)


def cross_entropy_(logits: Tensor, labels: Tensor, bound: float = inf) -> tuple[Tensor, Tensor]:
    """The mean of ``−log softmax(logits)_y`` over rows, and its gradient in the place of the logits.

    Args:
        logits: ``(B, C)``; −∞ is outside the softmax (never the label's own).
        labels: ``(B,)``.
        bound: a promise that ``|logit| ≤ bound``.
    """
    own = labels.unsqueeze(1)
    own_logits = logits.gather(1, own).squeeze(1)
    value = (log_sum_exp_(logits, dim=1, bound=bound) - own_logits).mean()
    logits.scatter_add_(1, own, logits.new_full((1, 1), -1).expand(len(labels), 1))
    return value, logits.div_(len(labels))
