"""What a language model knows about the names of classes, for any loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any, ClassVar

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
    require_non_negative,
    require_one_of,
    runs_eagerly,
    weighted,
)
from nearkin.losses.modifiers.base import Modifier, register
from nearkin.losses.search_space import Range, space
from nearkin.losses.similarity import (
    Side,
    at_least_float32,
    full_precision,
    lengths,
    measure_by_autograd,
    normalise,
    similarities,
    through_similarities,
)
from nearkin.losses.wrapping import LossFunction

Encoder = Callable[[list[str]], Tensor]
"""From N texts to their embeddings ``(N, E)``."""

FORMS = ("paper", "survey")


@register("language")
class LanguageGuidance(Modifier):
    """Any loss, and beside it: classes should be as similar in pictures as their names are in language.

    Equation:
        L = loss + ω · (1/B) Σ_i KL(σ(S_I row i) ‖ σ(S_L row i + γ_L))

        σ is the softmax of a row, S_I the cosines of the embeddings of a batch, S_L the cosines of a frozen
        language model's embeddings of "a photo of a {class}". Where two samples share a class, a sample with
        itself included, names say nothing: there both S_I and S_L + γ_L are set to 1 + γ_L, and no
        gradient flows. S_L is a constant. With form="survey" nothing is replaced: the equation as it is
        printed, in which γ_L has no effect, since a softmax does not see what is added to a whole row.

    Source:
        Roth, Vinyals, Akata. Integrating Language Guidance into Vision-based Deep Metric Learning. CVPR 2022.
        arXiv 2203.08543. (The published code has the two distributions in the other order.) The survey's
        (28) to (30); its (29) literally is form="survey".

    When to use:
        When class names say more than that classes differ: kinds of birds, makes of cars. Names that a
        language model has never met do not help. The paper's best weights with multi-similarity lie between
        5.5 and 10.

    With several names per class (where there are none, :func:`nearkin.language.pseudo_class_names` finds
    some), names are compared rank by rank, and S_L is the mean of the K matrices: the most likely names of
    two classes with each other, the second most likely with each other, and so on.

    Keywords of ``forward`` such as ``references`` and ``ids`` go to the inner loss; guidance looks at the
    batch itself. Its learnable parameters are found here by their own names. With a
    :class:`~nearkin.losses.CrossBatchMemory`, the guidance goes around the memory, not into it. Weight 0 is
    the inner loss, bit for bit.

    Args:
        loss: the inner loss, ours or anything :func:`~nearkin.losses.as_loss` takes.
        class_names: C names in the order of the labels, or C lists of K names.
        encoder: makes embeddings ``(N, E)`` of N prompts, called once and not kept; or the embeddings of the
            names themselves, ``(C, E)`` or ``(C, K, E)``.
        weight: ω.
        shift: γ_L.
        prompt: what is said about a name, which takes the place of ``{}``.
        form: "paper", with pairs of one class replaced, or "survey", without.

    Example:
        >>> from nearkin.losses import build
        >>> names = ["crow", "raven", "wren"]
        >>> meanings = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
        >>> loss = LanguageGuidance(build("contrastive"), names, meanings, weight=1)
        >>> loss.class_similarities
        tensor([[1.0000, 0.8000, 0.0000],
                [0.8000, 1.0000, 0.6000],
                [0.0000, 0.6000, 1.0000]])
        >>> loss.guidance(torch.eye(3), torch.tensor([0, 1, 2]))  # three pictures that are equally different
        tensor(0.2501)
    """

    order: ClassVar[int] = 40
    search_space = space(weight=Range(1.0, 20.0, log=True))

    class_units: Tensor

    def __init__(
        self,
        loss: Loss | nn.Module | LossFunction,
        class_names: Sequence[str] | Sequence[Sequence[str]],
        encoder: Encoder | Tensor,
        weight: float = 7.5,
        *,
        shift: float = 1.0,
        prompt: str = "a photo of a {}",
        form: str = "paper",
    ) -> None:
        require_non_negative(weight=weight, shift=shift)
        require_one_of(FORMS, form=form)
        if "{}" not in prompt:
            raise ValueError(f"prompt={prompt!r} has no place for the class name: write it with {{}}")
        super().__init__(loss)
        self.weight = weight
        self.shift = shift
        self.prompt = prompt
        self.form = form
        names = _names_by_class(class_names)
        embeddings = encoder if isinstance(encoder, Tensor) else _encode(names, encoder, prompt)
        # Kept as C · K · E numbers, not as C · C similarities: there may be many thousand classes.
        self.register_buffer("class_units", _units_in_a_row(embeddings.detach(), names))

    @runs_eagerly
    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        *,
        weights: Tensor | None = None,
        reduction: str | None = None,
        **keywords: Any,
    ) -> Tensor:
        """The inner loss of a batch and its guidance, a scalar, or one value per sample.

        Args:
            embeddings: ``(B, D)``, raw.
            labels: ``(B,)`` integers in ``0 … C − 1``.
            weights: how often each sample counts, ``(B,)``, not negative.
            reduction: "mean" or "none"; without it, the attribute of that name.
            keywords: what else the inner loss takes.
        """
        reduction = self.reduction if reduction is None else reduction
        if weights is not None:
            keywords["weights"] = weights
        if reduction != "mean":
            keywords["reduction"] = reduction
        if self.weight == 0:
            return self.inner(embeddings, labels, keywords)
        check_embeddings(embeddings)
        rows = at_least_float32(embeddings)  # once for both, so that their gradients add up in full precision
        value = self.inner(rows, labels, keywords)
        divergences = self.guidance(rows, labels, weights=weights, reduction=reduction)
        return value + self.weight * divergences

    def guidance(
        self, embeddings: Tensor, labels: Tensor, *, weights: Tensor | None = None, reduction: str = "mean"
    ) -> Tensor:
        """The mean divergence of picture from language over the rows of a batch, without its weight ω.

        Args:
            embeddings: ``(B, D)``, raw.
            labels: ``(B,)`` integers in ``0 … C − 1``.
            weights: how often each row counts, ``(B,)``, not negative.
            reduction: "mean", or "none" for values ``(B,)`` whose mean it is.
        """
        require_one_of(REDUCTIONS, reduction=reduction)
        check_embeddings(embeddings)
        check_labels(labels, embeddings)
        if weights is not None:
            check_weights(weights, embeddings)
        with full_precision(embeddings):
            rows = at_least_float32(embeddings)
            norms = lengths(rows)
            if self.validate:
                check_finite(norms)
                check_label_range(labels, len(self.class_units))
                if weights is not None:
                    check_weight_values(weights)
            if not len(rows):
                return rows.sum(dim=1) * 0 if reduction == "none" else rows.sum() * 0
            replaced = labels.unsqueeze(1) == labels
            if self.form == "survey":
                replaced = torch.zeros_like(replaced)
            own = 1 + self.shift
            units = self.class_units[labels.long()].to(rows.dtype)
            log_q = (units @ units.T).add_(self.shift).masked_fill_(replaced, own).log_softmax(dim=1)

            def divergences(S: Tensor) -> Tensor:
                """KL(σ(S) ‖ q) of each row."""
                log_p = S.masked_fill(replaced, own).log_softmax(dim=1)
                return (log_p.exp() * (log_p - log_q)).sum(dim=1)

            if reduction == "none" or weights is not None:
                counts = None if weights is None else weights.to(rows.dtype)
                values = weighted(divergences(similarities(Side(rows, norms))), counts)
                return values if reduction == "none" else values.mean()
            return through_similarities(
                lambda S, with_weights: measure_by_autograd(
                    lambda S: divergences(S).mean(), S, (), with_weights
                ),
                Side(rows, norms),
            )

    @property
    def class_similarities(self) -> Tensor:
        """How similar the names of the classes are, ``(C, C)``."""
        with full_precision(self.class_units):
            return self.class_units @ self.class_units.T

    def takes(self, keyword: str) -> bool:
        """What the inner loss takes; but no references from a memory, around which the guidance goes."""
        return not keyword.startswith("reference") and super().takes(keyword)

    def extra_repr(self) -> str:
        """The constructor's keywords and the number of classes."""
        classes = len(self.class_units)
        settings = f"weight={self.weight}, shift={self.shift}, prompt={self.prompt!r}, form={self.form!r}"
        return f"{settings}, classes={classes}"


