"""Verification: are these two of one kind? ROC, equal error rate, and accuracy the LFW way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from nearkin.evaluation.inputs import Metric, checked_embeddings, checked_metric, checked_together, unit_rows

_RATE = "tar_at_far_"


@dataclass(frozen=True)
class PerPair:
    """What the scores are made of, each ``(P,)``, on the CPU.

    Attributes:
        similarity: of the two sides, float64.
        same: whether the pair is a true one.
        fold: the fold in which the pair's answer is judged.
    """

    similarity: Tensor
    same: Tensor
    fold: Tensor


@dataclass(frozen=True)
class VerificationScores:
    """How well a threshold on the similarity tells pairs of one kind from others.

    Attributes:
        roc_auc: chance that a true pair is more similar than a false one, ties counting half.
        equal_error_rate: error where as many false pairs are accepted as true ones are rejected.
        tar_at_far: share of true pairs accepted while at most this share of false pairs is; None where
            there are too few false pairs to tell (fewer than one over the rate).
        accuracy: share of right answers on each fold at the threshold that is best on the other folds,
            averaged over the folds.
        accuracy_std: standard deviation of the accuracy over the folds.
        threshold: similarity from which on a pair is accepted, averaged over the folds.
        positive_pairs: number of true pairs.
        negative_pairs: number of false pairs.
        per_pair: the pairs behind the scores, where asked for.
    """

    roc_auc: float
    equal_error_rate: float
    tar_at_far: dict[float, float | None]
    accuracy: float
    accuracy_std: float
    threshold: float
    positive_pairs: int
    negative_pairs: int
    per_pair: PerPair | None = field(default=None, repr=False, compare=False)

    def to_dict(self) -> dict[str, float | int | None]:
        """One flat dictionary, ready for JSON, with names like ``tar_at_far_1e-03``."""
        rates = {rate_name(rate): found for rate, found in self.tar_at_far.items()}
        return {
            "roc_auc": self.roc_auc,
            "equal_error_rate": self.equal_error_rate,
            **rates,
            "accuracy": self.accuracy,
            "accuracy_std": self.accuracy_std,
            "threshold": self.threshold,
            "positive_pairs": self.positive_pairs,
            "negative_pairs": self.negative_pairs,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> VerificationScores:
        """The inverse of :meth:`to_dict`; reads past what else is there."""
        rates = {
            float(key.removeprefix(_RATE)): None if found is None else float(found)
            for key, found in values.items()
            if key.startswith(_RATE)
        }
        plain = {one.name: values[one.name] for one in fields(cls) if one.name in values}
        return cls(tar_at_far=rates, **plain)


@torch.no_grad()
def verification_scores(
    first: Tensor,
    second: Tensor,
    same: Tensor,
    *,
    far: Sequence[float] = (1e-2, 1e-3, 1e-4, 1e-5),
    folds: int = 10,
    metric: Metric = "cosine",
    per_pair: bool = False,
) -> VerificationScores:
    """Scores over pairs of embeddings.

    Accuracy follows Labeled Faces in the Wild (Huang et al., 2007): the pairs are divided into folds, the
    threshold for each fold is chosen on all others. Folds are consecutive, as in LFW's list, but divide
    true and false pairs separately, so that every fold holds both whatever the order. Pairs with one
    similarity are accepted or rejected together, so ties cannot help.

    Args:
        first: ``(P, D)`` one side of the pairs.
        second: ``(P, D)`` the other side.
        same: ``(P,)`` boolean: whether the pair is of one kind.
        far: false accept rates at which the true accept rate is read.
        folds: number of folds; each must hold a true and a false pair.
        metric: ``"cosine"`` or ``"euclidean"`` (the similarity is minus the distance).
        per_pair: keep the pairs, as :func:`nearkin.evaluation.verification_intervals` needs them.

    >>> first = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    >>> second = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.1, 0.9], [1.0, 0.0]])
    >>> same = torch.tensor([True, True, False, False])
    >>> verification_scores(first, second, same, folds=2).accuracy
    1.0
    """
    similarity = _pair_similarity(first, second, checked_metric(metric))
    return scores_of_similarities(similarity, same, far=far, folds=folds, per_pair=per_pair)


def scores_of_similarities(
    similarity: Tensor,
    same: Tensor,
    *,
    far: Sequence[float] = (1e-2, 1e-3, 1e-4, 1e-5),
    folds: int = 10,
    per_pair: bool = False,
) -> VerificationScores:
    """The same as :func:`verification_scores`, of ``(P,)`` similarities that are known already."""
    similarity, same = similarity.cpu().double(), torch.as_tensor(same).cpu()
    if same.shape != similarity.shape or same.dtype != torch.bool:
        raise ValueError(f"same must be {len(similarity)} booleans, not {tuple(same.shape)} of {same.dtype}")
    positives, negatives = int(same.sum()), int((~same).sum())
    if min(positives, negatives) < max(folds, 1) or folds < 2:
        raise ValueError(
            f"folds={folds} needs at least two folds and that many true and false pairs, "
            f"but there are {positives} and {negatives}"
        )
    if any(not 0 < rate <= 1 for rate in far):
        raise ValueError(f"far={tuple(far)} must hold rates above 0 and up to 1")
    pairs = PerPair(similarity, same, _folds(same, folds))
    once = torch.ones(1, len(same), dtype=torch.float64)
    curve = roc(pairs, once)
    accuracies, thresholds = fold_accuracies(pairs, once)
    return VerificationScores(
        roc_auc=float(area(curve)),
        equal_error_rate=float(equal_error_rate(curve)),
        tar_at_far={
            rate: float(true_accept_rate(curve, rate)) if rate * negatives >= 1 else None for rate in far
        },
        accuracy=float(accuracies.mean()),
        accuracy_std=float(accuracies.std()),
        threshold=float(thresholds.mean()),
        positive_pairs=positives,
        negative_pairs=negatives,
        per_pair=pairs if per_pair else None,
    )


@dataclass(frozen=True)
class OperatingPoint:
    """A threshold, and what it does to pairs.

    Attributes:
        wanted: the false accept rate that it was chosen to keep.
        threshold: the similarity from which on a pair is accepted.
        false_accept_rate: share of false pairs accepted.
        false_reject_rate: share of true pairs rejected.
    """

    wanted: float
    threshold: float
    false_accept_rate: float
    false_reject_rate: float


def operating_points(
    similarity: Tensor, same: Tensor, far: Sequence[float] = (1e-1, 1e-2, 1e-3, 1e-4)
) -> tuple[OperatingPoint, ...]:
    """For each false accept rate the lowest threshold that keeps it on these pairs.

    Rates that so few false pairs cannot tell, fewer than one over the rate, are left out.

    Args:
        similarity: ``(P,)``.
        same: ``(P,)`` boolean: whether the pair is of one kind.
        far: false accept rates.

    >>> similarity = torch.tensor([0.9, 0.5, 0.6, 0.2])
    >>> (point,) = operating_points(similarity, torch.tensor([True, True, False, False]), far=[0.5])
    >>> round(point.threshold, 6), point.false_accept_rate, point.false_reject_rate
    (0.5, 0.5, 0.0)
    """
    similarity = similarity.cpu().double()
    true, false = similarity[same].sort().values, similarity[~same].sort().values
    candidates = torch.cat([similarity.unique(), similarity.max()[None] + 1e-6])
    accepted = (len(false) - torch.searchsorted(false, candidates)) / len(false)
    points = []
    for rate in far:
        if rate * len(false) >= 1:
            threshold = candidates[int((accepted <= rate).byte().argmax())]
            points.append(
                OperatingPoint(
                    rate,
                    float(threshold),
                    float((false >= threshold).double().mean()),
                    float((true < threshold).double().mean()),
                )
            )
    return tuple(points)


def rate_name(rate: float) -> str:
    """The name of the true accept rate at this false accept rate."""
    return f"{_RATE}{rate:.0e}"


def _pair_similarity(first: Tensor, second: Tensor, metric: Metric) -> Tensor:
    first, second = checked_embeddings(first, "first"), checked_embeddings(second, "second")
    checked_together(first, second)
    if len(first) != len(second):
        raise ValueError(f"pairs need two sides: first has {len(first)} rows, second has {len(second)}")
    if metric == "cosine":
        similarity = (unit_rows(first, "first") * unit_rows(second, "second")).sum(dim=1)
    else:
        similarity = -(first - second).norm(dim=1)
    return similarity.cpu().double()


# From here on every pair p counts times[r, p] times, for R ways at once: the scores count each pair once,
# the intervals as often as its classes were drawn.


@dataclass(frozen=True)
class Curve:
    """Shares of false and of true pairs accepted, ``(R, T)`` each, from accepting nothing to everything."""

    false: Tensor
    true: Tensor


def roc(pairs: PerPair, times: Tensor) -> Curve:
    """The receiver operating characteristic under ``(R, P)`` multiplicities."""
    ordered, order = pairs.similarity.sort(descending=True)
    last_of_its_value = torch.cat([ordered.diff() != 0, torch.ones(1, dtype=torch.bool)])
    times, same = times[:, order], pairs.same[order]

    def accepted(kind: Tensor) -> Tensor:
        so_far = (times * kind).cumsum(dim=1)
        return pad(so_far[:, last_of_its_value] / so_far[:, -1:], (1, 0))

    return Curve(accepted(~same), accepted(same))


def area(curve: Curve) -> Tensor:
    """``(R,)`` areas under the curves."""
    return torch.trapezoid(curve.true, curve.false, dim=1)


def true_accept_rate(curve: Curve, rate: float) -> Tensor:
    """``(R,)`` shares of true pairs accepted while at most ``rate`` of the false ones is."""
    return curve.true.where(curve.false <= rate, 0).amax(dim=1)


def equal_error_rate(curve: Curve) -> Tensor:
    """``(R,)``: where the straight lines between the points of the curve cross equal errors."""
    excess = curve.false - (1 - curve.true)
    after = (excess >= 0).byte().argmax(dim=1, keepdim=True).clamp(min=1)
    ends = torch.cat([after - 1, after], dim=1)
    low, high = excess.gather(1, ends).unbind(dim=1)
    start, stop = curve.false.gather(1, ends).unbind(dim=1)
    return start - low / (high - low) * (stop - start)


def fold_accuracies(pairs: PerPair, times: Tensor) -> tuple[Tensor, Tensor]:
    """``(R, F)`` accuracies, NaN where no pair of the fold counts, and thresholds."""
    accuracies, thresholds = [], []
    for held_out in range(int(pairs.fold.max()) + 1):
        inside = pairs.fold == held_out
        threshold = _best_threshold(pairs.similarity[~inside], pairs.same[~inside], times[:, ~inside])
        right = (pairs.similarity[inside] >= threshold[:, None]) == pairs.same[inside]
        counted = times[:, inside]
        accuracies.append((right * counted).sum(dim=1) / counted.sum(dim=1))
        thresholds.append(threshold)
    return torch.stack(accuracies, dim=1), torch.stack(thresholds, dim=1)


def _folds(same: Tensor, folds: int) -> Tensor:
    fold = torch.empty(len(same), dtype=torch.long)
    for kind in (same, ~same):
        size = int(kind.sum())
        fold[kind] = torch.arange(size) * folds // size
    return fold


def _best_threshold(similarity: Tensor, same: Tensor, times: Tensor) -> Tensor:
    """``(R,)``: half-way between the two neighbouring similarities that it divides best."""
    values, place = similarity.unique(return_inverse=True)

    def at_each_value(kind: Tensor) -> Tensor:
        return times.new_zeros(len(times), len(values)).index_add_(1, place[kind], times[:, kind])

    true, false = at_each_value(same), at_each_value(~same)
    # Accepting from the i-th value on: the true pairs from there, and the false pairs before, are right.
    right = pad(true.flip(1).cumsum(dim=1).flip(1), (0, 1)) + pad(false.cumsum(dim=1), (1, 0))
    accepted = torch.arange(len(values)) >= right.argmax(dim=1, keepdim=True)
    counts = true + false > 0
    below = values.where(counts & ~accepted, -torch.inf).amax(dim=1)
    above = values.where(counts & accepted, torch.inf).amin(dim=1)
    cut = torch.where(below.isinf(), above - 1e-6, (below + above) / 2)
    return torch.where(above.isinf(), below + 1e-6, cut)
