"""Mixed examples, between a positive and a negative, for losses that look at pairs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from nearkin.losses.base import (
    Loss,
    check_embeddings,
    or_one,
    require_non_negative,
    require_positive,
    runs_eagerly,
)
from nearkin.losses.contrastive import Contrastive
from nearkin.losses.lifted_structure import LiftedStructure
from nearkin.losses.margin import Margin
from nearkin.losses.modifiers.base import Modifier, base_of, own_generator, register
from nearkin.losses.multi_similarity import MultiSimilarity
from nearkin.losses.nca import NCA
from nearkin.losses.pair import find_pairs
from nearkin.losses.proxy import ProxyLoss
from nearkin.losses.proxy_anchor import ProxyAnchor
from nearkin.losses.search_space import Range, space
from nearkin.losses.similarity import (
    Side,
    at_least_float32,
    distance,
    full_precision,
    lengths,
    measure_by_autograd,
    through_similarities,
)
from nearkin.losses.triplet import Triplet
from nearkin.losses.wrapping import LossFunction


class MixedExamples(NamedTuple):
    """Mixed examples v = λ z_p + (1 − λ) z_n at length 1, each beside one anchor a: M of them.

    Attributes:
        anchor: which anchor, ``(M,)``: a row of the batch, or a class whose proxy it is.
        share: λ, ``(M,)``: how much of a positive each is.
        S: cosines of anchor and mixed example, ``(M,)``.
        S_positive: cosines of anchor and p, ``(M,)``.
        S_negative: cosines of anchor and n, ``(M,)``.
        anchors: how many anchors there are in all, with mixed examples or without.
        labels: of the batch.
    """

    anchor: Tensor
    share: Tensor
    S: Tensor
    S_positive: Tensor
    S_negative: Tensor
    anchors: int
    labels: Tensor

    def sums(self, terms: Tensor) -> Tensor:
        """The sum of terms ``(M,)`` over each anchor's examples, ``(A,)``."""
        return terms.new_zeros(self.anchors).index_add(0, self.anchor, terms)

    def log_sums(self, exponents: Tensor, weights: Tensor, *, plus_one: bool) -> Tensor:
        """``log(Σ w eᵗ)`` over each anchor's examples ``(A,)``, with 1 in the sum or not; 0 without examples.

        Args:
            exponents: t, ``(M,)``.
            weights: w, ``(M,)``.
            plus_one: whether 1 is a part of the sum.
        """
        least = 0.0 if plus_one else float("-inf")
        highest = exponents.new_full((self.anchors,), least)
        highest = highest.scatter_reduce(0, self.anchor, exponents.detach(), "amax")
        shift = torch.where(highest.isfinite(), highest, 0)
        total = self.sums(weights * (exponents - shift[self.anchor]).exp())
        if plus_one:
            total = total + (-shift).exp()
        present = total > 0
        return torch.where(present, shift + torch.where(present, total, 1).log(), 0)

    @property
    def has_examples(self) -> Tensor:
        """Which anchors have a mixed example, as ones and zeros ``(A,)``."""
        return self.sums(torch.ones_like(self.share)).clamp_max(1)


MixedValue = Callable[[Any, MixedExamples], Tensor]
"""From a loss and mixed examples to a scalar."""


