"""The proxy repulsion loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot
from torch.utils.checkpoint import checkpoint

from nearkin.losses.base import or_one, register, require_non_negative, require_positive
from nearkin.losses.exponentials import log_one_plus_sum_exp
from nearkin.losses.multi_similarity import MultiSimilarity
from nearkin.losses.proxy import ProxyLoss
from nearkin.losses.proxy_anchor import parts_by_sample
from nearkin.losses.search_space import MARGIN, SCALE, space
from nearkin.losses.similarity import normalise

_CHUNK = 1 << 24
"""Products between proxies held at a time."""


@register("proxy_repulsion")
class ProxyRepulsion(ProxyLoss):
    """Proxies pull their samples and repel each other, directly or as the samples see them.

    Equation:
        L = (1/|W⁺|) Σ_{c∈W⁺} log(1 + Σ_{x∈X_c⁺} e^{−α(S − δ)})
            + (1/C) Σ_c log(1 + Σ_{c'≠c} e^{α(R_cc' + δ)}),
        R_cc' = v_c·v_c', or with through_samples=True Σ_x (v_c·z)(z·v_c') over the batch;
        and with relations above 0, + relations · L_ms: multi-similarity's two terms over the batch's own
        pairs, by its defaults and its mining

        One value per sample: of each logarithm of the first term the share that its exponential has in the
        sum, times B, all of the second term, and the anchor's part of the pairs.

    Source:
        The thesis "Metric Learning: A Deep Dive", chapter 6: its own loss; variant 2 is
        through_samples=True. relations= is our reading of its future work, "to capture more data-to-data
        relations".

    When to use:
        When proxies of different classes crowd together. Through samples, only directions that the batch
        occupies count, and the repulsion grows with the batch. With relations, give it batches with several
        samples of each class, as ``multi_similarity`` wants them. What they gain is small: on validation
        classes of glyphs (``benchmarks/relations.py``, means of three seeds) Recall@1 is 47.6 % without,
        49.2, 48.8 and 49.2 % with relations 0.25, 0.5 and 1, and MAP@R 15.7 % against 15.9, 16.1 and 16.6 %;
        seeds differ by up to 6 points. A memory (``[loss.memory]``) and offline mining (``sampler.name =
        "hard_neighbours"``) go with it as with any loss; the memory cost 11 points there (36.7 %).

    Relations to other losses:
        ``proxy_anchor``'s positive term; the other one acts between proxies, directly or through the samples.
        relations=1 adds ``multi_similarity``.

    Args:
        num_classes: C.
        embedding_dim: D.
        alpha: α.
        margin: δ.
        through_samples: which R.
        relations: from 0 (none) to 1, the share of multi-similarity over the pairs of the batch.
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
        relations: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        require_positive(alpha=alpha)
        require_non_negative(margin=margin)
        if not 0 <= relations <= 1:
            raise ValueError(f"relations={relations} must be from 0 to 1: it is a share")
        super().__init__(num_classes, embedding_dim, generator)
        self.alpha = alpha
        self.margin = margin
        self.through_samples = through_samples
        self.relations = relations
        self.compares_samples = self.compares_with({"relations": relations})
        if relations:
            self.pairs = MultiSimilarity()

    @classmethod
    def compares_with(cls, hyperparameters: Mapping[str, Any]) -> bool:
        """With relations, the samples of a batch are compared with each other."""
        return bool(hyperparameters.get("relations"))

    def value(self, S: Tensor, labels: Tensor) -> Tensor:
        """The positive term of Proxy-Anchor and, through samples, the repulsion: R is SᵀS."""
        own = one_hot(labels, S.shape[1]).to(torch.bool)
        pull = log_one_plus_sum_exp(-self.alpha * (S - self.margin), own, dim=0)
        value = pull.sum() / own.any(dim=0).sum()
        return value + repulsion(S, self.alpha, self.margin) if self.through_samples else value

    def weighted_value(self, S: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
        """A sample that counts w times is in its sums w times."""
        own = one_hot(labels, S.shape[1]).to(torch.bool)
        present, pulls = parts_by_sample(-self.alpha * (S - self.margin), own, weights)
        values = len(S) * pulls / or_one(present)
        if not self.through_samples:
            return values
        counted = S if weights is None else S * torch.sqrt(weights).unsqueeze(1)
        return values + repulsion(counted, self.alpha, self.margin)

    def extra_term(self, proxies: Tensor) -> Tensor | None:
        """The repulsion where it does not go through the samples: R is VVᵀ."""
        return None if self.through_samples else repulsion(normalise(proxies).T, self.alpha, self.margin)

    def between_samples(
        self, embeddings: Tensor, labels: Tensor, weights: Tensor | None, reduction: str
    ) -> Tensor | None:
        """The share of multi-similarity."""
        if not self.relations:
            return None
        self.pairs.validate = False  # everything has been looked at
        value: Tensor = self.pairs(embeddings, labels, weights=weights, reduction=reduction)
        return self.relations * value


def repulsion(columns: Tensor, alpha: float, margin: float) -> Tensor:
    """``(1/C) Σ_c log(1 + Σ_{c'≠c} e^{α(R_cc' + δ)})``, R the inner products of columns ``(N, C)``.

    R is C × C: some rows are made at a time, and nothing of them is kept for the backward pass.
    """
    C = columns.shape[1]

    def sum_of_logs(columns: Tensor, start: int) -> Tensor:
        exponents = alpha * (columns[:, start : start + at_once].T @ columns + margin)
        others = torch.ones_like(exponents, dtype=torch.bool)
        others.diagonal(start).fill_(False)
        return log_one_plus_sum_exp(exponents, others).sum()

    at_once = max(1, _CHUNK // C)
    if at_once >= C:
        return sum_of_logs(columns, 0) / C
    parts = [checkpoint(sum_of_logs, columns, start, use_reentrant=False) for start in range(0, C, at_once)]
    return torch.stack(parts).sum() / C
