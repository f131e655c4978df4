"""What tuning changed: every loss with a plan's own settings beside what a search found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from nearkin.benchmark.found import Found
from nearkin.tournament import statistics
from nearkin.tournament.standings import Leaderboard, Place

_STILL_RISING = 0.01  # a point in the last quarter of the epochs


@dataclass(frozen=True)
class TuningEffect:
    """A loss in one experiment.

    Attributes:
        contender: The loss.
        tuned: Its score with what was found.
        tuned_rank: The rank of it among those that were tested both ways.
        default: Its score with the plan's own settings; ``None`` if these were not tested.
        default_rank: The rank of it.
        found: What the search found.
    """

    contender: str
    tuned: float
    tuned_rank: float | None
    default: float | None
    default_rank: float | None
    found: Found | None


def effects(tuned: Leaderboard, defaults: Leaderboard | None, metric: str) -> list[TuningEffect]:
    """Every tuned loss of a leaderboard beside its default settings, the best tuned one first."""
    places = [place for place in tuned.places if place.kind == "run" and _found(place) is not None]
    before = (
        {}
        if defaults is None
        else {place.contender: place.scores[metric] for place in defaults.places if place.kind == "run"}
    )
    after = {place.contender: place.scores[metric] for place in places if place.contender in before}
    tuned_ranks = statistics.ranks(after) if after else {}
    default_ranks = statistics.ranks({name: before[name] for name in after}) if after else {}
    return [
        TuningEffect(
            place.contender,
            place.scores[metric],
            tuned_ranks.get(place.contender),
            before.get(place.contender),
            default_ranks.get(place.contender),
            _found(place),
        )
        for place in places
    ]


def order_agreement(found: Sequence[TuningEffect]) -> float | None:
    """Kendall's τ between the orders before and after tuning; ``None`` with fewer than three losses."""
    both = [one for one in found if one.default is not None]
    if len(both) < 3:
        return None
    tau = float(stats.kendalltau([one.default for one in both], [one.tuned for one in both]).statistic)
    return None if math.isnan(tau) else tau


def rank_share(found: Sequence[TuningEffect]) -> float | None:
    """How much of a loss's rank is tuning: the mean number of places that it moved by."""
    moved = [
        abs(one.tuned_rank - one.default_rank)
        for one in found
        if one.tuned_rank is not None and one.default_rank is not None
    ]
    return float(np.mean(moved)) if moved else None


def board_beside(board: Leaderboard, others: Sequence[Leaderboard]) -> Leaderboard | None:
    """The leaderboard of the same experiment among others."""
    return next((one for one in others if one.experiment == board.experiment), None)


def settings_warnings(board: Leaderboard) -> list[str]:
    """Losses whose settings may not be the best: at the edge of what was searched, or still rising."""
    edges = {
        place.contender: found.at_the_edge()
        for place in board.places
        if (found := _found(place)) is not None and found.at_the_edge()
    }
    notes = _untuned(board)
    if edges:
        told = "; ".join(f"{name} ({_values(values)})" for name, values in edges.items())
        notes.append(f"At the edge of what was searched, better settings may lie beyond: {told}.")
    rising = [place.contender for place in board.places if place.kind == "run" and _is_rising(place)]
    if rising:
        notes.append(
            f"Not converged, the validation score still rose by more than a point in the last quarter of the "
            f"epochs: {', '.join(rising)}."
        )
    return notes


def _untuned(board: Leaderboard) -> list[str]:
    """Who has default settings among losses that were tuned, because a search failed or was not made."""
    runs = {place.contender: place.outcomes[0].variant for place in board.places if place.kind == "run"}
    left = [name for name, variant in runs.items() if variant != "tuned"]
    if not left or len(left) == len(runs):
        return []
    return [f"Not tuned, ranked with default settings among those that were: {', '.join(left)}."]


def _is_rising(place: Place) -> bool:
    """Whether the validation score of most runs gained a point or more in the last quarter of the epochs."""
    gains = [gain for one in place.outcomes if (gain := _last_gain(one.curve)) is not None]
    return bool(gains) and float(np.median(gains)) > _STILL_RISING


def _last_gain(curve: Sequence[dict[str, Any]]) -> float | None:
    """How much the best validation score so far grew in the last quarter of the epochs."""
    key = next((name for row in curve for name in row if name.startswith("recall_at_")), None)
    scores = [row[key] for row in curve if key in row and row["epoch"]] if key else []
    if len(scores) < 4:
        return None
    before = math.ceil(0.75 * len(scores))
    return float(max(scores) - max(scores[:before]))


def _values(values: dict[str, Any]) -> str:
    return ", ".join(f"{key} = {value:g}" for key, value in values.items())


def _found(place: Place) -> Found | None:
    return next((one.found for one in place.outcomes if one.variant == "tuned"), None)
