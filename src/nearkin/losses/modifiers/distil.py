"""What a teacher's embeddings say about which samples are alike, for any loss."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from nearkin.losses.base import (
    Loss,
    check_embeddings,
    check_finite,
    require_non_negative,
    require_positive,
    runs_eagerly,
)
from nearkin.losses.modifiers.base import Modifier, register
from nearkin.losses.relaxed_contrastive import likeness, relaxed_contrastive
from nearkin.losses.search_space import Range, space
from nearkin.losses.similarity import at_least_float32, full_precision, normalise
from nearkin.losses.wrapping import LossFunction

EMA = "ema"


@register("distil")
class Distil(Modifier):
    """Any loss, and beside it: samples that a teacher finds alike shall be near, others apart, by degrees.

    Equation:
        L = loss + ω · (1/B) Σ_{i≠j} w_ij d_ij² + (1 − w_ij) [δ − d_ij]₊²

        w_ij = e^{−‖t_i − t_j‖²/σ} of the teacher's unit embeddings t, a constant;
        d_ij = ‖x_i − x_j‖ / ((1/B) Σ_k ‖x_i − x_k‖) of the student's raw embeddings x.

        One value per sample: ω times the sum over j of its own row.

    Source:
        Kim, Kim, Cho, Kwak. Embedding Transfer with Label Relaxation for Improved Metric Learning. CVPR 2021.
        arXiv:2103.14908. (Its code divides by B (B − 1); here as in the paper by B.)

    When to use:
        To bring what a large or slow model knows into a small one (``teacher`` a trained model), or to smooth
        a training by a moving average of its own network (``teacher="ema"``). The sum over j grows with the
        batch: with 100 samples a weight of 0.01 is about as much as the loss itself.

    Relations:
        With w 1 for positives and 0 for negatives it would be the contrastive loss with squared hinges, on
        relative distances. S2SD teaches in the same way from branches of the same network, by the rows'
        softmax instead of by distances. Weight 0 is the inner loss, bit for bit.

    Args:
        loss: the inner loss, ours or anything :func:`~nearkin.losses.as_loss` takes.
        teacher: "ema", for which a training keeps a moving average of the network and passes what it makes of
            the batch as ``teacher=``; or the teacher's embeddings of all training samples ``(N, E)``, of
            which ``ids`` choose those of a batch.
        weight: ω.
        sigma: σ, how near samples must be for the teacher to count as alike.
        margin: δ.
        decay: of the moving average: it remembers about 1 / (1 − decay) steps.

    Example:
        >>> import torch
        >>> from nearkin.losses import build
        >>> teacher = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
        >>> loss = Distil(build("contrastive"), teacher, weight=1.0)
        >>> loss.transfer(torch.tensor([[0.0], [0.0], [1.0]]), teacher)  # as the teacher has it, but for e⁻⁴
        tensor(0.1374)
    """

    order: ClassVar[int] = 60
    search_space = space(weight=Range(1e-3, 1.0, log=True), sigma=Range(0.25, 4.0, log=True))

    taught: Tensor | None

    def __init__(
        self,
        loss: Loss | nn.Module | LossFunction,
        teacher: str | Tensor = EMA,
        weight: float = 0.1,
        *,
        sigma: float = 1.0,
        margin: float = 1.0,
        decay: float = 0.999,
    ) -> None:
        super().__init__(loss)
        require_non_negative(weight=weight, margin=margin)
        require_positive(sigma=sigma)
        if not 0 <= decay < 1:
            raise ValueError(f"decay={decay} must be at least 0 and below 1")
        if isinstance(teacher, str) and teacher != EMA:
            raise ValueError(f"teacher={teacher!r} must be {EMA!r} or embeddings (N, E) of all samples")
        self.teacher = teacher if isinstance(teacher, str) else "model"
        self.weight = weight
        self.sigma = sigma
        self.margin = margin
        self.decay = decay
        units = None
        if isinstance(teacher, Tensor):
            check_embeddings(teacher, "the teacher's embeddings")
            check_finite(teacher, "the teacher's embeddings")
            units = normalise(at_least_float32(teacher.detach()))
        # Of all samples, and the same in every run: a checkpoint goes without them.
        self.register_buffer("taught", units, persistent=False)

    @property
    def teacher_decay(self) -> float | None:  # type: ignore[override]
        """The decay of the moving average that a training shall keep, if it is the teacher."""
        return self.decay if self.teacher == EMA and self.weight else None

    @runs_eagerly
    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        *,
        teacher: Tensor | None = None,
        ids: Tensor | None = None,
        weights: Tensor | None = None,
        reduction: str | None = None,
        **keywords: Any,
    ) -> Tensor:
        """The inner loss of a batch and its transfer, a scalar or one value per sample.

        Args:
            embeddings: ``(B, D)``, raw.
            labels: ``(B,)``, or what else the inner loss takes.
            teacher: the teacher's embeddings of the batch, ``(B, E)``; by default those under ``ids``.
            ids: which of all samples each row is, ``(B,)``.
            weights: how often each sample counts, ``(B,)``, not negative.
            reduction: "mean" or "none"; without it, the attribute of that name.
            keywords: what else the inner loss takes.
        """
        reduction = self.reduction if reduction is None else reduction
        passed = {**keywords, "ids": ids, "weights": weights, "teacher": teacher}
        if reduction != "mean":
            passed["reduction"] = reduction
        if self.weight == 0:
            return self.inner(embeddings, labels, passed)
        check_embeddings(embeddings)
        taught = self._of_batch(embeddings, teacher, ids)
        rows = at_least_float32(embeddings)  # once for both, so that their gradients add up in full precision
        value = self.inner(rows, labels, passed)
        return value + self.weight * self.transfer(rows, taught, weights=weights, reduction=reduction)

    def transfer(
        self, embeddings: Tensor, teacher: Tensor, *, weights: Tensor | None = None, reduction: str = "mean"
    ) -> Tensor:
        """The relaxed contrastive loss against a teacher, without its weight ω.

        Args:
            embeddings: of the student, ``(B, D)``, raw.
            teacher: its embeddings of the same samples, ``(B, E)``.
            weights: how often each row counts, ``(B,)``.
            reduction: "mean", or "none" for values ``(B,)`` whose mean it is.
        """
        if len(teacher) != len(embeddings):
            raise ValueError(f"the teacher has {len(teacher)} embeddings, the batch {len(embeddings)}")
        with full_precision(embeddings):
            rows = at_least_float32(embeddings)
            if self.validate:
                check_finite(rows.detach())
            alike = likeness(teacher.detach().to(rows), self.sigma)
            return relaxed_contrastive(rows, alike, self.margin, weights=weights, reduction=reduction)

    def _of_batch(self, embeddings: Tensor, teacher: Tensor | None, ids: Tensor | None) -> Tensor:
        if teacher is not None:
            return teacher
        if self.taught is None:
            raise ValueError(
                "distil with teacher='ema' needs what the moving average makes of the batch: pass teacher="
            )
        if ids is None:
            raise ValueError(
                "distil needs ids, which sample each row is, to look up its teacher's embeddings"
            )
        if self.validate and len(ids) and int(ids.max()) >= len(self.taught):
            raise ValueError(f"id {int(ids.max())}: the teacher has embeddings of {len(self.taught)} samples")
        return self.taught[ids.long()]

    def takes(self, keyword: str) -> bool:
        """What ``forward`` names and the inner loss takes; but no references from a memory inside of it."""
        return not keyword.startswith("reference") and super().takes(keyword)

    def asks(self, keyword: str) -> bool:
        """``ids`` only where they choose the teacher's embeddings."""
        if keyword == "ids" and self.taught is None:
            return self.loss.asks(keyword)
        return super().asks(keyword)

    def extra_repr(self) -> str:
        """The constructor's keywords."""
        settings = f"teacher={self.teacher!r}, weight={self.weight}, sigma={self.sigma}, margin={self.margin}"
        return f"{settings}, decay={self.decay}" if self.teacher == EMA else settings
