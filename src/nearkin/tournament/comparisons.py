"""Two contenders on the same queries: is the difference larger than what new classes would bring?

A contender with several seeds is taken as the mean of its seeds: each query's hits are averaged over them
before classes are drawn. The intervals so speak of new classes, given these seeds; how much the seeds
themselves move a score is shown beside them, as its own spread.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor

from nearkin.evaluation import Interval, exchange_test, mean_intervals
from nearkin.tournament.outcomes import Outcome
from nearkin.tournament.standings import Comparison, Verdict
from nearkin.tournament.statistics import holm

_RESAMPLES = 2000


class Hits(NamedTuple):
    """A contender's score of every query, averaged over its seeds.

    Attributes:
        values: ``(Q,)``, their mean is the score.
        rows: ``(Q,)`` rows of the test samples that are these queries.
        classes: ``(Q,)`` their classes.
    """

    values: Tensor
    rows: Tensor
    classes: Tensor

    def same_queries(self, other: Hits) -> bool:
        """Whether two contenders answered the same questions."""
        return torch.equal(self.rows, other.rows) and torch.equal(self.classes, other.classes)


def hits_of(outcomes: Iterable[Outcome], metric: str) -> Hits | None:
    """The hits of a contender, averaged over its seeds (and over the folds of a cross-validation).

    ``None`` if a run has not kept its queries, or they are not the same ones.
    """
    found: list[Hits] = []
    for outcome in outcomes:
        parts = outcome.parts()
        if not parts:
            return None
        for scores, labels in parts:
            kept = scores.per_query
            assert kept is not None
            values = kept.scores(list(scores.recall_at)).get(metric)
            if values is None:
                return None
            found.append(Hits(values, kept.indices, labels[kept.indices]))
    if not all(found[0].same_queries(other) for other in found):
        return None
    return found[0]._replace(values=torch.stack([one.values for one in found]).mean(dim=0))


def class_interval(hits: Hits, *, confidence: float = 0.95, seed: int = 0) -> Interval:
    """The interval of a contender's score over classes."""
    name = "score"
    return mean_intervals({name: hits.values}, hits.classes, confidence=confidence, seed=seed)[name]


def compare_all(hits: Mapping[str, Hits], *, alpha: float = 0.05, seed: int = 0) -> list[Comparison]:
    """Every pair of contenders that answered the same queries: difference, interval, p-value, verdict.

    A win needs both: the pair's interval over classes excludes 0, and its p-value, after Holm's correction
    for all pairs, is below alpha. Enough exchanges are drawn that the correction alone cannot forbid a win.

    Args:
        hits: The hits by contender.
        alpha: Level of the family of all pairs; the intervals have confidence 1 − alpha each.
        seed: The seed of the draws, which are the same for every pair.
    """
    pairs = [(a, b) for a, b in combinations(hits, 2) if hits[a].same_queries(hits[b])]
    if not pairs:
        return []
    draws = max(_RESAMPLES, math.ceil(2 * len(pairs) / alpha))
    intervals: dict[str, Interval] = {}
    p_values: dict[str, float] = {}
    for first in hits:
        mine = [b for a, b in pairs if a == first]
        if not mine:
            continue
        gaps = {_key(first, b): hits[first].values - hits[b].values for b in mine}
        classes = hits[first].classes
        intervals |= mean_intervals(gaps, classes, confidence=1 - alpha, resamples=draws, seed=seed)
        p_values |= exchange_test(gaps, classes, exchanges=draws, seed=seed)
    keys = [_key(*pair) for pair in pairs]
    corrected = holm([p_values[key] for key in keys])
    return [
        Comparison(
            first=first,
            second=second,
            difference=intervals[key].value,
            low=intervals[key].low,
            high=intervals[key].high,
            p_value=p_values[key],
            p_holm=p_holm,
            verdict=_verdict(intervals[key], p_holm, alpha),
        )
        for (first, second), key, p_holm in zip(pairs, keys, corrected, strict=True)
    ]


def _key(first: str, second: str) -> str:
    return f"{first} − {second}"


def _verdict(interval: Interval, p_holm: float, alpha: float) -> Verdict:
    if p_holm < alpha and interval.low > 0:
        return "win"
    if p_holm < alpha and interval.high < 0:
        return "loss"
    return "tie"
