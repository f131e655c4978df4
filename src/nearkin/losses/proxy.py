"""The core of the proxy-based losses: a batch against one or more learnable vectors per class."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor, nn

from nearkin.losses.base import (
    REDUCTIONS,
    Loss,
    check_embeddings,
    check_finite,
    check_label_range,
    check_labels,
    check_weight_values,
    check_weights,
    require_count,
    require_non_negative,
    require_one_of,
    runs_eagerly,
    weighted,
)
from nearkin.losses.sampled_classes import draw_classes, new_seed, rows_of, step_generator
from nearkin.losses.similarity import (
    Measured,
    Side,
    at_least_float32,
    full_precision,
    lengths,
    measure_by_autograd,
    similarities,
    through_similarities,
)
from nearkin.losses.tiles import MOST_AT_ONCE, Slice, Tiled, Work, classes_of_a_tile, through_tiles

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


STORAGES = ("float32", "bfloat16", "float16")


class ProxyLoss(Loss):
    """A loss over the similarities to learnable ``.proxies``, of shape ``(C, D)`` or ``(C, K, D)``.

    A subclass states its value, in :meth:`value`, and autograd finds the weights ∂L/∂S. Where that is too
    slow it states both in closed form as well, in :meth:`measure`. A term between proxies is an
    :meth:`extra_term`. All of them see the classes that a batch is compared with, which need not be all:
    S says how many there are, and ``num_classes`` does not.

    Args:
        num_classes: C; labels lie in ``0 … C − 1``.
        embedding_dim: D.
        proxies_per_class: K; without it the proxies are a ``(C, D)`` matrix.
        generator: starts the proxies; seed 0 if there is none.
    """

    needs_classes: ClassVar[bool] = True
    compares_samples = False
    on_sphere: bool = True
    """Whether S is made of cosines, or of raw inner products."""

    among_proxies: bool = False
    """Whether the loss also looks at similarities between proxies: S is then ``(2B, C)``, the samples' above
    those of their own proxies."""

    tiling: ClassVar[Literal["rows", "columns"] | None] = None
    """How the loss can be found tile after tile of classes, if it can: "rows", for a softmax over classes, by
    :meth:`own_logits` and :meth:`other_logits`; "columns", for a mean over classes, by :meth:`own_term` and
    :meth:`column_terms`."""

    own_in_sum: ClassVar[bool] = True
    """Whether the own class is in the softmax's sum."""

    tile: int | None = None
    """Classes of a tile; without it, all at once where they fit. Tiles change nothing but rounding."""

    draws: Tensor
    """Seed and step of the sampled classes, if classes are sampled."""

    _sample: float = 1.0
    _owned: Slice | None = None

    def __init__(
        self,
        num_classes: int,
        embedding_dim: int,
        generator: torch.Generator | None,
        proxies_per_class: int | None = None,
    ) -> None:
        super().__init__()
        require_count(num_classes=num_classes, embedding_dim=embedding_dim)
        self.num_classes = num_classes
        self.embedding_dim = embedding_dim
        shape: tuple[int, ...] = (num_classes, embedding_dim)
        if proxies_per_class is not None:
            shape = (num_classes, proxies_per_class, embedding_dim)
        generator = torch.Generator().manual_seed(0) if generator is None else generator
        self.proxies = nn.Parameter(self.initial_proxies(shape, generator))

    @property
    def sample(self) -> float:
        """The share of the classes outside a batch that it is compared with; see :meth:`sample_classes`."""
        return self._sample

    def sample_classes(self, share: float, generator: torch.Generator | None = None) -> None:
        """Compare a batch with its own classes and a random share of the others, new ones in every step.

        In training mode only: in evaluation mode a batch meets all classes. The gradient of ``.proxies`` is
        then a sparse tensor, with rows for the compared classes: the optimisers ``adamw``, ``adam`` and
        ``sgd`` of :mod:`nearkin.training.optimizers` touch and keep state for these only, and so does
        ``torch.optim.SparseAdam``. Means and sums over classes run over the compared ones.

        **Expectation.** A softmax over the compared classes is no unbiased estimate of the softmax over all.
        With n drawn classes, and up to terms of order 1/n, its mean gradient is that of the dense loss in
        which the exponential of a class outside the batch counts ``share`` times.

        What is drawn depends on a seed and on the number of the step, both of which are in ``state_dict``.

        Args:
            share: Above 0; 1 is the dense loss, bit for bit.
            generator: Draws the seed; without it, the seed is 0.
        """
        if not 0 < share <= 1:
            raise ValueError(f"sample={share} must be above 0 and at most 1: it is a share of the classes")
        self._sample = share
        if share < 1:
            seed = 0 if generator is None else new_seed(generator)
            self.register_buffer("draws", torch.tensor([seed, 0]))
        elif "draws" in self._buffers:
            del self.draws

    def store_proxies(self, storage: str, memory_map: str | os.PathLike[str] | None = None) -> None:
        """Keep the proxies in half precision, in a file, or both.

        What is compared is computed in float32 as always. It is meant for sampled classes: their optimisers
        update rows in float32 and round them, and touch no other row.

        Args:
            storage: "float32", "bfloat16" or "float16".
            memory_map: A folder, for a file that is mapped into memory: what is not used stays on the disk.
                The file loses its name at once, so that its space is free when the process ends, however it
                ends.
        """
        require_one_of(STORAGES, storage=storage)
        values = self.proxies.detach().to(getattr(torch, storage))
        if memory_map is not None:
            Path(memory_map).mkdir(parents=True, exist_ok=True)
            handle, file = tempfile.mkstemp(prefix=".proxies-", dir=memory_map)
            os.close(handle)
            mapped = torch.from_file(file, True, values.numel(), dtype=values.dtype)
            values = mapped.view(values.shape).copy_(values)
            with suppress(PermissionError):  # Windows keeps the names of files that are in use
                Path(file).unlink()
        self.proxies = nn.Parameter(values)

    def shard(self, rank: int, count: int, group: ProcessGroup | None = None) -> None:
        """Keep the proxies of a slice of the classes: those of one process of several.

        Every process calls the loss with the embeddings and labels of the *whole* batch, as
        :func:`nearkin.gather` brings them together, and gets the value of the whole batch and its whole
        gradient by the embeddings; its own proxies get their gradients, which are complete and must not be
        averaged. Sums are exchanged between the processes, similarities and proxies are not. With sampled
        classes each process draws from its own slice.

        Args:
            rank: Which process this is.
            count: Of how many.
            group: The processes; all by default.
        """
        if self.tiling is None:
            raise ValueError(f"{type(self).__name__} cannot be divided among processes")
        if self._owned is not None:
            raise ValueError(f"{type(self).__name__} has been divided among processes already")
        first, end = (self.num_classes * place // count for place in (rank, rank + 1))
        self._owned = Slice(first, end - first, group, count > 1)
        self.proxies = nn.Parameter(self.proxies.detach()[first:end].clone())
        if self._sample < 1:
            self.draws[0] += rank

    def initial_proxies(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Where the proxies start: normal with deviation √(2/C), kaiming by fan-out."""
        return torch.randn(shape, generator=generator) * sqrt(2 / self.num_classes)

    @property
    def traceable(self) -> bool:
        """Where all classes are compared at once."""
        sampled = self._sample < 1 and self.training
        return not sampled and self.tile is None and self._owned is None

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        *,
        references: Tensor | None = None,
        reference_labels: Tensor | None = None,
        reference_weight: float = 1.0,
        weights: Tensor | None = None,
        reduction: str | None = None,
    ) -> Tensor:
        """The loss of a batch, a scalar, or one value per sample.

        Args:
            embeddings: ``(B, D)``, raw.
            labels: ``(B,)`` integers in ``0 … C − 1``.
            references: ``(R, D)``, raw; they join the batch as constants: proxies learn from them as from
                samples, and no gradient reaches them. A memory, for example.
            reference_labels: ``(R,)``, theirs.
            reference_weight: how often each of them counts.
            weights: how often each sample counts, ``(B,)``, not negative.
            reduction: "mean" for the scalar, "none" for values ``(B,)`` whose mean it is; without it, the
                attribute of that name.
        """
        reduction = self.reduction if reduction is None else reduction
        require_one_of(REDUCTIONS, reduction=reduction)
        self._check_shapes(embeddings, labels, weights)
        given = (weights, reduction, references, reference_labels, reference_weight)
        traced = references is None and self.traceable and self._fits(embeddings)
        if torch.compiler.is_compiling() and not traced:
            return self._find_eagerly(embeddings, labels, *given)
        return self._find(embeddings, labels, *given)

    def _find(  # noqa: PLR0917  (forward's keywords)
        self,
        embeddings: Tensor,
        labels: Tensor,
        weights: Tensor | None,
        reduction: str,
        references: Tensor | None,
        reference_labels: Tensor | None,
        reference_weight: float,
    ) -> Tensor:
        """The loss of a batch whose shapes were checked."""
        with full_precision(embeddings):
            rows = at_least_float32(embeddings)
            if references is None or reference_labels is None:
                if references is not None or reference_labels is not None:
                    raise ValueError("references and reference_labels come together")
                value = self._against_proxies(rows, labels, weights, reduction)
            else:
                self._check_shapes(references, reference_labels, None, "reference")
                require_non_negative(reference_weight=reference_weight)
                joined = _join(rows, labels, weights, (references, reference_labels), reference_weight)
                value = _of_batch(self._against_proxies(*joined, reduction), len(rows))
            between = self.between_samples(rows, labels, weights, reduction)
            return value if between is None else value + between

    def _against_proxies(
        self, rows: Tensor, labels: Tensor, weights: Tensor | None, reduction: str
    ) -> Tensor:
        """What follows from similarities to proxies, and between these: a scalar, or values ``(B,)``."""
        norms = lengths(rows)
        if self.validate:
            check_finite(norms)
            check_label_range(labels, self.num_classes)
            if weights is not None:
                check_weight_values(weights)
        if not len(rows):
            nothing = rows.sum(dim=1) * 0
            if self._sample == 1:
                nothing = nothing + self.proxies.sum() * 0
            return nothing if reduction == "none" else nothing.sum()
        self.prepare(norms)
        samples = Side(rows, norms if self.on_sphere else None)
        classes = labels.long()
        proxies, labels = self._compared(classes)
        proxies = proxies.to(rows.dtype)
        if reduction == "mean" and weights is None and torch.compiler.is_compiling():
            value = self.value(similarities(*self._sides(samples, proxies, labels)), labels).mean()
        elif reduction == "mean" and weights is None:
            tiled = self._in_tiles(samples, proxies, classes, labels)
            value = self._through(samples, proxies, labels) if tiled is None else tiled
        else:
            self._refuse_slices()
            value = self._values(samples, proxies, labels, weights)
            value = value if reduction == "none" else value.mean()
        extra = self._whole_extra_term(proxies)
        return value if extra is None else value + extra

    _find_eagerly = runs_eagerly(_find)

    def _fits(self, embeddings: Tensor) -> bool:
        """Whether a batch is compared with all proxies at once, if nothing else was asked for."""
        return len(embeddings) * self.proxies.shape[:-1].numel() <= MOST_AT_ONCE

    def _compared(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The proxies of the classes that a batch is compared with, and the labels' places among them."""
        owned = self._owned or Slice(0, self.num_classes)
        labels = labels if self._owned is None else owned.labels(labels)
        if self._sample == 1 or not self.training:
            return self.proxies, labels
        seed, step = self.draws.tolist()
        self.draws[1] += 1
        chosen = draw_classes(labels, owned.size, self._sample, step_generator(seed, step))
        places = torch.searchsorted(chosen, labels)
        return rows_of(self.proxies, chosen), places if self._owned is None else torch.where(
            labels < 0, -1, places
        )

    def _in_tiles(self, samples: Side, proxies: Tensor, classes: Tensor, places: Tensor) -> Tensor | None:
        """The value, tile after tile, where that is wanted or needed."""
        if self.tiling is None:
            return None
        B, K = len(samples.rows), 1 if proxies.dim() == 2 else proxies.shape[1]
        if self._owned is None and self.tile is None and B * len(proxies) * K <= MOST_AT_ONCE:
            return None
        tile = self.tile or classes_of_a_tile(B, K)
        owned = self._owned or Slice(0, self.num_classes)
        return through_tiles(
            Tiled(self, classes, places, tile, owned, torch.is_grad_enabled()), samples, proxies
        )

    def _whole_extra_term(self, proxies: Tensor) -> Tensor | None:
        """The extra term, which of several slices is their mean by their sizes."""
        extra = self.extra_term(proxies)
        if extra is None or self._owned is None:
            return extra
        sizes = self._owned.sum(extra.new_tensor(len(proxies)))
        part = extra * (len(proxies) / sizes)
        return part + (self._owned.sum(part.detach().clone()) - part.detach())

    def _refuse_slices(self) -> None:
        if self._owned is not None:
            raise ValueError(
                f"{type(self).__name__} is divided among processes: there are no weights or values of samples"
            )

    def prepare(self, norms: Tensor) -> None:
        """Look at the lengths ``(B, 1)`` of the raw embeddings, before S is made of a batch."""

    def value(self, S: Tensor, labels: Tensor) -> Tensor:
        """The loss as a function of S, differentiable in S.

        Args:
            S: similarities ``(B, C)``, or ``(B, C·K)``, class after class.
            labels: ``(B,)`` int64.

        Returns:
            One value for each sample, ``(B,)``, whose mean is the loss. Or just a scalar: then there is no
            ``reduction="none"`` and there are no weights.
        """
        raise NotImplementedError(f"{type(self).__name__} must define value")

    def weighted_value(self, S: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
        """Values ``(B,)`` whose mean is the loss of samples that count ``weights`` ``(B,)`` times.

        For a mean over samples, the weighted mean; a loss with other sums over samples says here what a
        weight does in them.
        """
        values = self.value(S, labels)
        if not values.dim():
            raise ValueError(
                f"{type(self).__name__}.value gives a scalar: for weights and reduction='none' it must give "
                "one value per sample"
            )
        return weighted(values, weights)

    def measure(self, S: Tensor, labels: Tensor, with_weights: bool) -> Measured:
        """The scalar value and, where wanted, the weights ∂L/∂S; S stays as it is."""
        return measure_by_autograd(lambda S: self.value(S, labels).mean(), S, (), with_weights)

    def by_class(self, S: Tensor) -> Tensor:
        """One similarity ``(B, c)`` for each class, of those of its proxies, ``(B, c · K)``."""
        return S

    def own_class(self, S: Tensor) -> Tensor:
        """The same ``(B, 1)`` for the own class, of which nothing else is known to the loss."""
        return self.by_class(S)

    def look_ahead(self, work: Work) -> None:
        """Look at the tiles before they are compared."""

    def own_logits(self, own: Tensor) -> Tensor:
        """What becomes of the similarities ``(B, 1)`` of the own classes, differentiable."""
        raise NotImplementedError(f"{type(self).__name__} must define own_logits")

    def other_logits(self, others: Tensor, own: Tensor) -> Tensor:
        """What becomes of those of other classes ``(B, c)``, differentiable in them.

        Args:
            others: the own class may be among them; what becomes of it does not matter.
            own: those of the own classes, ``(B, 1)``, a constant.
        """
        raise NotImplementedError(f"{type(self).__name__} must define other_logits")

    def own_term(self, own: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """What the own similarities ``(B, 1)`` give, and their weights."""
        raise NotImplementedError(f"{type(self).__name__} must define own_term")

    def column_terms(self, S: Tensor, among: Tensor) -> Tensor:
        """What each class ``(c,)`` gives, differentiable in S ``(B, c)``, over the samples ``among`` it."""
        raise NotImplementedError(f"{type(self).__name__} must define column_terms")

    def remember(self, own: Tensor) -> None:
        """Look at the own similarities ``(B, 1)`` of a batch, in training mode, when its value is known."""

    def extra_term(self, proxies: Tensor) -> Tensor | None:
        """What the loss adds that depends on raw proxies ``(C, D)`` or ``(C, K, D)`` alone; or nothing."""
        return None

    def between_samples(
        self, embeddings: Tensor, labels: Tensor, weights: Tensor | None, reduction: str
    ) -> Tensor | None:
        """What the loss adds for pairs of samples of the batch, a scalar or values ``(B,)``; or nothing."""
        return None

    def _through(self, samples: Side, proxies: Tensor, labels: Tensor) -> Tensor:
        """The scalar: one node of autograd's graph, from embeddings and proxies to value."""
        left, right = self._sides(samples, proxies, labels)
        return through_similarities(
            lambda S, with_weights: self.measure(S, labels, with_weights), left, right
        )

    def _values(self, samples: Side, proxies: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
        """One value for each sample ``(B,)``, by autograd alone."""
        S = similarities(*self._sides(samples, proxies, labels))
        return self.weighted_value(S, labels, None if weights is None else weights.to(S.dtype))

    def _sides(self, samples: Side, proxies: Tensor, labels: Tensor) -> tuple[Side, Side]:
        """Samples and proxies; or samples, below them their own proxies, and all proxies."""
        proxies = proxies.flatten(0, -2)
        right = Side(proxies, lengths(proxies) if self.on_sphere else None)
        return samples.followed_by(right.at(labels)) if self.among_proxies else samples, right

    def extra_repr(self) -> str:
        """The constructor's keywords, and the share of the classes if they are sampled."""
        told = super().extra_repr()
        return told if self._sample == 1 else f"{told}, sample={self._sample}"

    def _check_shapes(
        self, embeddings: Tensor, labels: Tensor, weights: Tensor | None, kind: str = ""
    ) -> None:
        """Refuse what cannot be a batch, or its references; looks at shapes and dtypes only."""
        rows, classes = ("references", "reference_labels") if kind else ("embeddings", "labels")
        check_embeddings(embeddings, rows)
        check_labels(labels, embeddings, classes)
        if weights is not None:
            check_weights(weights, embeddings)
        if embeddings.shape[1] != self.embedding_dim:
            raise ValueError(
                f"embedding_dim={self.embedding_dim} but the {rows} have {embeddings.shape[1]} columns"
            )


def _join(
    rows: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    remembered: tuple[Tensor, Tensor],
    times: float,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Rows, labels and weights of a batch, and below them those of references, which are constants."""
    references, reference_labels = remembered
    if weights is not None or times != 1:
        own = rows.new_ones(len(rows)) if weights is None else weights.to(rows)
        weights = torch.cat([own, own.new_full((len(references),), times)])
    return (
        torch.cat([rows, references.detach().to(rows)]),
        torch.cat([labels.long(), reference_labels.long()]),
        weights,
    )


def _of_batch(value: Tensor, size: int) -> Tensor:
    """A scalar as it is; of values ``(B + R,)`` the batch's, and in each of them what the others sum up to.

    The mean over the batch is then what it was over all of them.

    >>> _of_batch(torch.tensor([1.0, 2.0, 6.0]), 2)
    tensor([2.6667, 3.3333])
    """
    if not value.dim():
        return value
    own, others = value.tensor_split([size])
    return (own * size + others.sum()) / len(value)