@register("mixup")
class Mixup(Modifier):
    """A loss over pairs, and beside it the same loss of examples mixed from a positive and a negative.

    Equation:
        L = loss + ω · loss_mixed;   v = (λ z_p + (1 − λ) z_n) at length 1, λ ~ Beta(α, α)

        for every anchor a, every positive p and every negative n of it. In the anchor's loss, v counts as a
        positive λ times and as a negative 1 − λ times: inside of its sums of exponentials, in the means over
        pairs and in what these are divided by. A triplet loss compares v as a positive with its n (λ times)
        and as a negative with its p (1 − λ times). Of a proxy loss the proxies are the anchors: those of the
        classes in the batch. Mixed examples are not mined.

    Source:
        Venkataramanan, Psomas, Kijak, Amsaleg, Karantzalos, Avrithis. It Takes Two to Tango: Mixup for Deep
        Metric Learning. ICLR 2022. arXiv:2106.04990. (Its Metrix/embed with positive-negative pairs.)

    When to use:
        To use batches better: between two classes there is more to learn than at their samples. It costs
        nothing in the network, and in the loss B × positives × negatives numbers, never vectors: the
        similarities of mixed examples follow from those of the batch.

    Relations:
        λ = 1 would be the loss with each positive counted once per negative, λ = 0 that with each negative
        counted once per positive. Weight 0 is the inner loss, bit for bit.

    It takes contrastive, triplet, margin, multi_similarity, lifted_structure, nca and proxy_anchor; and any
    loss with a method ``mixed_value(examples: MixedExamples) -> Tensor``. Others are no sums over pairs of an
    anchor and are refused. With ``references``, from a memory, the batch alone is mixed and the second term
    is the inner loss's.

    Args:
        loss: such a loss, or a modifier around one.
        weight: ω.
        alpha: α; 1 draws λ evenly, larger ones nearer to ½.
        generator: draws λ, on the CPU whatever the device of the embeddings; seed 0 if there is none. Its
            state travels in ``state_dict``.

    Example:
        >>> from nearkin.losses import build
        >>> loss = Mixup(build("contrastive"), weight=1.0)
        >>> embeddings, labels = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0, 1])
        >>> loss.loss(embeddings, labels)  # all is well at the samples, and not between them
        tensor(0.)
        >>> bool(loss(embeddings, labels) > 0)
        True
    """

    order: ClassVar[int] = 10
    search_space = space(weight=Range(0.05, 1.0, log=True))

    def __init__(
        self,
        loss: Loss | nn.Module | LossFunction,
        *,
        weight: float = 0.4,
        alpha: float = 2.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(loss)
        require_non_negative(weight=weight)
        require_positive(alpha=alpha)
        self._mixed_value = _form_of(base_of(self.loss))
        self.weight = weight
        self.alpha = alpha
        self.generator = own_generator(generator, "mixup")

    @runs_eagerly
    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        *,
        references: Tensor | None = None,
        reference_labels: Tensor | None = None,
        weights: Tensor | None = None,
        reduction: str | None = None,
        **keywords: Any,
    ) -> Tensor:
        """The inner loss of a batch and that of its mixed examples, a scalar.

        Args:
            embeddings: ``(B, D)``, raw.
            labels: ``(B,)`` integers, or multi-hot ``(B, L)`` where the inner loss takes them.
            references: from a memory; they are not mixed.
            reference_labels: theirs.
            weights: none, where there is something to mix.
            reduction: "mean".
            keywords: what else the inner loss takes.
        """
        passed = {**keywords, "references": references, "reference_labels": reference_labels}
        passed |= {"weights": weights, "reduction": reduction}
        if self.weight == 0 or references is not None:
            return self.inner(embeddings, labels, passed)
        if weights is not None or (reduction or self.reduction) != "mean":
            raise ValueError(
                "mixup belongs to pairs of samples: it has no weights and no one value per sample"
            )
        check_embeddings(embeddings)
        with full_precision(embeddings):
            rows = at_least_float32(embeddings)
            value = self.inner(rows, labels, passed)
            return value + self.weight * self.mixed(rows, labels)

    def mixed(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The loss of new mixed examples of a batch, a scalar, without its weight ω."""
        if not len(embeddings):
            return embeddings.sum() * 0
        loss = base_of(self.loss)
        rows, parameters = embeddings, loss.own_parameters()
        shares = self._draw(len(rows)).to(rows)
        if isinstance(loss, ProxyLoss):
            classes, own = labels.long().unique(return_inverse=True)
            rows, parameters = torch.cat([rows, loss.proxies[classes].to(rows.dtype)]), ()

        def value(S: Tensor) -> Tensor:
            examples = (
                _around_proxies(S, labels.long(), own, shares, loss.num_classes)
                if isinstance(loss, ProxyLoss)
                else _around_samples(S, labels, shares)
            )
            return self._mixed_value(loss, examples) if len(examples.anchor) else S.sum() * 0

        return through_similarities(
            lambda S, with_weights: measure_by_autograd(value, S, parameters, with_weights),
            Side(rows, lengths(rows)),
            parameters=parameters,
        )

    def _draw(self, size: int) -> Tensor:
        """λ ~ Beta(α, α) for every ordered pair ``(B, B)``: x / (x + y) of two gammas."""
        alphas = torch.full((2, size, size), self.alpha, dtype=torch.float64)
        first, second = torch._standard_gamma(alphas, generator=self.generator)
        shares: Tensor = first / (first + second)
        return shares

    def takes(self, keyword: str) -> bool:
        """What the inner loss takes."""
        return self.loss.takes(keyword)

    def asks(self, keyword: str) -> bool:
        """What the inner loss asks for."""
        return self.loss.asks(keyword)

    def get_extra_state(self) -> Tensor:
        """The generator's state, a uint8 vector."""
        return self.generator.get_state()

    def set_extra_state(self, state: Any) -> None:
        """Continue the generator from ``state``."""
        self.generator.set_state(state.cpu())

    def extra_repr(self) -> str:
        """The constructor's keywords."""
        return f"weight={self.weight}, alpha={self.alpha}"


def _around_samples(S: Tensor, labels: Tensor, shares: Tensor) -> MixedExamples:
    """Every sample as an anchor of its positives and negatives."""
    positive, negative = (mask.to(torch.bool) for mask in find_pairs(labels, dtype=S.dtype))
    anchor, p = positive.nonzero(as_tuple=True)
    pair, n = negative[anchor].nonzero(as_tuple=True)
    anchor, p = anchor[pair], p[pair]
    share, S_positive, S_negative = shares[p, n], S[anchor, p], S[anchor, n]
    mixed = (share * S_positive + (1 - share) * S_negative) * _inverse_lengths(S, p, n, share)
    return MixedExamples(anchor, share, mixed, S_positive, S_negative, len(S), labels)


def _around_proxies(
    S: Tensor, labels: Tensor, own: Tensor, shares: Tensor, num_classes: int
) -> MixedExamples:
    """Every class of the batch as an anchor of its own samples and all others.

    Args:
        S: of the samples and, after them, the proxies of the classes of the batch, among each other.
        labels: of the samples, ``(B,)``.
        own: which of these proxies is a sample's own, ``(B,)``.
        shares: λ of every ordered pair of samples.
        num_classes: C.
    """
    p, n = (labels.unsqueeze(1) != labels).nonzero(as_tuple=True)
    proxy, share = len(labels) + own[p], shares[p, n]
    S_positive, S_negative = S[p, proxy], S[n, proxy]
    mixed = (share * S_positive + (1 - share) * S_negative) * _inverse_lengths(S, p, n, share)
    return MixedExamples(labels[p], share, mixed, S_positive, S_negative, num_classes, labels)


def _inverse_lengths(S: Tensor, p: Tensor, n: Tensor, share: Tensor) -> Tensor:
    """1/‖λ z_p + (1 − λ) z_n‖ from the similarities of the batch; 0 where the two cancel out."""
    rest, own = 1 - share, S.diagonal()
    squared = share.square() * own[p] + rest.square() * own[n] + 2 * share * rest * S[p, n]
    has_length = squared > 8 * torch.finfo(S.dtype).eps
    return torch.where(has_length, torch.where(has_length, squared, 1).rsqrt(), 0)


def _form_of(loss: Loss) -> MixedValue:
    """How a loss weighs mixed examples.

    Raises:
        ValueError: It does not.
    """
    if type(loss) in _FORMS:
        _refuse_what_is_not_mixed(loss)
        return _FORMS[type(loss)]
    own = getattr(type(loss), "mixed_value", None)
    if own is not None:
        value: MixedValue = own
        return value
    taken = ", ".join(sorted(kind.__name__ for kind in _FORMS))
    raise ValueError(
        f"{loss.name} cannot take mixup: it is no sum over the pairs of an anchor. It is known for {taken}, "
        "and for losses with a method mixed_value"
    )


def _refuse_what_is_not_mixed(loss: Loss) -> None:
    """Mixed examples lie on the sphere, and a triplet of them has neither swap nor smooth form."""
    geometry = getattr(loss, "geometry", None)
    if geometry is not None and not geometry.on_sphere:
        raise ValueError(f"mixup is for unit vectors: metric={geometry.name!r} counts lengths")
    for option in ("swap", "smooth"):
        if getattr(loss, option, False):
            raise ValueError(f"mixup does not know {loss.name} with {option}=True")


def _contrastive(loss: Contrastive, mixed: MixedExamples) -> Tensor:
    near, away = loss.geometry.nearness(mixed.S), 1 - mixed.share
    boundary = loss.margin if loss.geometry.name == "cosine" else -loss.margin
    violating = away * (near > boundary)
    pull = (mixed.share * (loss.geometry.identical - near)).sum() / or_one(mixed.share.sum())
    return pull + (violating * (near - boundary)).sum() / or_one(violating.sum())


def _triplet(loss: Triplet, mixed: MixedExamples) -> Tensor:
    near, near_p, near_n = map(loss.geometry.nearness, (mixed.S, mixed.S_positive, mixed.S_negative))
    as_positive = (near_n - near + loss.margin).relu()
    as_negative = (near - near_p + loss.margin).relu()
    return _mean_above_0(mixed.share, as_positive, as_negative)


def _margin(loss: Margin, mixed: MixedExamples) -> Tensor:
    D, beta = distance(mixed.S), loss.beta.to(mixed.S.dtype)
    boundary = beta[mixed.labels.long()[mixed.anchor]] if loss.per_class else beta
    as_positive = (loss.margin + (D - boundary)).relu()
    as_negative = (loss.margin - (D - boundary)).relu()
    return _mean_above_0(mixed.share, as_positive, as_negative)


def _mean_above_0(share: Tensor, as_positive: Tensor, as_negative: Tensor) -> Tensor:
    """The mean over hinges above 0, of which each counts as often as its example does."""
    total = (share * as_positive + (1 - share) * as_negative).sum()
    counted = share * (as_positive > 0) + (1 - share) * (as_negative > 0)
    return total / or_one(counted.sum())


def _multi_similarity(loss: MultiSimilarity, mixed: MixedExamples) -> Tensor:
    beyond = mixed.S - loss.margin
    pull = mixed.log_sums(-loss.alpha * beyond, mixed.share, plus_one=True) / loss.alpha
    push = mixed.log_sums(loss.beta * beyond, 1 - mixed.share, plus_one=True) / loss.beta
    return (pull + push).sum() / mixed.anchors


def _lifted_structure(loss: LiftedStructure, mixed: MixedExamples) -> Tensor:
    farthest = mixed.log_sums(loss.positive_scale * (loss.margin - mixed.S), mixed.share, plus_one=False)
    nearest = mixed.log_sums(loss.negative_scale * mixed.S, 1 - mixed.share, plus_one=False)
    both = (farthest / loss.positive_scale + nearest / loss.negative_scale).relu()
    return (both * mixed.has_examples).sum() / or_one(mixed.has_examples.sum())


def _nca(loss: NCA, mixed: MixedExamples) -> Tensor:
    near = 2 * mixed.S / loss.temperature
    among_all = mixed.log_sums(near, torch.ones_like(near), plus_one=False)
    among_positives = mixed.log_sums(near, mixed.share, plus_one=False)
    return (among_all - among_positives).sum() / or_one(mixed.has_examples.sum())


def _proxy_anchor(loss: ProxyAnchor, mixed: MixedExamples) -> Tensor:
    pull = mixed.log_sums(-loss.alpha * (mixed.S - loss.margin), mixed.share, plus_one=True)
    push = mixed.log_sums(loss.alpha * (mixed.S + loss.margin), 1 - mixed.share, plus_one=True)
    return pull.sum() / or_one(mixed.has_examples.sum()) + push.sum() / mixed.anchors


_FORMS: dict[type[Loss], MixedValue] = {
    Contrastive: _contrastive,
    Triplet: _triplet,
    Margin: _margin,
    MultiSimilarity: _multi_similarity,
    LiftedStructure: _lifted_structure,
    NCA: _nca,
    ProxyAnchor: _proxy_anchor,
}
