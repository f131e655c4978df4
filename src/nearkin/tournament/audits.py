"""The thesis's four questions about choosing on test (its section 3.5.3), answered from audited runs.

``protocol.audit = true`` leaves the test score of every epoch in ``audit.json``, made after the selection.
Here the same runs are looked at twice: as they were selected, and as they would have been reported with the
best epoch on test.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from nearkin.protocols.audit import Audit
from nearkin.tournament.outcomes import Outcome
from nearkin.tournament.standings import Leaderboard, Standings
from nearkin.tournament.sweeps import Mean


@dataclass(frozen=True)
class AuditedRun:
    """One network, selected honestly and as choosing on test would have.

    Attributes:
        seed: Of its run.
        chosen: The epoch that was selected without the test classes, and its test score.
        best: The epoch with the best test score, and that score.
        last: The test score of the last epoch.
        peak: How far the best score stands above the mean of its neighbouring epochs; 0 with one epoch.
        unrest: Standard deviation of the test score over the second half of the epochs; 0 with one.
    """

    seed: int | None
    chosen: tuple[int, float]
    best: tuple[int, float]
    last: float
    peak: float
    unrest: float

    @property
    def gap(self) -> float:
        """What choosing on test would have added."""
        return self.best[1] - self.chosen[1]

    @classmethod
    def of(cls, audit: Audit, metric: str, seed: int | None) -> AuditedRun | None:
        """Of an audit; ``None`` if the chosen epoch is not in it, as in a run that was audited half-way."""
        scores = audit.scores(metric)
        if audit.chosen not in scores:
            return None
        best = max(scores, key=lambda epoch: (scores[epoch], -epoch))
        epochs = list(scores)
        place = epochs.index(best)
        neighbours = [
            scores[epoch] for epoch in (*epochs[max(place - 1, 0) : place], *epochs[place + 1 : place + 2])
        ]
        later = [scores[epoch] for epoch in epochs[len(epochs) // 2 :]]
        return cls(
            seed,
            (audit.chosen, scores[audit.chosen]),
            (best, scores[best]),
            scores[epochs[-1]],
            scores[best] - statistics.fmean(neighbours) if neighbours else 0.0,
            statistics.stdev(later) if len(later) > 1 else 0.0,
        )


@dataclass(frozen=True)
class AuditedContender:
    """All audited networks of a contender in an experiment.

    Attributes:
        contender: Its name.
        runs: One per seed, or per fold.
        gap: What choosing on test would have added, over these.
        honest: The mean test score as selected.
        claimed: The mean test score of the best epochs on test.
    """

    contender: str
    runs: tuple[AuditedRun, ...]
    gap: Mean
    honest: float
    claimed: float

    @property
    def peak(self) -> float:
        """The mean height of the best epoch above its neighbours."""
        return statistics.fmean(one.peak for one in self.runs)

    @property
    def unrest(self) -> float:
        """The mean standard deviation of the test score over the second half of the epochs."""
        return statistics.fmean(one.unrest for one in self.runs)

    @property
    def beyond_last(self) -> float:
        """How far the best epoch on test is above the last one, in the mean."""
        return statistics.fmean(one.best[1] - one.last for one in self.runs)


@dataclass(frozen=True)
class AuditedBoard:
    """The audited contenders of an experiment, the best as selected first."""

    board: Leaderboard
    contenders: tuple[AuditedContender, ...]

    @property
    def order_as_selected(self) -> list[str]:
        """Contenders by their honest scores."""
        return [one.contender for one in self.contenders]

    @property
    def order_as_claimed(self) -> list[str]:
        """Contenders by what choosing on test would have claimed."""
        ordered = sorted(self.contenders, key=lambda one: (-one.claimed, one.contender))
        return [one.contender for one in ordered]


def audited_boards(standings: Standings) -> list[AuditedBoard]:
    """Every experiment with audited runs."""
    found = []
    for board in standings.leaderboards:
        contenders = [
            one
            for place in board.places
            if (one := _contender(place.contender, place.outcomes, standings.metric, standings.alpha))
            is not None
        ]
        contenders.sort(key=lambda one: (-one.honest, one.contender))
        if contenders:
            found.append(AuditedBoard(board, tuple(contenders)))
    return found


def _contender(name: str, outcomes: Sequence[Outcome], metric: str, alpha: float) -> AuditedContender | None:
    runs = tuple(one for outcome in outcomes for one in _audited(outcome, metric))
    if not runs:
        return None
    return AuditedContender(
        name,
        runs,
        Mean.of([one.gap for one in runs], alpha),
        statistics.fmean(one.chosen[1] for one in runs),
        statistics.fmean(one.best[1] for one in runs),
    )


def _audited(outcome: Outcome, metric: str) -> list[AuditedRun]:
    """The networks of a run that were audited: its own, or those of its folds."""
    if outcome.path is None or outcome.result is None:
        return []
    folders = [outcome.path / one.run for one in outcome.result.networks]
    audits = [audit for folder in folders if (audit := Audit.read(folder)) is not None]
    runs = [AuditedRun.of(audit, metric, outcome.seed) for audit in audits]
    return [one for one in runs if one is not None]
