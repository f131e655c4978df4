"""How long a training takes, in which precision, and what it is scored by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Selection = Literal["recall", "map_at_r", "roc_auc"]
Precision = Literal["fp32", "bf16", "fp16"]


@dataclass(frozen=True)
class TrainingSettings:
    """The plain numbers of a training.

    Attributes:
        epochs: Passes over the training samples.
        stop_after: Stop after this epoch, of the same schedule: where a validation found the best one; 0 for
            none at all.
        head_only: Epochs at the beginning in which the backbone is held still and head and loss learn.
        precision: ``fp32``, ``bf16`` or ``fp16`` (mixed).
        checkpoint_minutes: A run that is killed loses at most this much; every epoch's end is kept as well.
        accumulate: Batches per step of the optimiser.
        chunk: Samples that are in memory with all their activations at a time.
        ema: Decay of a moving average of the weights.
        clip: Largest norm of the network's gradient; ``None`` for no clipping.
        clip_value: Largest size of an entry of the gradient, of the network's and of the loss's.
        pca_head: Let the head start as the principal components of the training samples' features.
        lora: Rank of the additions through which a transformer learns; ``None`` to train its own weights.
        views: How often a sample appears in its batch, each time transformed anew.
        recall_at: The values of k.
        select: What the epoch is selected by: the first Recall@k (of equals, MAP@R), MAP@R, or, of data with
            known pairs, their ROC AUC.
        false_accept_rate: For which the threshold is chosen at the end, on the validation classes.
        keep_epochs: Keep the network of every epoch apart, for an audit after the selection.
        sharded: Let each of several processes own a slice of the classes of a loss with proxies.
        sizes: Beginnings of the embeddings that are tested by themselves as well, where they were trained so.
    """

    epochs: int = 12
    stop_after: int | None = None
    head_only: int = 0
    precision: Precision = "fp32"
    checkpoint_minutes: float = 5.0
    accumulate: int = 1
    chunk: int | None = None
    ema: float | None = None
    clip: float | None = None
    clip_value: float | None = None
    pca_head: bool = False
    lora: int | None = None
    views: int = 1
    recall_at: tuple[int, ...] = (1, 2, 4, 8)
    select: Selection = "recall"
    false_accept_rate: float = 0.01
    keep_epochs: bool = False
    sharded: bool = False
    sizes: tuple[int, ...] = ()

    @property
    def selection_keys(self) -> tuple[str, str]:
        """Scores of an epoch that select it, the second where the first are equal."""
        recall = f"recall_at_{self.recall_at[0]}"
        if self.select == "recall":
            return recall, "map_at_r"
        return (self.select, recall) if self.select == "map_at_r" else (self.select, "map_at_r")

    @property
    def last_epoch(self) -> int:
        """The epoch after which training ends."""
        return self.epochs if self.stop_after is None else self.stop_after
