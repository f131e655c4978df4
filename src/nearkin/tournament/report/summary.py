"""The report in words, from the statistics and nothing else: who leads, and what cannot be said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from nearkin.protocols import chooses_on_test
from nearkin.tournament.doubt_notes import (
    effects_on,
    power_notes,
    ranks_note,
    stability_note,
    tuning_notes,
)
from nearkin.tournament.outcomes import PAIRS_METRIC
from nearkin.tournament.report.wording import (
    count,
    experiment_name,
    labelled,
    listed,
    p_phrase,
    percent,
    protocol_sentence,
    score_name,
    signed,
)
from nearkin.tournament.standings import Comparison, Leaderboard, Place, Standings


@dataclass(frozen=True)
class Summary:
    """A headline, the sentences that belong to it, and what must be known before believing them.

    Attributes:
        headline: Who leads, in a line.
        paragraphs: What else the statistics say.
        warnings: What must be known first.
        answers: Short questions of a reader with their answers: how sure, and what tuning changed.
    """

    headline: str
    paragraphs: list[str]
    warnings: list[str]
    answers: list[tuple[str, str]] = field(default_factory=list)


def summarise(standings: Standings) -> Summary:
    """Say in words what the standings hold."""
    if len(standings.leaderboards) > 1 and not standings.ranking.rows:
        headline, paragraphs = _no_common_loss(standings.leaderboards)
    elif len(standings.ranking.experiments) > 1:
        headline, paragraphs = _over_experiments(standings)
    else:
        headline, paragraphs = _one_experiment(standings.leaderboards[0], standings.metric)
    paragraphs += [_seeds(standings), _baselines(standings), *_protocols(standings)]
    return Summary(headline, [text for text in paragraphs if text], _warnings(standings), _answers(standings))


def _answers(standings: Standings) -> list[tuple[str, str]]:
    """How sure the ranking is, what tuning changed, and what it would take to be surer."""
    doubts = standings.doubts
    found = doubts.boards[0] if doubts is not None and len(standings.leaderboards) == 1 else None
    answers = []
    if found is not None:
        answers.append(("How sure", f"{_first_place(standings)}{stability_note(found)}"))
    elif doubts is not None and (note := ranks_note(doubts)):
        answers.append(("How sure", note))
    gains = [
        f"{f'{board.experiment.dataset}: ' if len(standings.leaderboards) > 1 else ''}{note}"
        for board in standings.leaderboards
        for note in tuning_notes(effects_on(standings, board))
    ]
    if gains:
        answers.append(("What tuning changed", " ".join(gains)))
    needed = [] if found is None else power_notes(found)[:1]
    answers += [("To be surer", note) for note in needed]
    return answers


def _first_place(standings: Standings) -> str:
    """How often the leader is first, and where it may rank."""
    assert standings.doubts is not None
    if not standings.doubts.ranks:
        return ""
    name, rank = next(iter(standings.doubts.ranks.items()))
    where = f"between {rank.low:g} and {rank.high:g}" if rank.low < rank.high else f"{rank.low:g}"
    return f"{name} is first in {rank.first:.0%} of draws of classes and seeds; its rank is {where}. "


def _ranked(board: Leaderboard) -> list[Place]:
    """The lines that compete, best first."""
    return [place for place in board.places if place.kind != "baseline"]


def _one_experiment(board: Leaderboard, metric: str) -> tuple[str, list[str]]:
    places = _ranked(board)
    if not places:
        return "Only baselines so far.", []
    leader, rest = places[0], places[1:]
    where = experiment_name(board.experiment)
    score = _score(leader, metric)
    if not rest:
        return f"{leader.contender} ran alone.", [f"It reached {score} on {where}: nothing to compare with."]
    opening = f"On {where}, {leader.contender} is first of {count(len(places), 'contender')}: {score}."
    found = [board.comparison(leader.contender, place.contender) for place in rest]
    compared = [one for one in found if one is not None]
    if len(compared) < len(rest):
        lead = leader.scores[metric] - rest[0].scores[metric]
        why = (
            "ROC AUC is of all pairs together, so no test over queries tells whether other pairs would agree."
            if metric == PAIRS_METRIC
            else "The scores of single queries were not kept for all, so no test tells whether other test "
            "classes would agree."
        )
        return (
            f"{leader.contender} is ahead; whether by more than chance cannot be said.",
            [f"{opening} It is {percent(lead)} points ahead of {rest[0].contender}. {why}"],
        )
    tied = [one.second for one in compared if one.verdict == "tie"]
    return _headline(leader.contender, tied, len(rest)), [f"{opening} {_lead(compared[0], tied)}"]


def _score(place: Place, metric: str) -> str:
    score = f"{score_name(metric)} {percent(place.scores[metric])} %"
    interval = place.interval
    if interval is None:
        return score
    ends = f"{percent(interval.low)} to {percent(interval.high)}"
    return f"{score} ({interval.confidence:.0%} interval over test classes: {ends})"


def _headline(leader: str, tied: list[str], others: int) -> str:
    if not tied:
        return f"{leader} leads, by more than chance among the test classes."
    if len(tied) == others:
        return f"{leader} is ahead, but nothing here tells it from any other."
    return f"{leader} is ahead, but cannot be told from {listed(tied, 2)}."


def _lead(over_second: Comparison, tied: list[str]) -> str:
    sentence = (
        f"Query by query it stands {signed(over_second.difference)} points from {over_second.second} "
        f"(interval {signed(over_second.low)} to {signed(over_second.high)}; {p_phrase(over_second.p_holm)} "
        "after Holm's correction for all pairs)."
    )
    if not tied:
        return f"{sentence} The same test separates it from everybody further down."
    return f"{sentence} These test classes are too few, or too alike, to tell it from {listed(tied)}."


def _over_experiments(standings: Standings) -> tuple[str, list[str]]:
    rows, number = standings.ranking.rows, len(standings.ranking.experiments)
    leader, second = rows[0], rows[1] if len(rows) > 1 else None
    firsts = sum(rank == 1 for rank in leader.ranks.values())
    level = [row.contender for row in rows if row.average == leader.average]
    alone = len(level) == 1
    best = f"{listed(level)} {'has' if alone else 'share'} the best average rank"
    first = f"{', ' if alone else f'; {leader.contender} is '}first in {firsts} of {number}"
    sentences = [
        f"Over {count(number, 'experiment')}, {best} of {count(len(rows), 'contender')}: "
        f"{leader.average:.2f}{first}."
    ]
    record = None if second is None else standings.records.get((leader.contender, second.contender))
    if second is not None and record is not None:
        sentences.append(
            f"Against {second.contender} it won {record.wins}, tied {record.ties} and lost "
            f"{record.losses} of them by the paired test over test classes."
        )
    tied = _tied_with_leader(standings)
    if tied is None:
        headline = f"{best}; so few experiments prove no more."
    elif not tied:
        headline = f"{leader.contender} leads, and its average rank stands apart."
    else:
        headline = f"{leader.contender} ranks best on average, but cannot be told from {listed(tied, 2)}."
    return headline, [" ".join(sentences), _tests(standings, tied)]


def _no_common_loss(boards: Sequence[Leaderboard]) -> tuple[str, list[str]]:
    compared = [board for board in boards if len(_ranked(board)) > 1]
    if not compared:
        return "No experiment has two losses to compare.", []
    firsts = Counter(_ranked(board)[0].contender for board in compared)
    wins = listed([f"{name} in {number}" for name, number in firsts.most_common()])
    return (
        "No loss took part in all experiments, so nobody leads over them.",
        [f"{len(compared)} of {len(boards)} experiments compare two or more losses. First is {wins}."],
    )


def _tests(standings: Standings, tied: list[str] | None) -> str:
    """What the tests over experiments say, and about what."""
    nemenyi = standings.nemenyi
    sentences = []
    if standings.friedman is not None:
        p = standings.friedman.best_p_value
        found = "differ" if p < standings.alpha else "cannot be told apart"
        sentences.append(f"The losses {found} over the experiments (Friedman's test, {p_phrase(p)}).")
    if nemenyi is None or tied is None:
        sentences.append("There are too few experiments to test single pairs over them.")
    else:
        behind = [row.contender for row in standings.ranking.rows[1:] if row.contender not in tied]
        distance = f"Nemenyi's critical difference of {nemenyi.critical_difference:.2f} ranks from the leader"
        if tied:
            sentences.append(f"Within {distance}: {listed(tied)}.")
        if behind:
            sentences.append(f"{'Beyond it' if tied else f'Beyond {distance}'}: {listed(behind)}.")
    if len({experiment.dataset for experiment in standings.ranking.experiments}) == 1:
        sentences.append(
            "All experiments share one data set: the ranking speaks of networks and sizes on this data, "
            "not of other data."
        )
    return " ".join(sentences)


def _tied_with_leader(standings: Standings) -> list[str] | None:
    """Whom Nemenyi's test cannot tell from the leader; ``None`` if there is no test."""
    if standings.nemenyi is None:
        return None
    leader = standings.ranking.rows[0].contender
    grouped = {name for group in standings.nemenyi.groups if leader in group for name in group}
    return [row.contender for row in standings.ranking.rows[1:] if row.contender in grouped]


