"""Embeddings whose first dimensions are embeddings by themselves, by any loss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from nearkin.losses.base import Loss, check_embeddings, require_count, require_non_negative
from nearkin.losses.modifiers.base import Modifier, register, resized
from nearkin.losses.modifiers.memory import CrossBatchMemory
from nearkin.losses.wrapping import LossFunction


@register("matryoshka")
class Matryoshka(Modifier):
    """Any loss of several beginnings of the embeddings at once, so that each of them is an embedding.

    Equation:
        L = Σ_d w_d · loss(x[:, :d])

        Each beginning is normalised by the loss itself. Proxies are cut likewise: ``proxies[..., :d]``.

    Source:
        Kusupati et al. Matryoshka Representation Learning. NeurIPS 2022. arXiv:2205.13147.

    When to use:
        When one model shall serve several sizes: search with 64 numbers per image, decide with 512. After
        training ``model.embed(…, dim=64)``. It costs one more loss per size and nothing in the network.

    Relations:
        Around a sum of losses it is the sum of what it is around each of them. One size that is the whole
        embedding is the inner loss, bit for bit. A :class:`CrossBatchMemory` goes around it, not into it: its
        references are cut as the batch is.

    Keywords of ``forward`` go to the inner loss for every size; ``references`` are cut. What a loss keeps
    beside its parameters (running statistics) is that of all sizes together.

    Args:
        loss: the inner loss, ours or anything :func:`~nearkin.losses.as_loss` takes.
        sizes: d, each once; the embedding's own size is not added by itself.
        weights: w_d, as many as sizes; 1 each if they are not given.
        embedding_dim: D, to refuse larger sizes at once; otherwise the first batch tells.

    Example:
        >>> from nearkin.losses import build
        >>> loss = Matryoshka(build("contrastive"), sizes=[2, 1])
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8]])
        >>> loss(embeddings, torch.tensor([0, 0]))  # 1 - 0.6 of two dimensions, and 0 of the first alone
        tensor(0.4000)
    """

    order: ClassVar[int] = 20

    def __init__(
        self,
        loss: Loss | nn.Module | LossFunction,
        sizes: Sequence[int],
        weights: Sequence[float] | None = None,
        *,
        embedding_dim: int | None = None,
    ) -> None:
        super().__init__(loss)
        if isinstance(sizes, int) or not len(sizes):
            raise ValueError(f"sizes={sizes!r} must be one or more sizes, such as [512, 256, 128, 64]")
        for size in sizes:
            require_count(sizes=size)
        if len(set(sizes)) < len(sizes):
            raise ValueError(f"sizes={list(sizes)} names a size twice: give it a weight instead")
        if weights is not None and len(weights) != len(sizes):
            raise ValueError(f"{len(weights)} weights for {len(sizes)} sizes: give one each")
        for weight in weights or ():
            require_non_negative(weights=weight)
        if any(isinstance(part, CrossBatchMemory) for part in self.loss.modules()):
            raise ValueError("matryoshka cannot go around a memory: put the memory around matryoshka")
        self.sizes = tuple(sizes)
        self.weights = None if weights is None else tuple(float(weight) for weight in weights)
        if embedding_dim is not None:
            self._check_sizes(embedding_dim)

    @property
    def traceable(self) -> bool:
        """As the inner loss is."""
        return self.loss.traceable

    def forward(self, embeddings: Tensor, labels: Tensor, **keywords: Any) -> Tensor:
        """The weighted sum over the sizes, a scalar or one value per sample.

        Args:
            embeddings: ``(B, D)``, raw.
            labels: ``(B,)``, or what else the inner loss takes.
            keywords: what else the inner loss takes.
        """
        check_embeddings(embeddings)
        self._check_sizes(embeddings.shape[1])
        if self.reduction != "mean":
            keywords.setdefault("reduction", self.reduction)
        total: Tensor | None = None
        for size, weight in zip(self.sizes, self.weights or [1.0] * len(self.sizes), strict=True):
            value = self._of_size(size, embeddings, labels, keywords)
            value = value if weight == 1 else weight * value
            total = value if total is None else total + value
        assert total is not None
        return total

    def _of_size(self, size: int, embeddings: Tensor, labels: Tensor, keywords: dict[str, Any]) -> Tensor:
        if size == embeddings.shape[1]:
            return self.inner(embeddings, labels, keywords)
        references = keywords.get("references")
        if references is not None:
            keywords = {**keywords, "references": references[:, :size]}
        with cut(self.loss, size):
            return self.inner(embeddings[:, :size], labels, keywords)

    def takes(self, keyword: str) -> bool:
        """What the inner loss takes."""
        return self.loss.takes(keyword)

    def asks(self, keyword: str) -> bool:
        """What the inner loss asks for."""
        return self.loss.asks(keyword)

    def resized(self, embedding_dim: int, generator: torch.Generator) -> Loss:
        """The inner loss alone: embeddings of another size are not the ones that are cut later."""
        return resized(self.loss, embedding_dim, generator)

    def _check_sizes(self, embedding_dim: int) -> None:
        if max(self.sizes) > embedding_dim:
            raise ValueError(
                f"sizes={list(self.sizes)}: {max(self.sizes)} is more than embedding_dim={embedding_dim}"
            )

    def extra_repr(self) -> str:
        """The sizes and their weights."""
        return f"sizes={self.sizes}" + ("" if self.weights is None else f", weights={self.weights}")


@contextmanager
def cut(loss: nn.Module, size: int) -> Iterator[None]:
    """Inside the block a loss is one for embeddings of ``size``: the first columns of its proxies.

    These are the parameters ``(…, D)`` of every part that says its ``embedding_dim`` D; gradients reach them.
    """
    parts = [part for part in loss.modules() if isinstance(getattr(part, "embedding_dim", None), int)]
    whole = [(part, part.embedding_dim, dict(part._parameters)) for part in parts]
    try:
        for part, dim, parameters in whole:
            for name, parameter in parameters.items():
                if parameter is not None and parameter.dim() > 1 and parameter.shape[-1] == dim:
                    part._parameters[name] = parameter[..., :size]  # type: ignore[assignment]
            part.embedding_dim = size  # type: ignore[assignment]
        yield
    finally:
        for part, dim, parameters in whole:
            part._parameters.update(parameters)
            part.embedding_dim = dim