def _names_by_class(class_names: Sequence[str] | Sequence[Sequence[str]]) -> list[list[str]]:
    """C lists of K names."""
    if not len(class_names):
        raise ValueError("class_names is empty: guidance needs a name for every class")
    names = [[name] if isinstance(name, str) else list(name) for name in class_names]
    for number, own in enumerate(names):
        if not own or len(own) != len(names[0]):
            raise ValueError(
                f"class {number} has {len(own)} names and class 0 has {len(names[0])}: names are compared "
                "rank by rank, so every class needs as many as the others, at least one"
            )
    return names


@torch.no_grad()
def _encode(names: list[list[str]], encoder: Encoder, prompt: str) -> Tensor:
    """Embeddings ``(C, K, E)`` of all names, each of which is encoded once, however often it occurs."""
    places = {name: place for place, name in enumerate(dict.fromkeys(name for own in names for name in own))}
    embeddings = encoder([prompt.replace("{}", name) for name in places])
    if embeddings.dim() != 2 or len(embeddings) != len(places):
        raise ValueError(
            f"the encoder made {tuple(embeddings.shape)} of {len(places)} texts: it must give one row each"
        )
    return embeddings[torch.tensor([[places[name] for name in own] for own in names])]


def _units_in_a_row(embeddings: Tensor, names: list[list[str]]) -> Tensor:
    """From ``(C, E)`` or ``(C, K, E)`` to ``(C, K·E)`` whose products are the mean cosines over the ranks.

    The mean of K products of units is one product of all of them in a row, scaled.
    """
    by_rank = embeddings.unsqueeze(1) if embeddings.dim() == 2 else embeddings
    if by_rank.dim() != 3 or by_rank.shape[:2] != (len(names), len(names[0])):
        raise ValueError(
            f"embeddings of shape {tuple(embeddings.shape)} for {len(names)} classes with {len(names[0])} "
            "names each: give (C, E), or (C, K, E) for K names per class"
        )
    if not by_rank.is_floating_point() or not torch.isfinite(by_rank).all():
        raise ValueError("the embeddings of the class names must be finite floating-point numbers")
    return normalise(at_least_float32(by_rank)).flatten(1) / sqrt(by_rank.shape[1])
