"""The InfoNCE loss: pairs instead of labels."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

import torch
from torch import Tensor

from nearkin.losses.base import register, require_positive
from nearkin.losses.metric import Metric, through_slope_
from nearkin.losses.one_against_all import sum_against_all, sum_against_all_
from nearkin.losses.pair import Comparison, PairLoss, Pairs
from nearkin.losses.search_space import TEMPERATURE, space
from nearkin.losses.similarity import Measured


@register("info_nce")
class InfoNCE(PairLoss):
    """Find the partner of each row among all others: two views of an image, or an image and its text.

    ``loss(images, references=texts)`` needs no labels: the partner of row i is reference i. With labels, or
    equal labels for both sides, references of the same label other than the partner are left out. Without
    references, ``loss(embeddings, labels)``, every other sample of the label is a partner, each by itself;
    two rows with the same label for each image make it NT-Xent. References with labels of their own (a
    memory, a gallery) are compared in the same way.

    Equation:
        L = mean over positive pairs (i, p) of −log(exp(S_ip/T) / (exp(S_ip/T) + Σ_{n∈N_i} exp(S_in/T)))

        With symmetric, partners are also looked for in the other direction: the mean of both, with the
        columns of S in the place of its rows. With another metric, minus the distance takes the place of S.

        One value per sample: its own pairs' part of the mean, times B.

    Source:
        Oord, Li, Vinyals. Representation Learning with Contrastive Predictive Coding. 2018. arXiv:1807.03748.
        Two views: Chen, Kornblith, Norouzi, Hinton. A Simple Framework for Contrastive Learning of Visual
        Representations. ICML 2020. arXiv:2002.05709. Two modalities: Radford et al. Learning Transferable
        Visual Models From Natural Language Supervision. ICML 2021. arXiv:2103.00020.

    When to use:
        Where there are pairs but no classes: augmented views, images and captions, questions and answers. It
        lives from large batches; gradient caching gives any size.

    Relations to other losses:
        Sohn's ``npair`` on cosines with a temperature; ``supcon`` with one positive per anchor. Without the
        temperature's sharpness but with a margin in the angle it is ``tuplet_margin``.

    Args:
        temperature: T.
        symmetric: whether the partners of references are looked for as well.
        metric: as for ``contrastive``.

    Example:
        >>> images, texts = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.0], [1.0, 0.0]])
        >>> InfoNCE(temperature=1.0)(images, references=texts)
        tensor(0.7532)
    """

    search_space = space(temperature=TEMPERATURE)

    def __init__(
        self,
        *,
        temperature: float = 0.05,
        symmetric: bool = True,
        metric: str | Mapping[str, Any] | Metric = "cosine",
    ) -> None:
        require_positive(temperature=temperature)
        super().__init__()
        self.temperature = temperature
        self.symmetric = symmetric
        self.use_metric(metric)

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        *,
        references: Tensor | None = None,
        reference_labels: Tensor | None = None,
        known_pairs: Tensor | None = None,
        weights: Tensor | None = None,
        reduction: str | None = None,
    ) -> Tensor:
        """The loss of a batch, a scalar, or one value per sample.

        Args:
            embeddings: ``(B, D)``, raw.
            labels: ``(B,)`` integers or multi-hot ``(B, L)``; not needed where there are references.
            references: ``(B, D)``, the partners row by row; or ``(R, D)``, with labels of their own.
            reference_labels: of the same kind as ``labels``; without them, the partners have those.
            known_pairs: as for every pair loss, in place of labels and partners.
            weights: how often each sample counts as an anchor, ``(B,)``, not negative.
            reduction: "mean" or "none"; without it, the attribute of that name.
        """
        if known_pairs is None:
            labels, reference_labels = _both_labels(embeddings, labels, references, reference_labels)
        return super().forward(
            embeddings,
            labels,
            references=references,
            reference_labels=reference_labels,
            known_pairs=known_pairs,
            weights=weights,
            reduction=reduction,
        )

    def pair_weights(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        *,
        references: Tensor | None = None,
        reference_labels: Tensor | None = None,
        known_pairs: Tensor | None = None,
    ) -> Tensor:
        """∂L/∂S ``(B, R)``; arguments as for the loss."""
        if known_pairs is None:
            labels, reference_labels = _both_labels(embeddings, labels, references, reference_labels)
        keywords = {
            "references": references,
            "reference_labels": reference_labels,
            "known_pairs": known_pairs,
        }
        return super().pair_weights(embeddings, labels, **keywords)

    def select(self, compared: Comparison, reference_labels: Tensor | None) -> Comparison:
        """References with the labels of the batch are its partners, row by row."""
        pairs = compared.pairs
        if reference_labels is None:
            return compared
        if reference_labels is not pairs.labels and not torch.equal(pairs.labels, reference_labels):
            return compared

        def partners() -> tuple[Tensor, Tensor]:
            return torch.eye(pairs.anchors, dtype=torch.bool, device=pairs.labels.device), pairs.negative

        rows = Partners(partners, pairs.labels, pairs.embedding_dim, pairs.anchors, pairs.weights)
        return compared._replace(pairs=rows)

    def value(self, S: Tensor, pairs: Pairs) -> Tensor:
        """The mean over pairs, of both directions where there are two."""
        near = self.geometry.nearness(S) / self.temperature
        sums = sum_against_all(near, near, pairs.positive, pairs.negative)
        counts = pairs.positive.sum(dim=1).to(S.dtype)
        if self.symmetric and isinstance(pairs, Partners):
            back = sum_against_all(near.mT, near.mT, pairs.positive.mT, pairs.negative.mT)
            sums = (sums + back) / 2
        return pairs.mean_of_sums(sums, counts)

    def measure(self, S: Tensor, pairs: Pairs, with_weights: bool) -> Measured:
        """A positive's weight is the chance that it is not found, which its negatives share."""
        near, slope = self.geometry.nearness_and_slope(S)
        near = near / self.temperature
        positive, negative = pairs.indicators(S)
        share = 1 / positive.sum().clamp_min(1)
        both = self.symmetric and isinstance(pairs, Partners)
        value, weights = self._one_direction(near, positive, negative)
        if both:
            other = (matrix.mT.contiguous() for matrix in (near, positive, negative))
            back, back_weights = self._one_direction(*other)
            value, weights, share = value + back, weights.add_(back_weights.mT), share / 2
        if not with_weights:
            return Measured(value * share)
        return Measured(value * share, through_slope_(weights.mul_(share / self.temperature), slope))

    def _one_direction(self, near: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        """The sum over pairs and its derivative by ``near``."""
        bound = 1 / self.temperature if self.geometry.identical else inf
        found = sum_against_all_(near.clone(), near.clone(), positive, negative, bound)
        return found.sums.sum(), found.by_negatives.add_(found.by_positives)


class Partners(Pairs):
    """Pairs of two sides that belong together row by row."""


def _both_labels(
    embeddings: Tensor, labels: Tensor | None, references: Tensor | None, reference_labels: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Labels of both sides, where partners need none."""
    if references is None or reference_labels is not None:
        if labels is None:
            raise ValueError("info_nce needs labels, or references= that are the partners row by row")
        return labels, reference_labels
    if len(references) != len(embeddings):
        raise ValueError(
            f"{len(references)} references for {len(embeddings)} embeddings: partners come row by row; "
            "others need reference_labels"
        )
    labels = torch.arange(len(embeddings), device=embeddings.device) if labels is None else labels
    return labels, labels