def _seeds(standings: Standings) -> str:
    """How far another seed may move a score, as far as the runs know."""
    runs = [place for board in standings.leaderboards for place in board.places if place.kind == "run"]
    if not runs:
        return ""
    fewest, most = min(place.seeds for place in runs), max(place.seeds for place in runs)
    if most == 1:
        return (
            "Every contender was trained once. The tests compare these very networks: how far another seed "
            "would move a score, and whether it would turn the order round, is not known."
        )
    spreads = sorted(place.spread[standings.metric] for place in runs if standings.metric in place.spread)
    ends = listed([percent(spread) for spread in dict.fromkeys((spreads[0], spreads[-1]))])
    seeds = f"{fewest} seeds" if fewest == most else f"{fewest} to {most} seeds"
    sentence = (
        f"Contenders were trained with {seeds} each; the standard deviation over seeds is "
        f"{'between ' if spreads[0] != spreads[-1] else ''}{ends} points."
    )
    return sentence + (" Deviations of so few seeds are rough themselves." if fewest < 5 else "")


def _baselines(standings: Standings) -> str:
    """Which losses learn nothing that a baseline does not have."""
    metric = standings.metric
    tops: list[Place] = []
    lines = 0
    behind: list[str] = []
    for board in standings.leaderboards:
        baselines = [place for place in board.places if place.kind == "baseline"]
        if baselines:
            top = max(baselines, key=lambda place: place.scores[metric])
            tops.append(top)
            lines += len(_ranked(board))
            behind += [one.contender for one in _ranked(board) if one.scores[metric] <= top.scores[metric]]
    if not lines:
        return ""
    scores = dict.fromkeys(percent(value) for value in sorted(top.scores[metric] for top in tops))
    names = listed(list(dict.fromkeys(top.contender for top in tops)))
    ends = " to ".join(dict.fromkeys((next(iter(scores)), next(reversed(scores)))))
    strongest = f"The strongest baseline is {names} with {ends} %"
    strongest += ", by experiment." if len(tops) > 1 else "."
    if not behind:
        return f"{strongest} Every loss is above it, everywhere."
    where = " in one experiment or more" if len(tops) > 1 else ""
    named = listed(list(dict.fromkeys(behind)))
    return f"{strongest} Not above it{where}: {named} ({len(behind)} of {lines} lines)."


def _protocols(standings: Standings) -> list[str]:
    names = dict.fromkeys(board.experiment.protocol for board in standings.leaderboards)
    return [f"Protocol {name}: {protocol_sentence(name)}." for name in names if not chooses_on_test(name)]


def _warnings(standings: Standings) -> list[str]:
    """What must not be overlooked, the gravest first."""
    warnings = []
    optimistic = [b for b in standings.leaderboards if chooses_on_test(b.experiment.protocol)]
    protocols = tuple(dict.fromkeys(b.experiment.protocol for b in optimistic))
    if optimistic:
        which = (
            "all experiments"
            if len(optimistic) == len(standings.leaderboards)
            else (f"{len(optimistic)} of {count(len(standings.leaderboards), 'experiment')}")
        )
        warnings.append(
            f"In {which} the epoch was chosen on the test classes ({listed(protocols)}). Such scores are "
            "higher than an honest test would give, and must not be set beside scores of another protocol."
        )
    warnings += [labelled(note) for note in standings.notes if not note.startswith(protocols)]
    if standings.skipped:
        warnings.append(
            f"{count(len(standings.skipped), 'directory', 'directories')} could not be compared: see Runs."
        )
    return warnings
