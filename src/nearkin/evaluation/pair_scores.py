"""Known pairs of some samples: their scores, a threshold chosen on them, and what a training added."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from nearkin.evaluation.spread import (
    Interval,
    check_draws,
    drawn_classes,
    interval_ends,
    pair_times,
    verification_intervals,
)
from nearkin.evaluation.thresholds import (
    FEWEST_CLASSES,
    MOST_RIGHT,
    WANTED_RATE,
    Threshold,
    TooFewPairsError,
    rates_at_threshold,
)
from nearkin.evaluation.verification import (
    Curve,
    PerPair,
    VerificationScores,
    area,
    roc,
    scores_of_similarities,
)

_FOLDS = 10
_PAIR_ENTRIES = 2**23  # multiplicities of pairs held at once
_DIGITS = 10**5
_AT_ONCE = 2**14  # pairs whose embeddings are multiplied at a time


@dataclass(frozen=True)
class PairScores:
    """How well a network tells pairs that are the same from others.

    Attributes:
        verification: Over all thresholds: ROC AUC, equal error rate, true accepts at rates of false ones, and
            accuracy the way of Labeled Faces in the Wild, whose thresholds come from these pairs themselves.
        accuracy_at_threshold: Share of right answers at the network's own threshold, which was chosen on
            other pairs; ``None`` where it has none.
        false_accept_rate: Share of the pairs that differ which it takes for the same.
        false_reject_rate: Share of the pairs that are the same which it takes for different.
    """

    verification: VerificationScores
    accuracy_at_threshold: float | None = None
    false_accept_rate: float | None = None
    false_reject_rate: float | None = None

    def to_dict(self) -> dict[str, float | int | None]:
        """One flat dictionary, ready for JSON."""
        own = {key: getattr(self, key) for key in _AT_THRESHOLD}
        return {**self.verification.to_dict(), **own}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> PairScores:
        """The inverse of :meth:`to_dict`."""
        own = {key: values.get(key) for key in _AT_THRESHOLD}
        return cls(VerificationScores.from_dict(values), **own)


_AT_THRESHOLD = tuple(field.name for field in fields(PairScores) if field.name != "verification")


def pair_similarities(embeddings: Tensor, pairs: Tensor) -> Tensor:
    """Cosines ``(P,)`` of pairs ``(P, 2)`` of rows of embeddings ``(N, D)``, float64."""
    units = normalize(embeddings.float(), dim=1)
    return torch.cat(
        [(units[some[:, 0]] * units[some[:, 1]]).sum(dim=1) for some in pairs.split(_AT_ONCE)]
    ).double()


def pair_scores(
    similarity: Tensor, same: Tensor, threshold: Threshold | None = None, *, per_pair: bool = False
) -> PairScores:
    """Scores of pairs with known answers.

    Args:
        similarity: ``(P,)``.
        same: ``(P,)`` boolean.
        threshold: Chosen on other pairs.
        per_pair: Keep the pairs, as :func:`pair_intervals` needs them.

    Raises:
        ValueError: Fewer than two pairs are the same, or fewer than two differ.

    >>> similarity, same = torch.tensor([0.9, 0.8, 0.3, 0.1]), torch.tensor([True, True, False, False])
    >>> pair_scores(similarity, same).verification.roc_auc
    1.0
    """
    fewest = int(min(same.sum(), (~same).sum()))
    scores = scores_of_similarities(similarity, same, folds=max(min(_FOLDS, fewest), 2), per_pair=per_pair)
    if threshold is None:
        return PairScores(scores)
    accepted = similarity >= threshold.similarity
    return PairScores(
        scores,
        accuracy_at_threshold=float((accepted == same).double().mean()),
        false_accept_rate=float(accepted[~same].double().mean()),
        false_reject_rate=float((~accepted[same]).double().mean()),
    )


def pair_intervals(
    scores: PairScores, groups: Tensor, threshold: Threshold | None = None, *, seed: int = 0
) -> dict[str, Interval]:
    """Confidence intervals over the groups that matches join.

    Args:
        scores: Made with ``per_pair=True``.
        groups: Those of both sides of every pair, ``(P, 2)``.
        threshold: Chosen on other pairs.
        seed: Of the draws.

    Raises:
        ValueError: The groups are too few, or contradict the answers.
    """
    found = verification_intervals(scores.verification, groups[:, 0], groups[:, 1], seed=seed)
    if threshold is None:
        return found
    at = rates_at_threshold(scores.verification, groups[:, 0], groups[:, 1], threshold.similarity, seed=seed)
    return at | found


def choose_threshold_on_pairs(
    similarity: Tensor,
    same: Tensor,
    groups: Tensor,
    *,
    false_accept_rate: float = 0.01,
    class_names: Sequence[str] = (),
    confidence: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> Threshold:
    """The lowest similarity at which at most the wanted share of the pairs that differ is accepted.

    Of so few pairs that such a share cannot be told (fewer than one over the rate), the similarity with the
    most right answers. The intervals are made as in :func:`~nearkin.evaluation.choose_threshold`: groups are
    drawn twice, to choose a threshold and to count its errors.

    Args:
        similarity: ``(P,)``, of pairs that were not trained on.
        same: ``(P,)`` boolean, their answers.
        groups: Of both sides of every pair, ``(P, 2)``: samples that matches join.
        false_accept_rate: Wanted share of the pairs that differ.
        class_names: What the threshold remembers of the groups.
        confidence: Of the intervals.
        resamples: How many times the groups are drawn.
        seed: Of the draws.

    Raises:
        TooFewPairsError: No pair is the same or none differs, or there are fewer than three groups.
    """
    if not 0 < false_accept_rate < 1:
        raise ValueError(f"false_accept_rate={false_accept_rate} must lie between 0 and 1")
    check_draws(confidence, resamples)
    names, numbers = groups.unique(return_inverse=True)
    positives, negatives = int(same.sum()), int((~same).sum())
    if not positives or not negatives or len(names) < FEWEST_CLASSES:
        raise TooFewPairsError(
            f"{positives} pairs that are the same and {negatives} that differ, of {len(names)} groups, are "
            "too few to choose a threshold"
        )
    pairs = PerPair(similarity.cpu().double(), same, torch.zeros(len(same), dtype=torch.long))
    by_rate = false_accept_rate * negatives >= 1
    choose = _at_rate(false_accept_rate) if by_rate else _most_right(positives, negatives)
    ordered = pairs.similarity.unique().flip(0)
    once = roc(pairs, torch.ones(1, len(same), dtype=torch.float64))
    cut = _between(ordered, int(choose(once)))
    value = (
        math.ceil(cut * _DIGITS) / _DIGITS
    )  # embeddings may differ in their last bits, a threshold must not
    accepted = pairs.similarity >= value
    rates = float(accepted[~same].double().mean()), float((~accepted[same]).double().mean())
    drawn = torch.cat(
        [_tested(pairs, choose, part, numbers.T) for part in _draws(pairs, len(names), resamples, seed)]
    )
    drawn = drawn[drawn.isfinite().all(dim=1)]
    if len(drawn) < resamples // 2:
        raise TooFewPairsError(f"{len(names)} groups are too few for an interval")
    lows, highs = interval_ends(drawn, confidence, len(names)).clamp(0, 1).tolist()
    accepts, rejects = (
        Interval(rate, min(low, rate), max(high, rate), confidence, len(names))
        for rate, low, high in zip(rates, lows, highs, strict=True)
    )
    return Threshold(
        value,
        false_accept_rate,
        accepts,
        rejects,
        len(names),
        negatives,
        positives,
        tuple(class_names),
        WANTED_RATE if by_rate else MOST_RIGHT,
    )


Choice = Callable[[Curve], Tensor]
"""From curves to how many of the distinct similarities, the highest, are accepted, ``(R,)``."""


def _at_rate(rate: float) -> Choice:
    return lambda curve: (curve.false <= rate).sum(dim=1) - 1


def _most_right(positives: int, negatives: int) -> Choice:
    return lambda curve: (curve.true * positives - curve.false * negatives).argmax(dim=1)


def _between(ordered: Tensor, accepted: int) -> float:
    """Half-way between the lowest similarity that is accepted and the highest that is not."""
    if accepted == 0:
        return float(ordered[0]) + 1e-6
    if accepted == len(ordered):
        return float(ordered[-1]) - 1e-6
    return float(ordered[accepted - 1] + ordered[accepted]) / 2


def _draws(pairs: PerPair, groups: int, resamples: int, seed: int) -> Iterator[Tensor]:
    """How often each group was drawn, in parts of an even number of draws that fit into memory."""
    at_once = max(_PAIR_ENTRIES // len(pairs.same) // 2 * 2, 2)
    for times in drawn_classes(groups, 2 * resamples, seed):
        yield from times.split(at_once)


def _tested(pairs: PerPair, choose: Choice, times: Tensor, numbers: Tensor) -> Tensor:
    """``(R, 2)`` false accepts and rejects of one draw at the threshold that another draw chooses."""
    choosing, tested = (roc(pairs, pair_times(half, numbers, pairs.same)) for half in times.chunk(2))
    at = choose(choosing).clamp(min=0)[:, None]
    found = torch.cat([tested.false.gather(1, at), 1 - tested.true.gather(1, at)], dim=1)
    usable = choosing.false.isfinite().all(dim=1) & choosing.true.isfinite().all(dim=1)
    return found.where(usable[:, None], torch.nan)


def auc_gain(
    before: Tensor,
    after: Sequence[Tensor],
    same: Tensor,
    groups: Tensor,
    *,
    confidence: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> Interval | None:
    """What was added to the ROC AUC of the same pairs, with its interval over groups; ``None`` for too few.

    Args:
        before: Similarities ``(P,)``.
        after: The same of one network or several, whose mean counts.
        same: ``(P,)`` boolean.
        groups: Of both sides of every pair, ``(P, 2)``.
        confidence: Of the interval.
        resamples: How many times the groups are drawn.
        seed: Of the draws.
    """
    names, numbers = groups.unique(return_inverse=True)
    fold = torch.zeros(len(same), dtype=torch.long)
    sides = [PerPair(one.cpu().double(), same, fold) for one in (before, *after)]

    def gain(times: Tensor) -> Tensor:
        first, *others = (area(roc(one, times)) for one in sides)
        return torch.stack(others).mean(dim=0) - first

    if len(names) < FEWEST_CLASSES:
        return None
    value = float(gain(torch.ones(1, len(same), dtype=torch.float64)))
    drawn = torch.cat(
        [
            gain(pair_times(part, numbers.T, same))
            for part in _draws(sides[0], len(names), resamples // 2, seed)
        ]
    )
    drawn = drawn[drawn.isfinite()]
    if len(drawn) < resamples // 2:
        return None
    low, high = interval_ends(drawn[:, None], confidence, len(names))[:, 0].tolist()
    return Interval(value, min(low, value), max(high, value), confidence, len(names))


def without_pairs(scores: PairScores) -> PairScores:
    """The scores alone."""
    return replace(scores, verification=replace(scores.verification, per_pair=None))
