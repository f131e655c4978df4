"""The core of the pair-based losses: a batch against itself, or against references."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nearkin import mining as miners
from nearkin.losses.base import (
    REDUCTIONS,
    Loss,
    check_embeddings,
    check_finite,
    check_labels,
    check_weight_values,
    check_weights,
    or_one,
    require_one_of,
    runs_eagerly,
    weighted,
)
from nearkin.losses.metric import COSINE, Metric, find_metric
from nearkin.losses.similarity import (
    Measured,
    Side,
    at_least_float32,
    full_precision,
    lengths,
    measure_by_autograd,
    similarities,
    through_similarities,
    through_weights,
)
from nearkin.mining.base import as_float


class Pairs:
    """Which pairs are positive and which negative, as masks and as numbers; made when first asked for.

    Processors multiply by ones and zeros several times faster than they choose by booleans.

    Args:
        find: gives positive and negative pairs ``(B, R)``, both booleans or both ones and zeros: those that
            share a class, no sample with itself, and those that do not.
        labels: of the anchors, ``(B,)`` or multi-hot ``(B, L)``.
        embedding_dim: D.
        anchors: how many of the rows, the first ones, are anchors.
        weights: how often each row counts as an anchor, ``(B,)``; once if they are not given.
    """

    def __init__(
        self,
        find: Callable[[], tuple[Tensor, Tensor]],
        labels: Tensor,
        embedding_dim: int,
        anchors: int,
        weights: Tensor | None = None,
    ) -> None:
        self._find = find
        self.labels = labels
        self.embedding_dim = embedding_dim
        self.anchors = anchors
        self.weights = weights
        # No cached_property: that of older Pythons holds a lock, which torch.compile cannot look into.
        self._pairs: miners.Masks | None = None
        self._masks: miners.Masks | None = None
        self._numbers: miners.Masks | None = None

    @property
    def _found(self) -> miners.Masks:
        if self._pairs is None:
            self._pairs = miners.Masks(*self._find())
        return self._pairs

    @property
    def _booleans(self) -> miners.Masks:
        if self._masks is None:
            self._masks = miners.Masks(*(found.to(torch.bool) for found in self._found))
        return self._masks

    @property
    def positive(self) -> Tensor:
        """The pairs that share a class, boolean ``(B, R)``."""
        return self._booleans.positive

    @property
    def negative(self) -> Tensor:
        """The pairs that do not, boolean ``(B, R)``."""
        return self._booleans.negative

    def indicators(self, like: Tensor) -> miners.Masks:
        """Positive and negative pairs as ones and zeros of the dtype of ``like``; not to be overwritten."""
        if self._numbers is None or self._numbers.positive.dtype != like.dtype:
            self._numbers = miners.Masks(*(as_float(found, like) for found in self._found))
        return self._numbers

    def mean_over_anchors(self, values: Tensor, among: Tensor | None = None) -> Tensor:
        """The mean of values ``(B,)`` over the anchors in ``among``, boolean ``(B,)``, or over all of them.

        Returns:
            One part for each row, ``(B,)``: their mean over the anchors is that mean.
        """
        counts = torch.ones_like(values) if among is None else among.to(values.dtype)
        counts[self.anchors :] = 0
        return self.mean_of_sums(values, counts)

    def mean_over_pairs(self, terms: Tensor, among: Tensor) -> Tensor:
        """The mean of terms ``(B, R)`` over the pairs in ``among``, boolean ``(B, R)``; parts as above."""
        return self.mean_of_sums(torch.where(among, terms, 0).sum(dim=1), among.sum(dim=1).to(terms.dtype))

    def mean_of_sums(self, sums: Tensor, counts: Tensor) -> Tensor:
        """The mean over all terms, of which each anchor has ``counts`` and their ``sums`` ``(B,)``; as above.

        >>> pairs = Pairs(lambda: find_pairs(torch.tensor([0, 0])), torch.tensor([0, 0]), 2, anchors=2)
        >>> pairs.mean_of_sums(torch.tensor([6.0, 0.0]), torch.tensor([2.0, 1.0]))
        tensor([4., 0.])
        """
        sums = torch.where(counts > 0, sums, 0)
        if self.weights is not None:
            sums, counts = sums * self.weights, counts * self.weights
        return sums * (self.anchors / or_one(counts.sum()))


class Comparison(NamedTuple):
    """What a pair loss compares with what.

    Attributes:
        left: the anchors.
        right: the other side of the pairs, or ``None`` where the anchors are compared with themselves.
        pairs: which of them are positive and negative.
        places: which rows of the batch the anchors are, ``(A,)``; all of them, in order, if not given.
    """

    left: Side
    right: Side | None
    pairs: Pairs
    places: Tensor | None = None


class PairLoss(Loss):
    """A loss over the pairs of a batch.

    A subclass states its value, in :meth:`value`, and autograd finds the weights ∂L/∂S. Where that is too
    slow it states both in closed form as well, in :meth:`measure`.

    Labels are ``(B,)``, or a multi-hot ``(B, L)`` matrix where a pair is positive if it shares a label.
    ``references`` (a memory, a gallery) replace the batch as the other side of every pair; without them the
    batch is compared with itself and no sample with itself, by index. Where pairs are known and classes are
    not, ``known_pairs`` take the place of labels.
    """

    on_sphere: bool = True
    """Whether S is made of cosines, or of raw inner products."""

    geometry: Metric = COSINE
    """The measure of nearness, where the loss has a choice; set by :meth:`use_metric`."""

    among_references: bool = False
    """Whether the loss also looks at similarities between two references; with ``references=`` it then works
    on the ``(B + R, B + R)`` matrix of everything against everything."""

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        *,
        references: Tensor | None = None,
        reference_labels: Tensor | None = None,
        known_pairs: Tensor | None = None,
        weights: Tensor | None = None,
        reduction: str | None = None,
    ) -> Tensor:
        """The loss of a batch, a scalar, or one value per sample.

        Args:
            embeddings: ``(B, D)``, raw.
            labels: ``(B,)`` integers or multi-hot ``(B, L)``.
            references: ``(R, D)``, raw; the other side of the pairs, instead of the batch itself.
            reference_labels: of the same kind as ``labels``, for ``references``.
            known_pairs: in place of labels, what is known of each pair, ``(B, R)``: above 0 the same, below 0
                different, 0 nothing; of a batch with itself ``(B, B)``, whose diagonal is not looked at.
            weights: how often each sample counts as an anchor, ``(B,)``, not negative.
            reduction: "mean" for the scalar, "none" for values ``(B,)`` whose mean it is; without it, the
                attribute of that name.
        """
        reduction = self.reduction if reduction is None else reduction
        require_one_of(REDUCTIONS, reduction=reduction)
        labels, reference_labels = self._labels(
            embeddings, labels, references, reference_labels, known_pairs=known_pairs
        )
        self._check_shapes(embeddings, labels, references, reference_labels, weights)
        with full_precision(embeddings):
            compared = self._compare(
                embeddings, labels, references, reference_labels, weights, known_pairs=known_pairs
            )
            if reduction == "none" or weights is not None:
                find = self._values
                if torch.compiler.is_compiling() and not self.traceable:
                    find = self._values_eagerly
                values = find(embeddings, compared, weights)
                return values if reduction == "none" else values.mean() if len(values) else values.sum()
            if compared is None:
                return at_least_float32(embeddings).sum() * 0
            if torch.compiler.is_compiling():
                return self._in_graph(at_least_float32(embeddings), compared)
            return self._through(self.measure, at_least_float32(embeddings), compared)

    @property
    def traceable(self) -> bool:
        """A loss that states its value as a function of S is; one that states weights only is not."""
        return type(self).value is not PairLoss.value

    def use_metric(self, metric: str | Mapping[str, Any] | Metric) -> None:
        """Compare by another nearness than the cosine; for constructors that take ``metric=``."""
        self.metric = metric
        self.geometry = find_metric(metric)
        self.on_sphere = self.geometry.on_sphere

    def value(self, S: Tensor, pairs: Pairs) -> Tensor:
        """The loss as a function of S, differentiable in S.

        Returns:
            One value for each row, ``(B,)``, whose mean over the anchors is the loss: what
            ``pairs.mean_over_anchors`` and ``pairs.mean_over_pairs`` give, weights included. Or just a
            scalar: then there is no ``reduction="none"`` and there are no weights.
        """
        raise NotImplementedError(f"{type(self).__name__} must define value or measure")

    def measure(self, S: Tensor, pairs: Pairs, with_weights: bool) -> Measured:
        """The scalar value and, where wanted, the weights ∂L/∂S ``(B, R)``; S stays as it is."""

        def scalar(S: Tensor) -> Tensor:
            value = self.value(S, pairs)
            return value.sum() / pairs.anchors if value.dim() else value

        return measure_by_autograd(scalar, S, self.own_parameters(), with_weights)

    def extra_values(self, embeddings: Tensor, pairs: Pairs) -> Tensor | None:
        """What the loss adds to its function of S, a value for each raw embedding ``(B,)``; or nothing."""
        return None

    def select(self, compared: Comparison, reference_labels: Tensor | None) -> Comparison:
        """Which anchors are compared with what; here all of the batch with all of the other side."""
        left, right, pairs, _ = compared
        if right is None or not self.among_references:
            return compared
        return Comparison(left.followed_by(right), None, _everything(pairs, len(right.rows)))

    @torch.no_grad()
    def pair_weights(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        *,
        references: Tensor | None = None,
        reference_labels: Tensor | None = None,
        known_pairs: Tensor | None = None,
    ) -> Tensor:
        """∂L/∂S ``(B, R)``: below 0 where the loss pulls a pair together, above 0 where it pushes.

        A loss that looks :attr:`among_references` gives ``(B + R, B + R)`` where there are some.
        """
        labels, reference_labels = self._labels(
            embeddings, labels, references, reference_labels, known_pairs=known_pairs
        )
        self._check_shapes(embeddings, labels, references, reference_labels)
        with full_precision(embeddings):
            compared = self._compare(
                embeddings, labels, references, reference_labels, known_pairs=known_pairs
            )
            if compared is None:
                columns = len(embeddings if references is None else references)
                return embeddings.new_zeros(len(embeddings), columns)
            weights = self.measure(similarities(compared.left, compared.right), compared.pairs, True).weights
        assert weights is not None
        return weights

    def _through(
        self, measure: Callable[[Tensor, Pairs, bool], Measured], embeddings: Tensor, compared: Comparison
    ) -> Tensor:
        """The scalar: one node of autograd's graph, from embeddings to value."""
        left, right, pairs, _ = compared
        value = through_similarities(
            lambda S, with_weights: measure(S, pairs, with_weights), left, right, self.own_parameters()
        )
        extra = self.extra_values(embeddings, pairs)
        return value if extra is None else value + extra.mean()

    def _in_graph(self, embeddings: Tensor, compared: Comparison) -> Tensor:
        """The scalar as ``torch.compile`` sees it: by autograd alone, from S on or, where S decides, up to S.

        A compiler fuses passes and finds the gradient itself; a node with a gradient of its own would only
        be in its way.
        """
        left, right, pairs, _ = compared
        S = similarities(left, right)
        if self.traceable:
            value = self.value(S, pairs)
            value = value.sum() / pairs.anchors if value.dim() else value
        else:
            value = self._measured(S, pairs)
        extra = self.extra_values(embeddings, pairs)
        return value if extra is None else value + extra.mean()

    @runs_eagerly
    def _measured(self, S: Tensor, pairs: Pairs) -> Tensor:
        """The scalar, differentiable in S by its weights."""
        return through_weights(
            lambda S, with_weights: self.measure(S, pairs, with_weights), S, self.own_parameters()
        )

    def _values(self, embeddings: Tensor, compared: Comparison | None, weights: Tensor | None) -> Tensor:
        """One value for each sample ``(B,)``, by autograd alone."""
        rows = at_least_float32(embeddings)
        nothing = rows.sum(dim=1) * 0
        if compared is None:
            return nothing
        left, right, pairs, places = compared
        values = self.value(similarities(left, right), pairs)
        if not values.dim():
            raise ValueError(
                f"{type(self).__name__}.value gives a scalar: for weights and reduction='none' it must give "
                "one value per anchor, as pairs.mean_over_anchors and pairs.mean_over_pairs do"
            )
        values = values[: pairs.anchors]
        if places is not None:
            values = nothing.index_add(0, places, values) * (len(rows) / pairs.anchors)
        extra = self.extra_values(rows, pairs)
        return nothing + values if extra is None else values + weighted(extra, weights)

    _values_eagerly = runs_eagerly(_values)

    def _compare(
        self,
        embeddings: Tensor,
        labels: Tensor,
        references: Tensor | None,
        reference_labels: Tensor | None,
        weights: Tensor | None = None,
        *,
        known_pairs: Tensor | None = None,
    ) -> Comparison | None:
        """Both sides in full precision and their pairs, or ``None`` where one of them is empty."""
        left = self._side(embeddings)
        right = None if references is None else self._side(references.to(left.rows.dtype), "references")
        if weights is not None:
            weights = weights.to(left.rows.dtype)
            if self.validate:
                check_weight_values(weights)
        if left.rows.numel() == 0 or (right is not None and right.rows.numel() == 0):
            return None
        dtype, anchors = left.rows.dtype, len(left.rows)

        def find() -> tuple[Tensor, Tensor]:
            if known_pairs is None:
                return find_pairs(labels, reference_labels, dtype)
            return masks_of(known_pairs, with_itself=references is None)

        pairs = Pairs(find, labels, left.rows.shape[1], anchors, weights)
        compared = self.select(Comparison(left, right, pairs), reference_labels)
        if not compared.pairs.anchors:
            return None
        left, right = self.geometry.place(compared.left, compared.right)
        return compared._replace(left=left, right=right)

    def _labels(
        self,
        embeddings: Tensor,
        labels: Tensor | None,
        references: Tensor | None,
        reference_labels: Tensor | None,
        *,
        known_pairs: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """The labels; where pairs are known instead, every row is a class of its own."""
        if known_pairs is None:
            if labels is None:
                raise ValueError(f"{self.name} needs labels, or known_pairs= in their place")
            return labels, reference_labels
        if labels is not None or reference_labels is not None:
            raise ValueError("labels or known_pairs, not both: each says which pairs are the same")
        if self.chooses_by_class:
            raise ValueError(
                f"{self.name} chooses pairs by their class here, and takes labels, no known_pairs"
            )
        rows = len(embeddings)
        shape = rows, rows if references is None else len(references)
        if known_pairs.shape != shape:
            raise ValueError(f"known_pairs must have shape {shape}, not {tuple(known_pairs.shape)}")
        numbers = torch.arange(rows, device=embeddings.device)
        others = None if references is None else rows + torch.arange(shape[1], device=embeddings.device)
        return numbers, others

    @property
    def chooses_by_class(self) -> bool:
        """Whether the loss asks for more of a label than which pairs are the same."""
        return False

    def _side(self, embeddings: Tensor, what: str = "embeddings") -> Side:
        """One side of the comparison in full precision, checked, and its lengths where they are to be 1."""
        rows = at_least_float32(embeddings)
        norms = lengths(rows) if self.on_sphere else None
        if self.validate:
            check_finite(rows.detach() if norms is None else norms, what)
        return Side(rows, norms)

    def _check_shapes(
        self,
        embeddings: Tensor,
        labels: Tensor,
        references: Tensor | None,
        reference_labels: Tensor | None,
        weights: Tensor | None = None,
    ) -> None:
        check_embeddings(embeddings)
        check_labels(labels, embeddings, multi_hot=True)
        if weights is not None:
            check_weights(weights, embeddings)
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

    @property
    def traceable(self) -> bool:
        """Where the miner is: one that gives masks by arithmetic alone."""
        return super().traceable and bool(getattr(self.miner, "traceable", False))

    def build_miner(self, name: str) -> miners.Miner:
        """The miner that this loss means by ``name``."""
        return miners.build(name)

    def mine(self, S: Tensor, pairs: Pairs) -> miners.Mined:
        """What the miner selects; it sees values only, without gradient: cosines, or a metric's nearness."""
        S = S.detach()
        return self.miner(
            S if self.geometry.on_sphere else self.geometry.nearness(S),
            pairs.positive,
            pairs.negative,
            embedding_dim=pairs.embedding_dim,
            generator=self.generator,
        )

    def mine_pairs(self, S: Tensor, pairs: Pairs) -> miners.Masks:
        """What the miner selects, as ones and zeros; not to be overwritten."""
        mined = self.mine_masks(S, pairs)
        numbers = pairs.indicators(S)
        return miners.Masks(
            numbers.positive if mined.positive is pairs.positive else as_float(mined.positive, S),
            numbers.negative if mined.negative is pairs.negative else as_float(mined.negative, S),
        )

    def mine_masks(self, S: Tensor, pairs: Pairs) -> miners.Masks:
        """What the miner selects, as boolean masks."""
        return miners.as_masks(self.mine(S, pairs), S.shape)

    def get_extra_state(self) -> Tensor:
        """The generator's state, a uint8 vector."""
        return self.generator.get_state()

    def set_extra_state(self, state: Any) -> None:
        """Continue the generator from ``state``."""
        self.generator.set_state(state.cpu())


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
            same.fill_diagonal_(True)  # even of a sample without any label
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


def masks_of(known_pairs: Tensor, *, with_itself: bool) -> tuple[Tensor, Tensor]:
    """Positive and negative pairs, boolean ``(B, R)``, of what is known of each.

    Args:
        known_pairs: above 0 the same, below 0 different, 0 nothing.
        with_itself: whether it is a batch with itself, whose diagonal is no pair.

    >>> masks_of(torch.tensor([[1, -1], [0, 1]]), with_itself=True)[1]
    tensor([[False,  True],
            [False, False]])
    """
    positive, negative = known_pairs > 0, known_pairs < 0
    if with_itself:
        for mask in (positive, negative):
            mask.fill_diagonal_(False)
    return positive, negative


def _are_exact(labels: Tensor, dtype: torch.dtype) -> bool:
    """Whether ``dtype`` holds every label: a processor compares such numbers three times faster than labels.

    Elsewhere nothing would be gained, and the question would have to wait for the device.
    """
    if torch.compiler.is_compiling() or not labels.is_cpu or not labels.dtype.is_signed:
        return False
    lowest, highest = torch.aminmax(labels)
    return bool(max(-lowest.item(), highest.item()) < 1 / torch.finfo(dtype).eps)


def _everything(pairs: Pairs, references: int) -> Pairs:
    """The pairs of B anchors and R references as pairs of one batch of B + R; references are no anchors."""

    def find() -> tuple[Tensor, Tensor]:
        padding = (pairs.anchors, 0, 0, references)
        positive, negative = (nn.functional.pad(mask, padding) for mask in (pairs.positive, pairs.negative))
        return positive, negative

    weights = None if pairs.weights is None else nn.functional.pad(pairs.weights, (0, references))
    return Pairs(find, pairs.labels, pairs.embedding_dim, pairs.anchors, weights)
