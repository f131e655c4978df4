"""Known pairs of the test samples, scored where the data is of pairs."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from nearkin.data import KnownPairs
from nearkin.evaluation import Interval, PairScores, Threshold, pair_intervals, pair_scores, pair_similarities
from nearkin.evaluation.pair_scores import auc_gain, without_pairs
from nearkin.training import TestEmbeddings


def verified(opened: TestEmbeddings, threshold: Threshold | None) -> PairScores | None:
    """Scores of the known pairs of opened test samples; ``None`` for data of classes."""
    known = opened.queries.pairs
    if known is None:
        return None
    similarity, same, _ = _scored(known, opened)
    return pair_scores(similarity, same, threshold)


def verified_with_intervals(
    opened: TestEmbeddings, threshold: Threshold | None, seed: int
) -> tuple[PairScores | None, dict[str, Interval]]:
    """The same, and intervals over the groups that matches join; none where these are too few."""
    known = opened.queries.pairs
    if known is None:
        return None, {}
    similarity, same, groups = _scored(known, opened)
    scores = pair_scores(similarity, same, threshold, per_pair=True)
    try:
        intervals = pair_intervals(scores, groups, threshold, seed=seed)
    except ValueError:  # too few groups, or answers that are not transitive
        intervals = {}
    return without_pairs(scores), intervals


def gain_on_pairs(start: TestEmbeddings, opened: Sequence[TestEmbeddings], seed: int) -> Interval | None:
    """What training added to the ROC AUC of the known pairs."""
    known = start.queries.pairs
    assert known is not None
    before, same, groups = _scored(known, start)
    return auc_gain(before, [_scored(known, one)[0] for one in opened], same, groups, seed=seed)


def _scored(known: KnownPairs, opened: TestEmbeddings) -> tuple[Tensor, Tensor, Tensor]:
    pairs, same = known.scored()
    return pair_similarities(opened.query_embeddings, pairs), same, known.groups[pairs]
