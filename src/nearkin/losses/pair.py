"""The core of the pair-based losses: a batch against itself, or against references."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from nearkin import mining as miners
from nearkin.losses.base import Loss, check_embeddings, check_finite, check_labels
from nearkin.losses.similarity import (
    Measured,
    Side,
    at_least_float32,
    full_precision,
    lengths,
    through_similarities,
)
from nearkin.mining.base import as_float


class Pairs:
    """Who is whose kin, as masks and as numbers; each is made when it is first asked for.

    Processors multiply by ones and zeros several times faster than they choose by booleans.

    Args:
        find: gives positive and negative pairs ``(B, R)``, both booleans or both ones and zeros: those that
            share a class, no image with itself, and those that do not.
        labels: of the anchors, ``(B,)`` or multi-hot ``(B, L)``.
        embedding_dim: D.
        anchors: B, how many of the rows are anchors.
    """

    def __init__(
        self, find: Callable[[], tuple[Tensor, Tensor]], labels: Tensor, embedding_dim: int, anchors: int
    ) -> None:
        self._find = find
        self.labels = labels
        self.embedding_dim = embedding_dim
        self.anchors = anchors
        self._numbers: miners.Masks | None = None

    @cached_property
    def _found(self) -> miners.Masks:
        return miners.Masks(*self._find())

    @cached_property
    def positive(self) -> Tensor:
        """The pairs that share a class, boolean ``(B, R)``."""
        return self._found.positive.to(torch.bool)

    @cached_property
    def negative(self) -> Tensor:
        """The pairs that do not, boolean ``(B, R)``."""
        return self._found.negative.to(torch.bool)

    def indicators(self, like: Tensor) -> miners.Masks:
        """Positive and negative pairs as ones and zeros of the dtype of ``like``; not to be overwritten."""
        if self._numbers is None or self._numbers.positive.dtype != like.dtype:
            self._numbers = miners.Masks(*(as_float(found, like) for found in self._found))
        return self._numbers


class PairLoss(Loss):
    """A loss over the pairs of a batch.

    A subclass states its value and weights in :meth:`measure`; or only its value, in :meth:`value`, and
    autograd finds the weights.

    Labels are ``(B,)``, or a multi-hot ``(B, L)`` matrix where a pair is positive if it shares a label.
    ``references`` (a memory, a gallery) replace the batch as the other side of every pair; without them the
    batch is compared with itself and no image with itself, by index.
    """

    on_sphere: bool = True
    """Whether S is made of cosines, or of raw inner products."""

    among_references: bool = False
    """Whether the loss also looks at similarities between two references; with ``references=`` it then works
    on the ``(B + R, B + R)`` matrix of everybody against everybody."""

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        *,
        references: Tensor | None = None,
        reference_labels: Tensor | None = None,
    ) -> Tensor:
        """The loss of a batch, a scalar.

        Args:
            embeddings: ``(B, D)``, raw.
            labels: ``(B,)`` integers or multi-hot ``(B, L)``.
            references: ``(R, D)``, raw; the other side of the pairs, instead of the batch itself.
            reference_labels: of the same kind as ``labels``, for ``references``.
        """
        return self._evaluate(self.measure, embeddings, labels, references, reference_labels)

    def measure(self, S: Tensor, pairs: Pairs, with_weights: bool) -> Measured:
        """The value and, where wanted, the weights ∂L/∂S ``(B, R)``; S stays as it is."""
        parameters = self.own_parameters()
        if not with_weights:
            return Measured(self.value(S, pairs))
        with torch.enable_grad():
            S = S.detach().requires_grad_()
            value = self.value(S, pairs)
            if not value.requires_grad:
                return Measured(value, torch.zeros_like(S), tuple(map(torch.zeros_like, parameters)))
            weights, *own = torch.autograd.grad(value, [S, *parameters], materialize_grads=True)
        return Measured(value.detach(), weights, tuple(own))

    def extra_term(self, embeddings: Tensor, pairs: Pairs) -> Tensor | None:
        """What the loss adds to its function of S, from the raw embeddings; or nothing."""
        return None

    def value(self, S: Tensor, pairs: Pairs) -> Tensor:
        """The value alone, differentiable in S; for a loss whose weights are not worth writing down."""
        raise NotImplementedError(f"{type(self).__name__} must define measure or value")

    @torch.no_grad()
    def pair_weights(
        self,
        embeddings: Tensor,
        labels: Tensor,
        *,
        references: Tensor | None = None,
        reference_labels: Tensor | None = None,
    ) -> Tensor:
        """∂L/∂S ``(B, R)``: below 0 where the loss pulls a pair together, above 0 where it pushes.

        A loss that looks :attr:`among_references` gives ``(B + R, B + R)`` where there are some.
        """
        kept: list[Tensor | None] = []

        def measure(S: Tensor, pairs: Pairs, _: bool) -> Measured:
            measured = self.measure(S, pairs, True)
            kept.append(measured.weights)
            return measured

        self._evaluate(measure, embeddings, labels, references, reference_labels)
        columns = len(embeddings if references is None else references)
        weights = kept[0] if kept else None
        return embeddings.new_zeros(len(embeddings), columns) if weights is None else weights

    def _evaluate(
        self,
        measure: Callable[[Tensor, Pairs, bool], Measured],
        embeddings: Tensor,
        labels: Tensor,
        references: Tensor | None,
        reference_labels: Tensor | None,
    ) -> Tensor:
        """Check the inputs, form the pairs, and carry ``measure`` through the similarities."""
        self._check_shapes(embeddings, labels, references, reference_labels)
        with full_precision(embeddings):
            left = self._side(embeddings)
            right = None if references is None else self._side(references.to(left.rows.dtype), "references")
            if left.rows.numel() == 0 or (right is not None and right.rows.numel() == 0):
                return left.rows.sum() * 0
            pairs = _pairs(labels, reference_labels, left.rows)
            if right is not None and self.among_references:
                left, right, pairs = _everybody(left, right, pairs)
            value = through_similarities(
                lambda S, with_weights: measure(S, pairs, with_weights), left, right, self.own_parameters()
            )
            extra = self.extra_term(left.rows, pairs)
            return value if extra is None else value + extra

    def _side(self, embeddings: Tensor, what: str = "embeddings") -> Side:
        """One side of the comparison in full precision, checked, and its lengths where they are to be 1."""
        rows = at_least_float32(embeddings)
        norms = lengths(rows) if self.on_sphere else None
        if self.validate:
            check_finite(rows.detach() if norms is None else norms, what)
        return Side(rows, norms)

    def _check_shapes(
        self, embeddings: Tensor, labels: Tensor, references: Tensor | None, reference_labels: Tensor | None
    ) -> None:
        check_embeddings(embeddings)
        check_labels(labels, embeddings, multi_hot=True)
        if (references is None) != (reference_labels is None):
            raise ValueError("references and reference_labels come together")
        if references is None or reference_labels is None:
            return
        check_embeddings(references, "references")
        check_labels(reference_labels, references, "reference_labels", multi_hot=True)
        if references.shape[1] != embeddings.shape[1]:
            raise ValueError(
                f"references have {references.shape[1]} columns but the embeddings have {embeddings.shape[1]}"
            )
        if labels.shape[1:] != reference_labels.shape[1:]:
            shapes = f"{tuple(labels.shape)} and {tuple(reference_labels.shape)}"
            raise ValueError(f"labels and reference_labels must be of the same kind, not {shapes}")


class MinedPairLoss(PairLoss):
    """A pair loss that looks at the pairs or triplets a miner selects.

    Args:
        mining: a miner's name, or a miner.
        generator: draws what a random miner chooses, on the CPU whatever the device of the embeddings; seed 0
            if there is none. Its state travels in ``state_dict`` so that a resumed run draws the same.
    """

    def __init__(self, mining: str | miners.Miner, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.mining = mining
        self.generator = torch.Generator().manual_seed(0) if generator is None else generator
        self.miner = self.build_miner(mining) if isinstance(mining, str) else mining
        if not callable(self.miner):
            raise ValueError(f"mining={mining!r} must be a miner's name or a miner")

    def build_miner(self, name: str) -> miners.Miner:
        """The miner that this loss means by ``name``."""
        return miners.build(name)

    def mine(self, S: Tensor, pairs: Pairs) -> miners.Mined:
        """What the miner selects; it sees the values of S only, without gradient."""
        return self.miner(
            S.detach(),
            pairs.positive,
            pairs.negative,
            embedding_dim=pairs.embedding_dim,
            generator=self.generator,
        )

    def mine_pairs(self, S: Tensor, pairs: Pairs) -> miners.Masks:
        """What the miner selects, as ones and zeros; not to be overwritten."""
        refine = getattr(self.miner, "refine", None)
        if refine is not None:
            refined: miners.Masks = refine(S.detach(), *pairs.indicators(S))
            return refined
        return miners.Masks(*(as_float(mask, S) for mask in miners.as_masks(self.mine(S, pairs), S.shape)))

    def get_extra_state(self) -> Tensor:
        """The generator's state, a uint8 vector."""
        return self.generator.get_state()

    def set_extra_state(self, state: Any) -> None:
        """Continue the generator from ``state``."""
        self.generator.set_state(state.cpu())


