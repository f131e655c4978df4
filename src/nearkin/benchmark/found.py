"""What a search found, and how sure it is: the part of a search that reports read, without Optuna."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from nearkin.atomic import write_json

FOUND = "found.json"
TUNING = "tuning"
"""The folder of a plan's searches, beside its runs."""

_RESAMPLES = 2000
_EDGE = 0.02  # of a range, on a side
_FLAT = 0.01  # a trial within one point of the best is as good, for most purposes


@dataclass(frozen=True)
class TriedValues:
    """One trial.

    Attributes:
        values: What was tried, by recipe key.
        score: The score on validation classes; ``None`` if it failed.
        epochs: Epochs that it was trained for.
        steps: Batches that it was trained for.
        state: ``done``, ``given up`` or ``failed``.
    """

    values: dict[str, Any]
    score: float | None
    epochs: int
    steps: int
    state: str


@dataclass(frozen=True)
class Found:
    """What a search on validation classes found.

    Attributes:
        name: The search's directory.
        values: The best values, by recipe key.
        score: The best trial's score on validation classes, in [0, 1].
        own: The values that the plan had before.
        space: Where it looked, by recipe key, in plain values.
        sampler: How trials were drawn.
        metric: What the score is called.
        trials: Every trial, in order; the first one has the plan's own values, where the search looks there.
        complete: Whether the budget is used up.
    """

    name: str
    values: dict[str, Any]
    score: float
    own: dict[str, Any]
    space: dict[str, dict[str, Any]]
    sampler: str
    metric: str
    trials: list[TriedValues] = field(default_factory=list)
    complete: bool = True

    @property
    def steps(self) -> int:
        """Training steps of all trials."""
        return sum(trial.steps for trial in self.trials)

    @property
    def in_full(self) -> list[TriedValues]:
        """The trials that were trained as far as the best: only their scores can be compared."""
        last = max((trial.epochs for trial in self.trials if trial.score is not None), default=0)
        return [trial for trial in self.trials if trial.score is not None and trial.epochs == last]

    @property
    def as_good(self) -> int:
        """How many of the trials that were trained in full score within a point of the best one."""
        return sum(self.score - (trial.score or 0.0) <= _FLAT for trial in self.in_full)

    @property
    def behind(self) -> float | None:
        """How far the median of the trials that were trained in full lies behind the best."""
        scores = [trial.score for trial in self.in_full if trial.score is not None]
        return None if len(scores) < 2 else self.score - float(np.median(scores))

    @property
    def own_score(self) -> float | None:
        """The score of the plan's own values, if they were trained in full."""
        for trial in self.in_full:
            if all(_same(trial.values.get(key), self.own.get(key)) for key in self.values):
                return trial.score
        return None

    def spread(self) -> float | None:
        """The standard deviation of the best score if other trials had been drawn, by bootstrap over trials.

        On validation classes: the test classes are never asked about a trial. ``None`` with fewer than three
        trials that were trained in full.
        """
        scores = np.array([trial.score for trial in self.in_full], dtype=np.float64)
        if len(scores) < 3:
            return None
        draws = np.random.default_rng(0).integers(len(scores), size=(_RESAMPLES, len(scores)))
        return float(scores[draws].max(axis=1).std(ddof=1))

    def at_the_edge(self) -> dict[str, Any]:
        """The values that lie at an end of their range, where something better may lie beyond."""
        return {
            key: value
            for key, value in self.values.items()
            if key in self.space and _at_the_edge(value, self.space[key])
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Found:
        """What :meth:`to_dict` gave."""
        return cls(**{**plain, "trials": [TriedValues(**trial) for trial in plain["trials"]]})


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, int | float) and isinstance(second, int | float):
        return math.isclose(first, second, rel_tol=1e-3, abs_tol=1e-12)
    return bool(first == second)


def _at_the_edge(value: Any, where: Mapping[str, Any]) -> bool:
    """Whether a number lies at an end of a range; 0 is the natural end of what cannot be negative."""
    if where.get("kind") != "range" or not isinstance(value, int | float):
        return False
    low, high, place = where["low"], where["high"], float(value)
    if where.get("log"):
        low, high, place = math.log(low), math.log(high), math.log(place)
    share = (place - low) / (high - low)
    at_low, at_high = share <= _EDGE, share >= 1 - _EDGE
    return bool((at_low and where["low"] != 0) or at_high)


def write_found(file: Path, found: Sequence[Found], *, plan: str, tuning: Mapping[str, Any]) -> None:
    """Write what all searches of a plan found into one file."""
    write_json(file, {"plan": plan, "tuning": dict(tuning), "searches": [one.to_dict() for one in found]})


def read_found(file: Path) -> dict[str, Found]:
    """What :func:`write_found` wrote, by the names of the searches.

    Raises:
        ValueError: It is no such file.
    """
    try:
        searches = json.loads(file.read_text(encoding="utf-8"))["searches"]
        return {one["name"]: Found.from_dict(one) for one in searches}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} does not hold what a search found: {error}") from None


def packaged_found() -> dict[str, Path]:
    """What was found for the plans that come with the library, by name."""
    folder = Path(str(files("nearkin.benchmark") / "plans" / "found"))
    return {path.stem: path for path in sorted(folder.glob("*.json"))} if folder.is_dir() else {}
