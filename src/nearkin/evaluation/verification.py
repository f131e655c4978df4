"""Verification: are these two of one kind? ROC, equal error rate, and accuracy the LFW way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nearkin.evaluation.inputs import Metric, checked_embeddings, checked_metric, checked_together, unit_rows


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
    """

    roc_auc: float
    equal_error_rate: float
    tar_at_far: dict[float, float | None]
    accuracy: float
    accuracy_std: float
    threshold: float
    positive_pairs: int
    negative_pairs: int

    def to_dict(self) -> dict[str, float | int | None]:
        """One flat dictionary, ready for JSON, with names like ``tar_at_far_1e-03``."""
        rates = {f"tar_at_far_{rate:.0e}": found for rate, found in self.tar_at_far.items()}
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


@torch.no_grad()
def verification_scores(
    first: Tensor,
    second: Tensor,
    same: Tensor,
    *,
    far: Sequence[float] = (1e-2, 1e-3, 1e-4, 1e-5),
    folds: int = 10,
    metric: Metric = "cosine",
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

    >>> first = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    >>> second = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.1, 0.9], [1.0, 0.0]])
    >>> same = torch.tensor([True, True, False, False])
    >>> verification_scores(first, second, same, folds=2).accuracy
    1.0
    """
    similarity = _pair_similarity(first, second, checked_metric(metric))
    same = torch.as_tensor(same).cpu()
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
    accepted_false, accepted_true = _roc(similarity, same)
    accuracies, thresholds = _fold_accuracies(similarity, same, folds)
    return VerificationScores(
        roc_auc=float(torch.trapezoid(accepted_true, accepted_false)),
        equal_error_rate=_equal_error_rate(accepted_false, accepted_true),
        tar_at_far={
            rate: float(accepted_true[accepted_false <= rate].max()) if rate * negatives >= 1 else None
            for rate in far
        },
        accuracy=float(accuracies.mean()),
        accuracy_std=float(accuracies.std()),
        threshold=float(thresholds.mean()),
        positive_pairs=positives,
        negative_pairs=negatives,
    )


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


def _roc(similarity: Tensor, same: Tensor) -> tuple[Tensor, Tensor]:
    """Shares of false and of true pairs accepted, from accepting nothing to everything."""
    ordered, order = similarity.sort(descending=True)
    last_of_its_value = torch.cat([ordered.diff() != 0, torch.ones(1, dtype=torch.bool)])
    true, false = same[order].double(), (~same)[order].double()
    nothing = torch.zeros(1, dtype=torch.float64)
    accepted_false, accepted_true = (
        torch.cat([nothing, kind.cumsum(0)[last_of_its_value] / kind.sum()]) for kind in (false, true)
    )
    return accepted_false, accepted_true


def _equal_error_rate(accepted_false: Tensor, accepted_true: Tensor) -> float:
    """Where the straight lines between the points of the ROC cross equal errors."""
    excess = accepted_false - (1 - accepted_true)
    after = int((excess >= 0).nonzero()[0])
    before = after - 1
    share = -excess[before] / (excess[after] - excess[before])
    return float(accepted_false[before] + share * (accepted_false[after] - accepted_false[before]))


def _fold_accuracies(similarity: Tensor, same: Tensor, folds: int) -> tuple[Tensor, Tensor]:
    fold = torch.empty(len(same), dtype=torch.long)
    for kind in (same, ~same):
        size = int(kind.sum())
        fold[kind] = torch.arange(size) * folds // size
    accuracies, thresholds = [], []
    for held_out in range(folds):
        inside = fold == held_out
        threshold = _best_threshold(similarity[~inside], same[~inside])
        accuracies.append(((similarity[inside] >= threshold) == same[inside]).double().mean())
        thresholds.append(threshold)
    return torch.stack(accuracies), torch.stack(thresholds)


def _best_threshold(similarity: Tensor, same: Tensor) -> Tensor:
    """Half-way between the two neighbouring similarities that it divides best."""
    values, place = similarity.unique(return_inverse=True)
    true = torch.bincount(place[same], minlength=len(values))
    false = torch.bincount(place[~same], minlength=len(values))
    # Accepting from the i-th value on: the true pairs from there, and the false pairs before, are right.
    nothing = torch.zeros(1, dtype=torch.long)
    right = torch.cat([true.flip(0).cumsum(0).flip(0), nothing]) + torch.cat([nothing, false.cumsum(0)])
    cuts = torch.cat([values[:1] - 1e-6, (values[1:] + values[:-1]) / 2, values[-1:] + 1e-6])
    return cuts[right.argmax()]