def _pairs(labels: Tensor, reference_labels: Tensor | None, rows: Tensor) -> Pairs:
    """All pairs of ``rows`` ``(B, D)`` among themselves or with references."""
    return Pairs(lambda: find_pairs(labels, reference_labels, rows.dtype), labels, rows.shape[1], len(labels))


def find_pairs(
    labels: Tensor, reference_labels: Tensor | None = None, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Positive and negative pairs ``(B, R)``, as ones and zeros of ``dtype`` where these are quicker.

    A batch against itself leaves out the diagonal of both.

    >>> positive, negative = find_pairs(torch.tensor([7, 5, 7]))
    >>> positive
    tensor([[0., 0., 1.],
            [0., 0., 0.],
            [1., 0., 0.]])
    """
    others = labels if reference_labels is None else reference_labels
    if labels.dim() == 2:
        same = (labels.float() @ others.float().T) > 0
        if reference_labels is None:
            same.fill_diagonal_(True)  # even of an image without any label
    elif _are_exact(labels, dtype) and (others is labels or _are_exact(others, dtype)):
        numbers = labels.to(dtype)
        same = numbers.new_empty(len(labels), len(others))
        torch.eq(numbers.unsqueeze(1), numbers if others is labels else others.to(dtype), out=same)
    else:
        same = labels.unsqueeze(1) == others
    negative = ~same if same.dtype == torch.bool else 1 - same
    if reference_labels is None:
        same.fill_diagonal_(0)
    return same, negative


def _are_exact(labels: Tensor, dtype: torch.dtype) -> bool:
    """Whether ``dtype`` holds every label: a processor compares such numbers three times faster than labels.

    Elsewhere nothing would be gained, and the question would have to wait for the device.
    """
    if not labels.is_cpu or not labels.dtype.is_signed:
        return False
    lowest, highest = torch.aminmax(labels)
    return bool(max(-lowest.item(), highest.item()) < 1 / torch.finfo(dtype).eps)


def _everybody(left: Side, right: Side, pairs: Pairs) -> tuple[Side, None, Pairs]:
    """B anchors and R references as one batch of B + R, in which references are no anchors."""
    anchors, others = len(left.rows), len(right.rows)
    norms = None
    if left.norms is not None and right.norms is not None:
        norms = torch.cat([left.norms, right.norms])

    def find() -> tuple[Tensor, Tensor]:
        padding = (anchors, 0, 0, others)
        positive, negative = (nn.functional.pad(mask, padding) for mask in (pairs.positive, pairs.negative))
        return positive, negative

    everybody = Side(torch.cat([left.rows, right.rows]), norms)
    return everybody, None, Pairs(find, pairs.labels, pairs.embedding_dim, anchors)
