"""A pair loss on what is known of pairs, in the place of labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from nearkin.losses.base import Loss, runs_eagerly


class OfPairs(Loss):
    """Any pair loss, with known pairs in the place of labels.

    Args:
        loss: a loss that takes ``known_pairs=``.
        known: from the numbers of samples ``(B,)`` to what is known of each two of them, ``(B, B)``: above 0
            the same, below 0 different, 0 nothing.

    Raises:
        ValueError: the loss needs classes; the message says which do not.

    Example:
        >>> import torch
        >>> from nearkin.losses import build
        >>> nothing = OfPairs(build("contrastive"), lambda ids: torch.zeros(len(ids), len(ids)))
        >>> nothing(torch.eye(2), torch.tensor([0, 0]), ids=torch.tensor([4, 7]))
        tensor(0.)
    """

    def __init__(self, loss: Loss, known: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        refuse_classes(loss)
        self.loss = loss
        self.known = known

    @runs_eagerly
    def forward(
        self, embeddings: Tensor, labels: Tensor, *, ids: Tensor | None = None, reduction: str | None = None
    ) -> Tensor:
        """The loss of a batch, a scalar or one value per sample.

        Args:
            embeddings: ``(B, D)``, raw.
            labels: not looked at.
            ids: which of all samples each row shows, ``(B,)``.
            reduction: "mean" or "none"; without it, the attribute of that name.
        """
        if ids is None:
            raise ValueError("known pairs need ids=, which sample each row shows")
        reduction = self.reduction if reduction is None else reduction
        known = self.known(ids).to(embeddings.device)
        more = {} if reduction == "mean" else {"reduction": reduction}
        value: Tensor = self.loss(embeddings, known_pairs=known, **more)
        return value

    def param_groups(self, lr: float) -> list[dict[str, Any]]:
        """Those of the loss."""
        return self.loss.param_groups(lr)

    def findings(self) -> tuple[str, ...]:
        """Those of the loss."""
        return self.loss.findings()


def refuse_classes(loss: Loss) -> None:
    """Refuse a loss that needs classes, where only pairs are known.

    Raises:
        ValueError: it does.
    """
    why = None
    if not loss.takes("known_pairs"):
        why = "compares samples with classes"
    elif getattr(loss, "chooses_by_class", False):
        why = "chooses pairs by their class"
    if why is not None:
        raise ValueError(
            f"{loss.name} {why}, and only pairs of the samples are known: choose a loss over pairs, such as "
            "loss.name=contrastive, or say data.others=different, which makes a class of every group of "
            "matches"
        )
