"""A memory of past batches, for any loss over pairs or proxies."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from nearkin.losses.base import Loss, check_embeddings, check_labels, require_non_negative, runs_eagerly
from nearkin.losses.modifiers.base import Modifier, base_of, modifiers_in, register
from nearkin.losses.modifiers.mixup import Mixup
from nearkin.losses.proxy import ProxyLoss
from nearkin.losses.wrapping import LossFunction

_NO_ID = -1


@register("memory")
class CrossBatchMemory(Modifier):
    """Compare a batch with itself and with the embeddings of the batches before it.

    Equation:
        L = loss(batch) + w · loss(batch, references = memory)
        L = loss(batch and memory), for a loss with proxies

        The memory is a queue of the last M embeddings that training produced, without gradient. Of a loss
        with proxies, what is remembered joins the samples X_c⁺ and X_c⁻ of each class as constants, and
        counts w times: proxies learn from all of them, the network from the batch.

    Source:
        Wang, Zhang, Huang, Scott. Cross-Batch Memory for Embedding Learning. CVPR 2020. arXiv 1912.06798.
        (There the memory already holds the present batch; here the first term stands for it.) For proxies:
        the future work of the thesis "Metric Learning: A Deep Dive", chapter 7.

    When to use:
        With pair losses whose batch is too small to hold hard negatives: thousands of references for the
        price of one matrix product. With proxy losses whose classes are many and batches small, so that a
        proxy seldom meets its own samples. Embeddings must drift slowly, so let ``warmup_steps`` pass the
        first, fast phase.

    The queue fills from the first training step on, during the warm-up too. While it is not full, the batch
    is compared with what is there; while it is empty, the second term is 0. In ``eval()`` mode nothing is
    stored and no step counted.

    Where ``ids`` are given, a stored embedding of a sample that is in the present batch is left out of the
    references for that step: it is an outdated copy, and the batch has the new one. (On CUDA this waits for
    the device once per step, to know how many are left.) Without ``ids`` such a copy counts as a positive of
    its own sample.

    The queue travels in ``state_dict``, so that a resumed run continues with it.

    Args:
        loss: a loss that takes ``references`` and ``reference_labels``.
        size: M, how many embeddings are kept; about 10 to 50 batches, or the whole training set.
        warmup_steps: for how many training steps the batch alone counts.
        weight: w.

    Attributes:
        joins: whether what is remembered joins the batch: the loss has proxies.

    Example:
        >>> from nearkin.losses import build
        >>> loss = CrossBatchMemory(build("contrastive"), size=4)
        >>> first, second = torch.tensor([[1.0, 0.0], [0.6, 0.8]])
        >>> loss(first[None], torch.tensor([0]), ids=torch.tensor([7]))  # alone: nothing to learn from
        tensor(0.)
        >>> loss(second[None], torch.tensor([0]), ids=torch.tensor([8]))  # a positive: 1 - 0.6
        tensor(0.4000)
        >>> loss.filled
        2
    """

    order: ClassVar[int] = 30

    embeddings: Tensor | None
    labels: Tensor | None
    ids: Tensor
    steps: Tensor
    stored: Tensor

    def __init__(
        self, loss: Loss | nn.Module | LossFunction, size: int, *, warmup_steps: int = 0, weight: float = 1.0
    ) -> None:
        super().__init__(loss)
        if not (self.loss.takes("references") and self.loss.takes("reference_labels")):
            raise ValueError(
                f"{self.loss.name} cannot use a memory: it takes no references, as losses over pairs and "
                "losses over proxies do"
            )
        self.joins = isinstance(base_of(self.loss), ProxyLoss)
        if self.joins and any(isinstance(part, Mixup) for part in modifiers_in(self.loss)):
            raise ValueError(
                f"mixup around {base_of(self.loss).name} cannot use a memory: what is remembered joins the "
                "batch of a loss with proxies, and would be mixed"
            )
        if size < 1:
            raise ValueError(f"size={size} must be at least 1")
        require_non_negative(warmup_steps=warmup_steps, weight=weight)
        self.size = size
        self.warmup_steps = warmup_steps
        self.weight = weight
        # The width of embeddings and the kind of labels are known when the first batch comes.
        self.register_buffer("embeddings", None)
        self.register_buffer("labels", None)
        self.register_buffer("ids", torch.full((size,), _NO_ID))
        self.register_buffer("steps", torch.tensor(0))
        self.register_buffer("stored", torch.tensor(0))
        self._read_counters()

    @runs_eagerly
    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        ids: Tensor | None = None,
        *,
        weights: Tensor | None = None,
        reduction: str | None = None,
    ) -> Tensor:
        """The loss of a batch, a scalar or one value per sample; in training mode the batch is then stored.

        Args:
            embeddings: ``(B, D)``, raw.
            labels: ``(B,)`` integers or multi-hot ``(B, L)``.
            ids: which sample each row is, ``(B,)``, integers from 0 on.
            weights: how often each sample counts as an anchor, ``(B,)``, not negative.
            reduction: "mean" or "none"; without it, the attribute of that name.
        """
        self._check(embeddings, labels, ids)
        reduction = self.reduction if reduction is None else reduction
        asked: dict[str, Any] = {} if weights is None else {"weights": weights}
        if reduction != "mean":
            asked["reduction"] = reduction
        remembered: dict[str, Any] = {}
        if self._steps >= self.warmup_steps and self.filled:
            references, reference_labels = self.recall(ids)
            remembered = {"references": references.to(embeddings.dtype), "reference_labels": reference_labels}
        value: Tensor
        if remembered and self.joins:
            value = self.loss(embeddings, labels, **remembered, reference_weight=self.weight, **asked)
        else:
            value = self.loss(embeddings, labels, **asked)
            if remembered:
                value = value + self.weight * self.loss(embeddings, labels, **remembered, **asked)
        if self.training:
            self._store(embeddings.detach(), labels, ids)
        return value

    @property
    def filled(self) -> int:
        """How many embeddings are stored at present, at most ``size``."""
        return min(self._stored, self.size)

    def recall(self, without_ids: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Copies of the stored embeddings ``(R, D)`` and labels, without those of the given samples."""
        if self.embeddings is None or self.labels is None:
            raise RuntimeError("nothing is stored yet")
        embeddings, labels = self.embeddings[: self.filled], self.labels[: self.filled]
        if without_ids is None:
            return embeddings.clone(), labels.clone()  # the next batch overwrites what backward still needs
        others = torch.isin(self.ids[: self.filled], without_ids, invert=True)
        return embeddings[others], labels[others]

    @torch.no_grad()
    def _store(self, embeddings: Tensor, labels: Tensor, ids: Tensor | None) -> None:
        """Overwrite the oldest entries; of a batch larger than the memory its last rows stay."""
        if self.embeddings is None or self.labels is None:
            self.embeddings = embeddings.new_zeros(self.size, embeddings.shape[1])
            self.labels = labels.new_zeros(self.size, *labels.shape[1:])
        kept = min(len(embeddings), self.size)
        first = self._stored + len(embeddings) - kept
        places = torch.arange(first, first + kept, device=embeddings.device) % self.size
        self.embeddings[places] = embeddings[-kept:].to(self.embeddings.dtype)
        self.labels[places] = labels[-kept:].to(self.labels.dtype)
        self.ids[places] = _NO_ID if ids is None else ids[-kept:].long()
        self._stored += len(embeddings)
        self._steps += 1
        self.stored += len(embeddings)
        self.steps += 1

    def _read_counters(self) -> None:
        """Keep the counters on the host as well, so that no step has to wait for the device."""
        self._steps, self._stored = int(self.steps), int(self.stored)

    def _check(self, embeddings: Tensor, labels: Tensor, ids: Tensor | None) -> None:
        check_embeddings(embeddings)
        check_labels(labels, embeddings, multi_hot=True)
        if ids is not None:
            check_labels(ids, embeddings, "ids")
        if self.embeddings is None or self.labels is None:
            return
        if embeddings.shape[1] != self.embeddings.shape[1]:
            raise ValueError(
                f"the embeddings have {embeddings.shape[1]} columns but the stored ones "
                f"have {self.embeddings.shape[1]}"
            )
        if labels.shape[1:] != self.labels.shape[1:]:
            shapes = f"{tuple(labels.shape)} and {tuple(self.labels.shape)}"
            raise ValueError(f"labels and stored labels must be of the same kind, not {shapes}")

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        """Make room for a queue of any width before loading it, or forget ours where there is none."""
        *_, errors = arguments
        for name in ("embeddings", "labels"):
            queue = state_dict.get(prefix + name)
            if queue is not None and len(queue) != self.size:
                errors.append(f"size={self.size} but the stored memory holds {len(queue)} {name}")
                return
            setattr(self, name, None if queue is None else torch.empty_like(queue, device=self.ids.device))
        super()._load_from_state_dict(state_dict, prefix, *arguments)
        self._read_counters()

    def takes(self, keyword: str) -> bool:
        """What ``forward`` has: no references, which are its own."""
        return Loss.takes(self, keyword)

    def asks(self, keyword: str) -> bool:
        """What ``forward`` has."""
        return Loss.takes(self, keyword)

    def extra_repr(self) -> str:
        """The constructor's keywords and how full the memory is."""
        settings = f"size={self.size}, warmup_steps={self.warmup_steps}, weight={self.weight}"
        return f"{settings}, filled={self.filled}"
