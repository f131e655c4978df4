"""Doubts in sentences: what a terminal prints and a report's first screen says."""

from __future__ import annotations

from collections.abc import Sequence

from nearkin.tournament.doubts import BoardDoubts, Doubts, PairDoubt
from nearkin.tournament.standings import Leaderboard, Standings
from nearkin.tournament.tuning_effects import (
    TuningEffect,
    board_beside,
    effects,
    order_agreement,
    rank_share,
    settings_warnings,
)

STABLE = 0.8
"""Kendall's τ of two halves, from which on an order is called stable."""

_SHOWN_PAIRS = 2
_SHOWN_GROUPS = 3
_MOST_NAMES = 6


def doubt_notes(standings: Standings) -> list[str]:
    """How sure the standings are, what tuning changed, and what it would take to be surer."""
    doubts = standings.doubts
    several = len(standings.leaderboards) > 1
    notes: list[str] = []
    for number, board in enumerate(standings.leaderboards):
        found = None if doubts is None else doubts.boards[number]
        own = [
            *([] if found is None else [stability_note(found), *group_notes(found)]),
            *([] if found is None else power_notes(found)),
            *tuning_notes(effects_on(standings, board)),
            *settings_warnings(board),
        ]
        notes += [f"{board.experiment}: {note}" if several else note for note in own if note]
    if several and doubts is not None and (note := ranks_note(doubts)):
        notes.insert(0, note)
    return notes


def effects_on(standings: Standings, board: Leaderboard) -> list[TuningEffect]:
    """What tuning changed in an experiment."""
    others = [] if standings.defaults is None else standings.defaults.leaderboards
    return effects(board, board_beside(board, others), standings.metric)


def stability_note(found: BoardDoubts) -> str:
    """Whether two halves of what was measured agree."""
    if found.stability is None:
        return ""
    halves = "halves of the seeds and classes" if found.seeds > 1 else "halves of the test classes"
    verdict = (
        "the order is stable"
        if found.stability >= STABLE
        else "believe the groups that cannot be told apart, not the order inside them"
    )
    return f"Two {halves} order the losses with Kendall's τ = {found.stability:.2f}: {verdict}."


def group_notes(found: BoardDoubts) -> list[str]:
    """Who cannot be told from whom."""
    if not found.groups:
        return ["Every loss is told from every other, over seeds and classes."]
    groups = "; ".join(named(group) for group in found.groups[:_SHOWN_GROUPS])
    more = (
        f"; and {len(found.groups) - _SHOWN_GROUPS} more groups" if len(found.groups) > _SHOWN_GROUPS else ""
    )
    without = " (how far other seeds would move them is not known)" if found.seeds < 2 else ""
    return [f"Cannot be told apart{without}: {groups}{more}."]


def power_notes(found: BoardDoubts) -> list[str]:
    """What it would take to tell the leader from those behind it that it cannot be told from."""
    leader = next(iter(found.spreads))
    near = [one for one in found.pairs if one.first == leader and one.p_holm >= 0.05]
    return [power_sentence(one, found) for one in near[:_SHOWN_PAIRS]]


def power_sentence(pair: PairDoubt, found: BoardDoubts) -> str:
    """How many seeds or classes a pair needs."""
    gap = f"{100 * abs(pair.difference):.1f} points"
    ways = []
    if pair.seeds is not None:
        ways.append(f"{pair.seeds:,} seeds with these {found.classes:,} test classes")
    if pair.classes is not None:
        with_seeds = "this seed" if found.seeds == 1 else f"these {found.seeds} seeds"
        ways.append(f"{pair.classes:,} test classes with {with_seeds}")
    needed = ", or ".join(ways) or "more seeds and more test classes together"
    unknown = "; one seed does not say how far seeds spread" if found.seeds < 2 else ""
    return (
        f"To tell {pair.first} from {pair.second} ({gap} apart; 5 % level, 80 % power, this pair alone): "
        f"{needed}{unknown}."
    )


def tuning_notes(found: Sequence[TuningEffect]) -> list[str]:
    """What tuning changed."""
    both = [one for one in found if one.default is not None]
    if not both:
        return []
    gains = sorted(both, key=lambda one: (one.default or 0.0) - one.tuned)
    most = gains[0]
    mean = sum(one.tuned - (one.default or 0.0) for one in both) / len(both)
    note = (
        f"Tuning changed scores by {100 * mean:+.1f} points on average, most for {most.contender} "
        f"({100 * (most.tuned - (most.default or 0.0)):+.1f})"
    )
    moved, tau = rank_share(both), order_agreement(both)
    if moved is not None and tau is not None:
        note += f", and moved a loss by {moved:.1f} places; Kendall's τ of both orders is {tau:.2f}"
    return [f"{note}."]


def ranks_note(doubts: Doubts) -> str:
    """Where the leader's average rank may lie."""
    if not doubts.ranks:
        return ""
    name, first = next(iter(doubts.ranks.items()))
    return (
        f"{name}'s average rank is {first.rank:.1f} ({1 - doubts.alpha:.0%} interval {first.low:.1f} to "
        f"{first.high:.1f} over experiments, classes and seeds); it is first in {first.first:.0%} of draws."
    )


def named(group: Sequence[str]) -> str:
    """A group in words; a long one is cut.

    >>> named(["a", "b", "c"])
    'a, b and c'
    """
    if len(group) > _MOST_NAMES:
        return f"{', '.join(group[: _MOST_NAMES - 1])} and {len(group) - _MOST_NAMES + 1} more"
    return f"{', '.join(group[:-1])} and {group[-1]}"
