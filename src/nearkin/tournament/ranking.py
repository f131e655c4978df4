"""From outcomes to standings: who is ahead, by how much, and whether it means anything."""

from __future__ import annotations

import statistics as plain_statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import stats

from nearkin.protocols import chooses_on_test
from nearkin.registry import nearest_name
from nearkin.tournament import statistics
from nearkin.tournament.comparisons import class_interval, compare_all, hits_of
from nearkin.tournament.doubt_notes import doubt_notes
from nearkin.tournament.doubts import doubts_about
from nearkin.tournament.grouping import BoardOutcomes, group_outcomes
from nearkin.tournament.outcomes import PAIRS_METRIC, Experiment, Outcome, Skipped
from nearkin.tournament.published import AS_PUBLISHED, figures_for, notes_of, published, slips_in_table_11
from nearkin.tournament.standings import (
    FriedmanTest,
    Leaderboard,
    NemenyiTest,
    OverallRanking,
    PairTest,
    Place,
    PublishedFigure,
    RankRow,
    Record,
    Standings,
    reverse,
)

_SHOWN_TERMS = 4
_SHOWN_EXPERIMENTS = 4
_UNTRAINED = ("raw_pixels", "untrained_network", "frozen_features")


def rank_outcomes(
    outcomes: Iterable[Outcome],
    *,
    skipped: Sequence[Skipped] = (),
    metric: str = "recall_at_1",
    alpha: float = 0.05,
    pool: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Standings:
    """Rank runs, baselines and published figures: per experiment, and over all of them.

    Args:
        outcomes: The outcomes from :func:`~nearkin.tournament.outcomes.read_outcomes` or
            :func:`~nearkin.tournament.published.published`.
        skipped: What could not be read; passed on.
        metric: The score that ranks, higher is better.
        alpha: Level of all tests.
        pool: Settings such as ``sampler.name``, or whole tables, to average over although they differ.
        notes: Put before those that are found here.

    Raises:
        ValueError: There is nothing to rank, an outcome lacks the metric, or no run has what to pool.

    >>> from nearkin.tournament.published import published
    >>> winner = rank_outcomes(published("thesis")).ranking.rows[0]
    >>> winner.contender, winner.total, winner.average
    ('proxy_anchor', 12.0, 1.0)
    """
    everything = list(outcomes)
    check_metric(metric, everything)
    if not everything:
        raise ValueError("there is no finished run to rank")
    ranked, beside = _by_settings(everything)
    boards = [_leaderboard(board, metric, alpha) for board in group_outcomes(ranked, pool=pool)]
    ranking = pooled_ranking(boards, metric)
    friedman, nemenyi, pairs, test_notes = _tests(ranking, boards, metric, alpha)
    standings = Standings(
        metric=metric,
        alpha=alpha,
        leaderboards=boards,
        ranking=ranking,
        friedman=friedman,
        nemenyi=nemenyi,
        pair_tests=pairs,
        records=_records(boards),
        notes=[*notes, *_ranking_notes(ranking, boards)],
        test_notes=test_notes,
        skipped=list(skipped),
        doubts=doubts_about(boards, metric, alpha),
        defaults=rank_outcomes(beside, metric=metric, alpha=alpha, pool=pool) if beside else None,
    )
    return replace(standings, doubt_notes=doubt_notes(standings))


def _by_settings(outcomes: Sequence[Outcome]) -> tuple[list[Outcome], list[Outcome]]:
    """What is ranked, and the runs with default settings that stand beside those that were tuned."""
    if not any(one.variant == "tuned" for one in outcomes):
        return list(outcomes), []
    tuned = {one.loss for one in outcomes if one.variant == "tuned"}
    beside = [one for one in outcomes if one.variant == "default" and one.loss in tuned]
    return [one for one in outcomes if one.variant != "default" or one.loss not in tuned], beside


def rank_published(name: str, *, metric: str = "recall_at_1", alpha: float = 0.05) -> Standings:
    """Rank published results; with those of the thesis's Table 11, say where it prints something else.

    >>> standings = rank_published("thesis")
    >>> [row.contender for row in standings.ranking.rows[:3]]
    ['proxy_anchor', 'soft_triple', 'multi_similarity']
    """
    everything = published(name)
    outcomes = [outcome for outcome in everything if metric in outcome.scores]
    if not outcomes:
        raise ValueError(f"no figure of {name} is a {metric}: try recall_at_1")
    missing = len(everything) - len(outcomes)
    notes = [f"{missing} of {len(everything)} figures have no {metric} and are left out."] if missing else []
    notes += notes_of(name)
    standings = rank_outcomes(outcomes, metric=metric, alpha=alpha, notes=notes)
    if name != "thesis" or metric != "recall_at_1":
        return standings
    return replace(standings, notes=[*slips_in_table_11(standings.ranking.rows), *standings.notes])


def check_metric(metric: str, outcomes: Iterable[Outcome]) -> None:
    """Say at once that some outcome has no such score.

    Raises:
        ValueError: It names the outcome, and the score that was probably meant.
    """
    for outcome in outcomes:
        if metric not in outcome.scores:
            hint = nearest_name(metric, list(outcome.scores))
            hint = hint.replace("known: ", "it has ") if hint.startswith("known") else hint
            if not outcome.scores:
                hint = f"no score of {outcome.contender} is there at all"
            raise ValueError(f"{outcome.source} has no {metric}: {hint}")


def _leaderboard(board: BoardOutcomes, metric: str, alpha: float) -> Leaderboard:
    groups = board.rows
    hits = {name: found for name, group in groups.items() if (found := hits_of(group, metric)) is not None}
    means = {name: _mean_scores(group) for name, group in groups.items()}
    ranked = statistics.ranks(
        {name: means[name][metric] for name, group in groups.items() if group[0].kind != "baseline"}
    )
    places = [
        Place(
            contender=name,
            kind=group[0].kind,
            rank=ranked.get(name),
            scores=means[name],
            spread=_spread(group),
            interval=class_interval(hits[name], confidence=1 - alpha) if name in hits else None,
            seeds_interval=_seeds_interval([one.scores[metric] for one in group], alpha),
            outcomes=group,
            published=_published_beside(group[0]),
        )
        for name, group in groups.items()
    ]
    places.sort(key=lambda place: (-place.scores[metric], place.contender))
    ordered = {place.contender: hits[place.contender] for place in places if place.contender in hits}
    notes = [*board.notes, *_board_notes(places, len(hits), metric)]
    return Leaderboard(board.experiment, places, compare_all(ordered, alpha=alpha), notes)


def _published_beside(outcome: Outcome) -> list[PublishedFigure]:
    """What others reported for the configuration of a run, whatever its hyperparameters."""
    if outcome.kind != "run":
        return []
    return figures_for(outcome.experiment, outcome.loss or outcome.contender)


def _mean_scores(group: Sequence[Outcome]) -> dict[str, float]:
    common = [name for name in group[0].scores if all(name in one.scores for one in group)]
    return {name: plain_statistics.fmean(one.scores[name] for one in group) for name in common}


def _spread(group: Sequence[Outcome]) -> dict[str, float]:
    if len(group) < 2:
        return {}
    return {name: plain_statistics.stdev(one.scores[name] for one in group) for name in _mean_scores(group)}


def _seeds_interval(values: Sequence[float], alpha: float) -> tuple[float, float] | None:
    """Student's t interval of the mean over seeds."""
    if len(values) < 2:
        return None
    mean = plain_statistics.fmean(values)
    half = float(stats.t.ppf(1 - alpha / 2, len(values) - 1)) * plain_statistics.stdev(values)
    half /= len(values) ** 0.5
    return mean - half, mean + half


def _board_notes(places: Sequence[Place], with_hits: int, metric: str) -> list[str]:
    notes = []
    runs = [outcome for place in places if place.kind == "run" for outcome in place.outcomes]
    unequal = _unequal_terms(runs)
    for key, values in list(unequal.items())[:_SHOWN_TERMS]:
        told = "; ".join(f"{value} ({', '.join(sorted(names))})" for value, names in values.items())
        notes.append(f"Unequal terms, {key}: {told}.")
    if len(unequal) > _SHOWN_TERMS:
        notes.append(f"Unequal terms in {len(unequal) - _SHOWN_TERMS} more settings.")
    seeds = {place.contender: place.seeds for place in places if place.kind == "run"}
    if len(set(seeds.values())) > 1:
        few, many = min(seeds.values()), max(seeds.values())
        notes.append(f"Between {few} and {many} seeds: losses with fewer have less certain means.")
    elif set(seeds.values()) == {1} and metric != PAIRS_METRIC:
        notes.append("One seed each: the intervals tell classes apart from chance, not seeds.")
    notes += _beaten_by_baselines(places, metric)
    if metric == PAIRS_METRIC:
        one = " One seed each: nothing tells chance from a difference." if set(seeds.values()) == {1} else ""
        notes.append(
            "ROC AUC is of all pairs together, so that there is no verdict over single queries: several "
            f"seeds tell how sure it is.{one}"
        )
    elif runs and with_hits < len(places):
        missing = len(places) - with_hits
        notes.append(f"{missing} of {len(places)} kept no queries, so they have no interval and no verdict.")
    return notes


def _beaten_by_baselines(places: Sequence[Place], metric: str) -> list[str]:
    """The losses that score below what needs no training, not those that score the same."""
    notes = []
    for place in places:
        if place.contender not in _UNTRAINED:
            continue
        runs = [other for other in places if other.kind == "run"]
        below = [other.contender for other in runs if other.scores[metric] < place.scores[metric]]
        if below:
            notes.append(f"Below {place.contender}, to be looked into: {_and(below)}.")
    return notes


def _unequal_terms(runs: Sequence[Outcome]) -> dict[str, dict[str, set[str]]]:
    """Every setting in which the runs of an experiment differ, with its values and who ran with each."""
    terms = [(run.contender, _terms_to_be_equal(run)) for run in runs]
    keys = sorted({key for _, values in terms for key in values})
    found: dict[str, dict[str, set[str]]] = {}
    for key in keys:
        by_value: dict[str, set[str]] = defaultdict(set)
        for contender, values in terms:
            by_value[str(values.get(key, "not set"))].add(contender)
        if len(by_value) > 1:
            found[key] = dict(by_value)
    return found


def _terms_to_be_equal(run: Outcome) -> dict[str, Any]:
    """What a fair comparison of losses has in common: everything but the losses and their batches."""
    if run.terms is None:
        return {}
    searched = set() if run.found is None or run.variant != "tuned" else set(run.found.space)
    return {
        key: value
        for key, value in run.terms.of_factor("contender").items()
        if (key.partition(".")[0] not in {"loss", "sampler", "imports"} or key == "sampler.batch_size")
        and key not in searched
    }


def pooled_ranking(boards: Sequence[Leaderboard], metric: str) -> OverallRanking:
    """Total, average and standard deviation of ranks, as in Table 11 of the thesis.

    Experiments count that rank at least two contenders; ranked are the contenders that took part in all of
    these, so that every sum is over the same experiments.
    """
    tables = {
        board.experiment: {
            place.contender: place.scores[metric] for place in board.places if place.rank is not None
        }
        for board in boards
    }
    tables = {experiment: scores for experiment, scores in tables.items() if len(scores) > 1}
    takes_part: dict[str, int] = defaultdict(int)
    for scores in tables.values():
        for name in scores:
            takes_part[name] += 1
    everywhere = [name for name, count in takes_part.items() if count == len(tables)]
    by_experiment = {
        experiment: statistics.ranks({name: scores[name] for name in everywhere})
        for experiment, scores in tables.items()
    }
    rows = [
        _rank_row(name, {experiment: ranks[name] for experiment, ranks in by_experiment.items()})
        for name in everywhere
    ]
    left_out = {name: count for name, count in takes_part.items() if count < len(tables)}
    return OverallRanking(sorted(rows, key=lambda row: (row.total, row.contender)), list(tables), left_out)


def _rank_row(contender: str, ranks: Mapping[Experiment, float]) -> RankRow:
    values = list(ranks.values())
    return RankRow(
        contender=contender,
        total=sum(values),
        average=plain_statistics.fmean(values),
        deviation=plain_statistics.stdev(values) if len(values) > 1 else 0.0,
        ranks=dict(ranks),
    )


def _tests(
    ranking: OverallRanking, boards: Sequence[Leaderboard], metric: str, alpha: float
) -> tuple[FriedmanTest | None, NemenyiTest | None, list[PairTest], list[str]]:
    """The tests over experiments, and what each says, or why it says nothing."""
    N, k = len(ranking.experiments), len(ranking.rows)
    if k < 2 or N < 2:
        what = (
            f"{N} experiment{'s' * (N != 1)}" if k >= 2 else f"{k} loss{'es' * (k != 1)} in all experiments"
        )
        return None, None, [], [f"No test over experiments: {what} cannot show what is consistent."]
    matrix = np.array([[row.ranks[one] for row in ranking.rows] for one in ranking.experiments])
    friedman = statistics.friedman(matrix)
    notes = [_friedman_note(friedman, alpha)]
    data_sets = {experiment.dataset for experiment in ranking.experiments}
    if len(data_sets) < N:
        shared = f"{len(data_sets)} data set{'s' * (len(data_sets) > 1)}"
        notes.append(
            f"The {N} experiments share {shared}, and the tests take them for independent: they speak of "
            "networks and sizes on this data, not of new data."
        )
    nemenyi, note = _nemenyi(ranking, alpha)
    notes.append(note)
    smallest = statistics.smallest_pair_p_value(k, N)
    if smallest >= alpha:
        notes.append(
            f"No Wilcoxon tests: with {N} experiments and {k} losses no corrected p-value can be below "
            f"{smallest:.2g}."
        )
        return friedman, nemenyi, [], notes
    scores = {row.contender: _scores_of(row, boards, metric) for row in ranking.rows}
    pairs = statistics.pair_tests(scores)
    found = [pair for pair in pairs if pair.p_holm < alpha]
    notes.append(
        f"Wilcoxon's signed-rank test with Holm's correction tells {len(found)} of {len(pairs)} pairs apart."
    )
    return friedman, nemenyi, pairs, notes


def _friedman_note(test: FriedmanTest, alpha: float) -> str:
    verdict = "the losses differ" if test.best_p_value < alpha else "no difference between them is shown"
    found = f"Friedman over {test.experiments} experiments and {test.contenders} losses: "
    found += f"χ² = {test.statistic:.1f}, "
    if test.permutation_p_value is not None:
        return found + f"p = {_p(test.permutation_p_value)} (by permutation, with so few): {verdict}."
    return found + (
        f"p = {_p(test.p_value)}; Iman and Davenport's F = {test.f_statistic:.1f}, "
        f"p = {_p(test.f_p_value)}: {verdict}."
    )


def _nemenyi(ranking: OverallRanking, alpha: float) -> tuple[NemenyiTest | None, str]:
    N, k = len(ranking.experiments), len(ranking.rows)
    cd = statistics.critical_difference(k, N, alpha=alpha)
    if cd >= k - 1:
        return None, (
            f"No Nemenyi test: with {N} experiments the critical difference of {k} losses is {cd:.2f} ranks, "
            f"and no two can be further apart than {k - 1}."
        )
    test = statistics.nemenyi({row.contender: row.average for row in ranking.rows}, N, alpha=alpha)
    best = ranking.rows[0].contender
    behind = [row.contender for row in ranking.rows[1:] if row.average - ranking.rows[0].average > cd]
    level = [row.contender for row in ranking.rows[1:] if row.contender not in behind]
    near = f"; {_and(level)} cannot be told from it" if level else ""
    return test, (
        f"Nemenyi, critical difference {cd:.2f} ranks: {best} is ahead of {len(behind)} of {k - 1}{near}."
    )


def _scores_of(row: RankRow, boards: Sequence[Leaderboard], metric: str) -> list[float]:
    return [
        place.scores[metric]
        for board in boards
        if board.experiment in row.ranks
        for place in board.places
        if place.contender == row.contender
    ]


def _records(boards: Sequence[Leaderboard]) -> dict[tuple[str, str], Record]:
    """Wins, ties and losses of every ordered pair over the experiments."""
    verdicts: dict[tuple[str, str], list[str]] = defaultdict(list)
    for board in boards:
        for comparison in board.comparisons:
            for seen in (comparison, reverse(comparison)):
                verdicts[seen.first, seen.second].append(seen.verdict)
    return {
        pair: Record(found.count("win"), found.count("tie"), found.count("loss"))
        for pair, found in verdicts.items()
    }


def _ranking_notes(ranking: OverallRanking, boards: Sequence[Leaderboard]) -> list[str]:
    notes = []
    if ranking.left_out:
        told = ", ".join(
            f"{name} ({count} of {len(ranking.experiments)})" for name, count in ranking.left_out.items()
        )
        notes.append(
            f"Not in the ranking over experiments, having missed some: {told}."
            if ranking.rows
            else f"No ranking over experiments, since no loss is in all of them: {told}."
        )
    alone = [board.experiment for board in boards if board.experiment not in ranking.experiments]
    if len(alone) > _SHOWN_EXPERIMENTS:
        notes.append(
            f"{len(alone)} of {len(boards)} experiments have fewer than two losses to rank and do not count."
        )
    else:
        notes += [f"{one} has fewer than two losses to rank and does not count." for one in alone]
    protocols = {board.experiment.protocol for board in boards}
    if AS_PUBLISHED in protocols:
        notes.append(
            "Every paper trained and selected in its own way, and few had validation classes: the ranks "
            "order what was printed, not the losses."
        )
    notes += [
        f"{name} chooses the epoch on the test classes: its scores are higher than a fair selection would "
        "give."
        for name in sorted(protocols)
        if chooses_on_test(name)
    ]
    return notes


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _p(value: float) -> str:
    """A p-value as people write it.

    >>> _p(0.0312), _p(3e-9)
    ('0.031', '3e-09')
    """
    return f"{value:.2g}"
