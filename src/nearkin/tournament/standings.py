"""Everything a tournament has to say, in plain values: what a report shows and a terminal prints."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nearkin.evaluation import Interval
from nearkin.extras import data_frame
from nearkin.tournament.outcomes import Experiment, Kind, Outcome, Skipped

if TYPE_CHECKING:
    import pandas as pd

    from nearkin.tournament.doubts import Doubts

Verdict = Literal["win", "tie", "loss"]


@dataclass(frozen=True)
class PublishedFigure:
    """What somebody reported for a loss, data set, network and embedding size.

    Attributes:
        source: Who and where, such as ``Psomas, 2020, Table 7``.
        contender: The loss.
        experiment: Data set, network, embedding size and protocol.
        scores: The scores by name, in [0, 1].
        note: What to know before comparing; empty if nothing.
    """

    source: str
    contender: str
    experiment: Experiment
    scores: dict[str, float]
    note: str = ""


@dataclass(frozen=True)
class Place:
    """A line of a leaderboard: one contender in one experiment, over all its seeds.

    Attributes:
        contender: Loss or baseline.
        kind: ``run``, ``baseline`` or ``published``.
        rank: 1 is best, ties share their mean rank; ``None`` for baselines, which are shown, not ranked.
        scores: Mean over seeds, by name, in [0, 1].
        spread: Standard deviation over seeds (n − 1), by name; empty with one seed.
        interval: The interval of the ranked score over test classes, hits averaged over seeds; ``None`` if no
            run kept its queries.
        seeds_interval: That of the ranked score's mean over seeds (Student's t); ``None`` with one seed.
        outcomes: The runs behind it.
        published: Figures that others reported for this configuration.
    """

    contender: str
    kind: Kind
    rank: float | None
    scores: dict[str, float]
    spread: dict[str, float]
    interval: Interval | None
    seeds_interval: tuple[float, float] | None
    outcomes: list[Outcome]
    published: list[PublishedFigure] = field(default_factory=list)

    @property
    def seeds(self) -> int:
        """How many runs the means are over."""
        return len(self.outcomes)


@dataclass(frozen=True)
class Comparison:
    """Two contenders on the same queries of one experiment: the first one's score minus the second's.

    Attributes:
        first: A contender.
        second: Another.
        difference: Mean over queries, hits averaged over seeds.
        low: Lower end of the interval over classes.
        high: Upper end.
        p_value: The p-value of exchanging the two in a random half of the classes (two-sided).
        p_holm: The same after Holm's correction for all pairs of the experiment.
        verdict: ``win`` or ``loss`` of the first if the interval excludes 0 and ``p_holm`` is below alpha.
    """

    first: str
    second: str
    difference: float
    low: float
    high: float
    p_value: float
    p_holm: float
    verdict: Verdict


@dataclass(frozen=True)
class Leaderboard:
    """One experiment.

    Attributes:
        experiment: What all lines have in common.
        places: Best first, baselines among them by their score.
        comparisons: Every pair of contenders whose queries were kept, once.
        notes: What to know before believing it, such as unequal terms.
    """

    experiment: Experiment
    places: list[Place]
    comparisons: list[Comparison]
    notes: list[str]

    def comparison(self, first: str, second: str) -> Comparison | None:
        """The comparison of two contenders, seen from the first; ``None`` if there is none."""
        for found in self.comparisons:
            if (found.first, found.second) == (first, second):
                return found
            if (found.first, found.second) == (second, first):
                return reverse(found)
        return None


@dataclass(frozen=True)
class RankRow:
    """A line of the ranking over experiments, as in Table 11 of the thesis.

    Attributes:
        contender: The loss.
        total: Sum of its ranks.
        average: Mean rank.
        deviation: Standard deviation of its ranks (n − 1; 0 with one experiment).
        ranks: The ranks by experiment.
    """

    contender: str
    total: float
    average: float
    deviation: float
    ranks: dict[Experiment, float]


@dataclass(frozen=True)
class OverallRanking:
    """Ranks over the experiments in which every ranked contender took part.

    Attributes:
        rows: Best first.
        experiments: Those that count.
        left_out: Contenders without a score in some experiment, with how many they have.
    """

    rows: list[RankRow]
    experiments: list[Experiment]
    left_out: dict[str, int] = field(default_factory=dict)

    @property
    def averages(self) -> dict[str, float]:
        """The average rank of each contender, best first."""
        return {row.contender: row.average for row in self.rows}


@dataclass(frozen=True)
class FriedmanTest:
    """Do the contenders differ at all?

    Friedman (1937, JASA), with the correction of Iman and Davenport (1980).

    Attributes:
        statistic: χ², corrected for ties.
        p_value: The p-value of χ² with k − 1 degrees of freedom.
        f_statistic: Iman and Davenport's less conservative F.
        f_p_value: The p-value of F with k − 1 and (k − 1)(N − 1) degrees of freedom.
        contenders: k.
        experiments: N.
        permutation_p_value: Where N ≤ 10 or k ≤ 5, too few for χ² and F; ``None`` with more.
    """

    statistic: float
    p_value: float
    f_statistic: float
    f_p_value: float
    contenders: int
    experiments: int
    permutation_p_value: float | None = None

    @property
    def best_p_value(self) -> float:
        """The most trustworthy of the p-values: by permutation where there is one, or else of F."""
        return self.f_p_value if self.permutation_p_value is None else self.permutation_p_value


@dataclass(frozen=True)
class NemenyiTest:
    """Which contenders differ?

    Those whose average ranks are further apart than the critical difference (Nemenyi, 1963).

    Attributes:
        critical_difference: The critical difference in average ranks.
        alpha: Level of the test.
        p_values: The p-values by pair, first contender before second in the ranking.
        groups: Contenders in a row that cannot be told apart, two or more each.
    """

    critical_difference: float
    alpha: float
    p_values: dict[tuple[str, str], float]
    groups: list[list[str]]


@dataclass(frozen=True)
class PairTest:
    """Wilcoxon's signed-rank test of two contenders over the experiments, exact.

    Attributes:
        first: A contender.
        second: Another.
        p_value: Two-sided.
        p_holm: After Holm's correction for all pairs.
        difference: Median over the experiments of the first one's score minus the second's.
    """

    first: str
    second: str
    p_value: float
    p_holm: float
    difference: float


@dataclass(frozen=True)
class Record:
    """How often one contender beat another, over all experiments."""

    wins: int
    ties: int
    losses: int


@dataclass(frozen=True)
class Standings:
    """Everything a tournament has to say.

    Attributes:
        metric: The score that ranks.
        alpha: Level of all tests.
        leaderboards: One per experiment.
        ranking: Over the experiments, ranked contenders only (losses, no baselines).
        friedman: ``None`` where there are too few experiments or contenders; ``test_notes`` says so.
        nemenyi: Likewise.
        pair_tests: Every pair of ranked contenders; empty where no result could be significant.
        records: Wins, ties and losses by pair of contenders, both ways round; baselines included. Empty
            without kept queries.
        notes: What a reader must know: slips in published tables, unequal terms, what was left out.
        test_notes: Each test's finding in a sentence, or why there is none.
        skipped: Directories that could not be compared, with the reason.
        report: The page of the report, where one was written.
        picture: The diagram of average ranks, where one was drawn.
        doubts: How sure it is; ``None`` where nothing is known of single queries.
        doubt_notes: The same in sentences, and what it would take to be surer.
        defaults: Of a plan whose losses were tuned: the standings with its own settings.
    """

    metric: str
    alpha: float
    leaderboards: list[Leaderboard]
    ranking: OverallRanking
    friedman: FriedmanTest | None
    nemenyi: NemenyiTest | None
    pair_tests: list[PairTest]
    records: dict[tuple[str, str], Record]
    notes: list[str]
    test_notes: list[str]
    skipped: list[Skipped]
    report: Path | None = None
    picture: Path | None = None
    doubts: Doubts | None = None
    doubt_notes: list[str] = field(default_factory=list)
    defaults: Standings | None = None

    def rows(self) -> list[dict[str, Any]]:
        """A row per contender and experiment, best first in each: names, rank, scores and their intervals."""
        return [_row(board, place, self.metric) for board in self.leaderboards for place in board.places]

    def to_pandas(self) -> pd.DataFrame:
        """What :meth:`rows` gives, as a table."""
        return data_frame(self.rows())

    def __str__(self) -> str:
        lines = []
        for board in self.leaderboards:
            lines.append(str(board.experiment))
            lines += [_line(place, self.metric) for place in board.places]
        return "\n".join([*lines, *self.notes, *self.test_notes, *self.doubt_notes])

    def _repr_html_(self) -> str:
        boards = "".join(_board_html(board, self.metric) for board in self.leaderboards)
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in self._all_notes())
        return boards + (f"<ul>{notes}</ul>" if notes else "")

    def _all_notes(self) -> list[str]:
        return [*self.notes, *self.test_notes, *self.doubt_notes]

    @property
    def outcomes(self) -> list[Outcome]:
        """Every run, baseline and published figure behind it."""
        places = [place for board in self.leaderboards for place in board.places]
        return [outcome for place in places for outcome in place.outcomes]

    def place(self, experiment: Experiment, contender: str) -> Place | None:
        """One line of one leaderboard."""
        for board in self.leaderboards:
            if board.experiment == experiment:
                for place in board.places:
                    if place.contender == contender:
                        return place
        return None


def reverse(comparison: Comparison) -> Comparison:
    """The same comparison, seen from the second contender."""
    verdicts: dict[Verdict, Verdict] = {"win": "loss", "tie": "tie", "loss": "win"}
    return Comparison(
        first=comparison.second,
        second=comparison.first,
        difference=-comparison.difference,
        low=-comparison.high,
        high=-comparison.low,
        p_value=comparison.p_value,
        p_holm=comparison.p_holm,
        verdict=verdicts[comparison.verdict],
    )


def _row(board: Leaderboard, place: Place, metric: str) -> dict[str, Any]:
    experiment = board.experiment
    interval = place.interval
    return {
        "dataset": experiment.dataset,
        "network": experiment.network,
        "embedding_dim": experiment.embedding_dim,
        "protocol": experiment.protocol,
        "detail": experiment.detail,
        "contender": place.contender,
        "kind": place.kind,
        "rank": place.rank,
        "seeds": place.seeds,
        **place.scores,
        f"{metric}_low": None if interval is None else interval.low,
        f"{metric}_high": None if interval is None else interval.high,
        f"{metric}_deviation": place.spread.get(metric),
    }


def _line(place: Place, metric: str) -> str:
    rank = "" if place.rank is None else f"{place.rank:g}"
    spread = f" ± {100 * place.spread[metric]:.2f} over {place.seeds} seeds" if metric in place.spread else ""
    return f"  {rank:>4}  {place.contender}  {100 * place.scores[metric]:.2f} %{spread}"


def _board_html(board: Leaderboard, metric: str) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in ("", "contender", metric, "interval", "seeds"))
    body = "".join(_place_html(place, metric) for place in board.places)
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in board.notes)
    return (
        f"<table><caption>{html.escape(str(board.experiment))}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table>" + (f"<ul>{notes}</ul>" if notes else "")
    )


def _place_html(place: Place, metric: str) -> str:
    interval = place.interval
    cells = (
        "" if place.rank is None else f"{place.rank:g}",
        place.contender,
        f"{100 * place.scores[metric]:.2f} %",
        "" if interval is None else f"{100 * interval.low:.1f} to {100 * interval.high:.1f}",
        str(place.seeds),
    )
    return "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>"
