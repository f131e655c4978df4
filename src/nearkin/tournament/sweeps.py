"""Runs that differ in one setting alone: what it does to the validation and to the test score."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy import stats

from nearkin.recipe.sections import SECTIONS
from nearkin.tournament.outcomes import Outcome
from nearkin.tournament.terms import factor_of

# What the leaderboards, the figures and the rankings compare already.
_SHOWN_ELSEWHERE = frozenset(
    {"data.name", "network.name", "network.embedding_dim", "loss.name", "protocol.name", "terms"}
)
_ABSENT = "not set"


@dataclass(frozen=True)
class Mean:
    """The mean of a score over seeds.

    Attributes:
        value: In [0, 1].
        interval: Student's t interval of the mean over seeds; ``None`` with one seed.
    """

    value: float
    interval: tuple[float, float] | None

    @classmethod
    def of_shares(cls, values: Sequence[float], alpha: float) -> Mean:
        """Of one share per seed: no interval leaves [0, 1]."""
        mean = cls.of(values, alpha)
        if mean.interval is None:
            return mean
        low, high = mean.interval
        return cls(mean.value, (max(low, 0.0), min(high, 1.0)))

    @classmethod
    def of(cls, values: Sequence[float], alpha: float) -> Mean:
        """Of one value per seed."""
        value = statistics.fmean(values)
        if len(values) < 2:
            return cls(value, None)
        half = float(stats.t.ppf(1 - alpha / 2, len(values) - 1)) * statistics.stdev(values)
        half /= len(values) ** 0.5
        return cls(value, (value - half, value + half))


@dataclass(frozen=True)
class SweptValue:
    """One value of a swept setting.

    Attributes:
        value: Of the setting.
        runs: One per seed.
        test: The test score.
        validation: The score on validation classes that chose the epoch; ``None`` where there were none.
        validation_classes: How many these were; scores over different numbers do not compare.
    """

    value: Any
    runs: tuple[Outcome, ...]
    test: Mean
    validation: Mean | None
    validation_classes: int

    def test_by_seed(self, metric: str) -> dict[int | None, float]:
        """Seed → test score."""
        return {run.seed: run.scores[metric] for run in self.runs}


@dataclass(frozen=True)
class Sweep:
    """Runs that differ in one setting and the seed, and in nothing else.

    Attributes:
        key: The setting, such as ``protocol.validation_share``.
        values: In rising order, or as they came where they are no numbers.
        metric: The score.
        alpha: 1 − the confidence of all intervals.
    """

    key: str
    values: tuple[SweptValue, ...]
    metric: str
    alpha: float = 0.05

    @property
    def best_on_test(self) -> SweptValue:
        """The value with the best mean test score."""
        return max(self.values, key=lambda one: one.test.value)

    @property
    def best_on_validation(self) -> SweptValue | None:
        """The value with the best mean validation score; ``None`` where some run has none."""
        if any(one.validation is None for one in self.values):
            return None
        return max(self.values, key=lambda one: one.validation.value if one.validation else 0.0)

    @property
    def validation_compares(self) -> bool:
        """Whether all validation scores are over the same number of classes."""
        return len({one.validation_classes for one in self.values}) == 1

    def difference(self, first: SweptValue, second: SweptValue) -> Mean | None:
        """First minus second on the test classes, seed by seed; ``None`` with fewer than two common seeds."""
        one, other = first.test_by_seed(self.metric), second.test_by_seed(self.metric)
        common = [seed for seed in one if seed in other]
        if len(common) < 2:
            return None
        return Mean.of([one[seed] - other[seed] for seed in common], self.alpha)

    def told_apart(self) -> tuple[list[SweptValue], list[SweptValue]]:
        """Which of the others the best on test is ahead of, and which it cannot be told from.

        By the interval of the difference over seeds, at a level divided by the number of comparisons
        (Bonferroni).
        """
        best = self.best_on_test
        others = [one for one in self.values if one is not best]
        strict = Sweep(self.key, self.values, self.metric, self.alpha / max(len(others), 1))
        differences = [(one, strict.difference(best, one)) for one in others]
        ahead = [one for one, found in differences if found and found.interval and found.interval[0] > 0]
        return ahead, [one for one in others if not any(one is two for two in ahead)]


def sweeps(outcomes: Sequence[Outcome], metric: str, *, alpha: float = 0.05) -> list[Sweep]:
    """Every setting of which runs have several values, all else but the seed being equal.

    Args:
        outcomes: Runs; baselines and published figures have no part in it.
        metric: The score to look at.
        alpha: 1 − the confidence of all intervals.
    """
    runs = [one for one in outcomes if one.kind == "run" and one.terms is not None and metric in one.scores]
    flats = [_counted(one.terms.flat) for one in runs if one.terms is not None]
    keys = dict.fromkeys(key for flat in flats for key in flat if key not in _SHOWN_ELSEWHERE)
    found = []
    for key in keys:
        if len({_text(flat.get(key, _ABSENT)) for flat in flats}) < 2:
            continue
        groups: dict[str, list[tuple[Any, Outcome]]] = {}
        for run, flat in zip(runs, flats, strict=True):
            rest = {name: value for name, value in flat.items() if not _goes_along(name, key)}
            groups.setdefault(_text(rest), []).append((flat.get(key, _ABSENT), run))
        found += [one for group in groups.values() if (one := _sweep(key, group, metric, alpha)) is not None]
    return found


def _sweep(key: str, runs: Sequence[tuple[Any, Outcome]], metric: str, alpha: float) -> Sweep | None:
    by_value: dict[str, dict[int | None, Outcome]] = {}
    values: dict[str, Any] = {}
    for value, run in runs:
        values[_text(value)] = value
        there = by_value.setdefault(_text(value), {}).setdefault(run.seed, run)
        if there.scores != run.scores:  # not the same run again, which counts once: something else differs
            return None
    if len(by_value) < 2:
        return None
    swept = [_swept(values[text], list(ones.values()), metric, alpha) for text, ones in by_value.items()]
    if all(isinstance(one.value, int | float) and not isinstance(one.value, bool) for one in swept):
        swept.sort(key=lambda one: float(one.value))
    return Sweep(key, tuple(swept), metric, alpha)


def _swept(value: Any, runs: Sequence[Outcome], metric: str, alpha: float) -> SweptValue:
    results = [run.result for run in runs if run.result is not None]
    validated = [one.validation.to_dict() for one in results if one.validation is not None]
    scores = [float(one[metric]) for one in validated if metric in one]
    held_out = [one.data.validation.classes for one in results if one.data and one.data.validation]
    return SweptValue(
        value=value,
        runs=tuple(runs),
        test=Mean.of_shares([run.scores[metric] for run in runs], alpha),
        validation=Mean.of_shares(scores, alpha) if len(scores) == len(runs) else None,
        validation_classes=held_out[0] if held_out else 0,
    )


def _counted(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The settings on which scores depend, the seed apart."""
    return {key: value for key, value in flat.items() if factor_of(key) not in {"nothing", "seed"}}


def _goes_along(name: str, key: str) -> bool:
    """Whether a setting is the swept one, or a keyword of what this names, which the other names lack.

    >>> [_goes_along(f"sampler.{name}", "sampler.name") for name in ("images_per_class", "batch_size")]
    [True, False]
    """
    table, _, last = key.rpartition(".")
    if name == key or last != "name" or table not in SECTIONS:
        return name == key
    return name.startswith(f"{table}.") and name.partition(".")[2] not in SECTIONS[table].model_fields


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
