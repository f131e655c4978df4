"""A centre for each class that its samples are pulled to, beside any loss."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from nearkin.losses.base import (
    Loss,
    check_embeddings,
    check_finite,
    check_label_range,
    check_labels,
    require_count,
    require_non_negative,
    weighted,
)
from nearkin.losses.modifiers.base import Modifier, register, resized
from nearkin.losses.search_space import Range, space
from nearkin.losses.similarity import at_least_float32, full_precision
from nearkin.losses.wrapping import LossFunction


@register("center")
class Center(Modifier):
    """Any loss, and the squared distance of each sample to a learnable centre of its class.

    Equation:
        L = loss(x) + (ω/2) · mean over samples of ‖x_i − c_{y_i}‖²

        x are raw embeddings. One value per sample: the inner loss's, and its own distance.

    Source:
        Wen, Zhang, Li, Qiao. A Discriminative Feature Learning Approach for Deep Face Recognition. ECCV 2016.
        There the loss inside is a softmax, and centres move by a rule of their own, the mean difference to
        the batch's samples; here they are parameters of the loss, moved by the optimiser.

    When to use:
        Around ``softmax`` and other losses that separate classes but do not draw their samples together.
        Losses over pairs or unit proxies do that already.

    Relations:
        It is ``contrastive``'s pull with ``euclidean_raw``, towards a centre in the place of each positive.
        Weight 0 is the inner loss, bit for bit.

    Args:
        loss: the inner loss, ours or anything :func:`~nearkin.losses.as_loss` takes.
        num_classes: C; labels lie in ``0 … C − 1``.
        embedding_dim: D.
        weight: ω.

    Example:
        >>> from nearkin.losses import build
        >>> loss = Center(build("contrastive"), num_classes=2, embedding_dim=2, weight=1.0)
        >>> loss(torch.tensor([[2.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 0]))  # from centres at 0
        tensor(2., grad_fn=<AddBackward0>)
    """

    order: ClassVar[int] = 70
    search_space = space(weight=Range(1e-4, 1.0, log=True))

    def __init__(
        self,
        loss: Loss | nn.Module | LossFunction,
        num_classes: int,
        embedding_dim: int,
        weight: float = 0.003,
    ) -> None:
        super().__init__(loss)
        require_count(num_classes=num_classes, embedding_dim=embedding_dim)
        require_non_negative(weight=weight)
        self.num_classes = num_classes
        self.embedding_dim = embedding_dim
        self.weight = weight
        self.centres = nn.Parameter(torch.zeros(num_classes, embedding_dim))

    @property
    def traceable(self) -> bool:
        """As the inner loss is."""
        return self.loss.traceable

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        *,
        weights: Tensor | None = None,
        reduction: str | None = None,
        **keywords: Any,
    ) -> Tensor:
        """The inner loss of a batch and its distances to the centres, a scalar or one value per sample.

        Args:
            embeddings: ``(B, D)``, raw.
            labels: ``(B,)`` integers in ``0 … C − 1``.
            weights: how often each sample counts, ``(B,)``, not negative.
            reduction: "mean" or "none"; without it, the attribute of that name.
            keywords: what else the inner loss takes.
        """
        reduction = self.reduction if reduction is None else reduction
        passed = {**keywords, "weights": weights}
        if reduction != "mean":
            passed["reduction"] = reduction
        if self.weight == 0:
            return self.inner(embeddings, labels, passed)
        check_embeddings(embeddings)
        check_labels(labels, embeddings)
        if embeddings.shape[1] != self.embedding_dim:
            raise ValueError(
                f"embedding_dim={self.embedding_dim} but the embeddings have {embeddings.shape[1]} columns"
            )
        rows = at_least_float32(embeddings)
        values = self.weight * self._distances(rows, labels, weights)
        pull = values if reduction == "none" else values.mean() if len(values) else values.sum()
        return self.inner(rows, labels, passed) + pull

    def _distances(self, rows: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
        """Half the squared distance of each sample to its centre, ``(B,)``."""
        if self.validate:
            check_finite(rows.detach())
            check_label_range(labels, self.num_classes)
        with full_precision(rows):
            apart = rows - self.centres.to(rows.dtype)[labels.long()]
            halves = apart.square().sum(dim=1) / 2
            return weighted(halves, None if weights is None else weights.to(rows.dtype))

    def resized(self, embedding_dim: int, generator: torch.Generator) -> Loss:
        """The same for embeddings of another size, with new centres."""
        inner = resized(self.loss, embedding_dim, generator)
        return Center(inner, self.num_classes, embedding_dim, self.weight)

    def extra_repr(self) -> str:
        """The constructor's keywords."""
        return f"num_classes={self.num_classes}, embedding_dim={self.embedding_dim}, weight={self.weight}"
