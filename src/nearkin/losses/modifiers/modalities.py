"""Any loss across two modalities, whose embeddings stand side by side."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nearkin.losses.base import Loss


class AcrossModalities(Loss):
    """A pair loss between the two halves of each row: what belongs together, and what does not.

    Equation:
        L = (loss(first, references=second) + loss(second, references=first)) / 2

        A loss with proxies sees both halves as samples of their classes: the proxies are common to both.

    Args:
        loss: for embeddings of half the width.

    Example:
        >>> from nearkin.losses import build
        >>> loss = AcrossModalities(build("info_nce", temperature=1.0))
        >>> rows = torch.tensor([[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 1.0, 0.0]])  # of the classes 0 and 1
        >>> loss(rows, torch.tensor([0, 1]))
        tensor(0.7532)
    """

    compares_samples = False  # a positive comes along in the row itself

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, embeddings: Tensor, labels: Tensor, *, reduction: str | None = None) -> Tensor:
        """The loss of a batch, a scalar or one value per pair.

        Args:
            embeddings: ``(B, 2 D)``, raw: those of the first modality, and behind them of the second.
            labels: ``(B,)``: items of one label belong together.
            reduction: "mean" or "none"; without it, the attribute of that name.
        """
        if embeddings.shape[1] % 2:
            raise ValueError(f"embeddings of {embeddings.shape[1]} columns are not two of one size")
        reduction = self.reduction if reduction is None else reduction
        more: dict[str, Any] = {} if reduction == "mean" else {"reduction": reduction}
        first, second = (half.contiguous() for half in embeddings.chunk(2, dim=1))
        if not self.loss.takes("known_pairs"):  # no loss over pairs
            value: Tensor = self.loss(torch.cat([first, second]), torch.cat([labels, labels]), **more)
            return value if reduction == "mean" else torch.stack(value.chunk(2)).mean(dim=0)
        both: list[Tensor] = [
            self.loss(one, labels, references=other, reference_labels=labels, **more)
            for one, other in ((first, second), (second, first))
        ]
        return (both[0] + both[1]) / 2

    def param_groups(self, lr: float) -> list[dict[str, Any]]:
        """Those of the loss."""
        return self.loss.param_groups(lr)

    def findings(self) -> tuple[str, ...]:
        """Those of the loss."""
        return self.loss.findings()
