"""A loss on the samples with a label, and another one on those without."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from nearkin.losses.base import Loss, require_non_negative, runs_eagerly
from nearkin.losses.modifiers.base import Modifier, call

_OF_ROWS = ("ids", "features", "teacher", "teacher_features", "clusters", "weights")


class WithUnlabelled(Modifier):
    """Any loss on the rows whose label is known, and beside it another one on the rows whose is not.

    Equation:
        L = loss(labelled rows) + ω · term(unlabelled rows)

        One value per sample: its own part, so that the mean over the batch is L.

    Args:
        loss: what learns from labels; :class:`NoLabels` where there are none.
        term: what learns without. It is called with embeddings, and with ``ids``, which sample each row
            shows, in the place of labels; and with what else it takes of ``features``, ``teacher_features``
            and ``clusters``.
        weight: ω.

    Example:
        >>> from nearkin.losses import build
        >>> loss = WithUnlabelled(build("contrastive"), build("info_nce", temperature=1.0), weight=0.5)
        >>> rows = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
        >>> loss(rows, torch.tensor([-1, -1, -1, -1]), ids=torch.tensor([7, 7, 8, 8]))
        tensor(0.2757)
    """

    order: ClassVar[int] = 1000

    def __init__(self, loss: Loss, term: Loss, weight: float = 1.0) -> None:
        super().__init__(loss)
        require_non_negative(weight=weight)
        self.term = term
        self.weight = weight

    @property
    def teacher_decay(self) -> float | None:  # type: ignore[override]
        """The decay of the moving average that the term learns from, if it does."""
        return getattr(self.term, "teacher_decay", None) if self.weight else None

    @runs_eagerly
    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        *,
        ids: Tensor | None = None,
        reduction: str | None = None,
        **keywords: Any,
    ) -> Tensor:
        """The loss of a batch, a scalar or one value per sample.

        Args:
            embeddings: ``(B, D)``, raw.
            labels: ``(B,)``, below 0 where it is not known.
            ids: which of all samples each row shows, ``(B,)``.
            reduction: "mean" or "none"; without it, the attribute of that name.
            keywords: what else the loss or the term takes.
        """
        reduction = self.reduction if reduction is None else reduction
        handed = {**keywords, "ids": ids, **({} if reduction == "mean" else {"reduction": reduction})}
        known = labels >= 0
        if bool(known.all()):
            return self.inner(embeddings, labels, handed)
        if ids is None:
            raise ValueError("samples without a label need ids=, which sample each row shows")
        parts = []
        with_label, without = known.nonzero().flatten(), (~known).nonzero().flatten()
        if len(with_label):
            own = _cut(handed, with_label)
            parts.append((self.inner(embeddings[with_label], labels[with_label], own), with_label, 1.0))
        if self.weight:
            own = {key: value for key, value in _cut(handed, without).items() if self.term.takes(key)}
            value = call(self.term, embeddings[without], ids[without], own)
            parts.append((value, without, self.weight))
        if reduction == "mean":
            return sum((weight * value for value, _, weight in parts), embeddings.sum() * 0)
        values = embeddings.sum(dim=1) * 0
        for value, rows, weight in parts:
            values = values.index_add(0, rows, value * (weight * len(labels) / len(rows)))
        return values

    def asks(self, keyword: str) -> bool:
        """``ids``, and what the loss or the term asks for."""
        return keyword == "ids" or self.loss.asks(keyword) or self.term.asks(keyword)

    def takes(self, keyword: str) -> bool:
        """What the loss or the term takes; but no references from a memory inside of it."""
        return not keyword.startswith("reference") and (
            keyword == "ids" or self.loss.takes(keyword) or self.term.takes(keyword)
        )

    def param_groups(self, lr: float) -> list[dict[str, Any]]:
        """Those of the loss under their own names, and those of the term."""
        term = [{**group, "name": f"term.{group['name']}"} for group in self.term.param_groups(lr)]
        return [*self.loss.param_groups(lr), *term]

    def resized(self, embedding_dim: int, generator: torch.Generator) -> Loss:
        """Refused: a term knows the size that it was made for."""
        raise ValueError("a loss with samples without labels cannot be made for embeddings of another size")

    def extra_repr(self) -> str:
        """The constructor's keywords."""
        return f"weight={self.weight}"


class NoLabels(Loss):
    """The loss where no sample has a label: 0, and nothing to learn.

    >>> NoLabels()(torch.ones(2, 3), torch.tensor([-1, -1]))
    tensor(0.)
    """

    compares_samples = False

    def forward(self, embeddings: Tensor, labels: Tensor, *, reduction: str | None = None) -> Tensor:
        """An exact 0, or one per sample."""
        reduction = self.reduction if reduction is None else reduction
        return embeddings.sum(dim=1) * 0 if reduction == "none" else embeddings.sum() * 0


class OfClusters(Loss):
    """Any loss, with the clusters of samples in the place of their labels.

    Args:
        loss: for as many classes as there are clusters.
    """

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.loss = loss
        self.compares_samples = loss.compares_samples

    @runs_eagerly
    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        *,
        clusters: Tensor | None = None,
        reduction: str | None = None,
    ) -> Tensor:
        """The loss of a batch, a scalar or one value per sample.

        Args:
            embeddings: ``(B, D)``, raw.
            labels: not looked at.
            clusters: of every row's sample, ``(B,)``.
            reduction: "mean" or "none"; without it, the attribute of that name.
        """
        if clusters is None:
            raise ValueError(
                "pseudo-labels need clusters=: let a sampler that looks for them make the batches"
            )
        reduction = self.reduction if reduction is None else reduction
        return call(self.loss, embeddings, clusters, {} if reduction == "mean" else {"reduction": reduction})

    def param_groups(self, lr: float) -> list[dict[str, Any]]:
        """Those of the loss."""
        return self.loss.param_groups(lr)


def _cut(keywords: Mapping[str, Any], rows: Tensor) -> dict[str, Any]:
    """Keywords with the given rows of what has one entry per row."""
    return {
        key: value[rows] if key in _OF_ROWS and isinstance(value, Tensor) else value
        for key, value in keywords.items()
    }
