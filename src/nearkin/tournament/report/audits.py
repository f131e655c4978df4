"""Audited runs in the report: what choosing on test would have claimed, and the thesis's four questions."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from nearkin.tournament.audits import AuditedBoard, AuditedContender, audited_boards
from nearkin.tournament.report.tables import Cell, Column, Row, Table
from nearkin.tournament.report.wording import (
    Links,
    count,
    experiment_name,
    listed,
    percent,
    score_name,
    signed,
)
from nearkin.tournament.standings import Standings
from nearkin.tournament.sweeps import sweeps


@dataclass(frozen=True)
class AuditSection:
    """What the report says about audited runs."""

    tables: list[Table]
    answers: list[tuple[str, str]]


def audit_section(standings: Standings, links: Links) -> AuditSection | None:
    """A table per experiment, and the thesis's four questions (section 3.5.3); ``None`` without audits."""
    boards = audited_boards(standings)
    if not boards:
        return None
    tables = [_table(number, board, standings.metric, links) for number, board in enumerate(boards, 1)]
    return AuditSection(tables, _answers(boards, standings))


def _table(number: int, audited: AuditedBoard, metric: str, links: Links) -> Table:
    name = score_name(metric)
    columns = [
        Column("loss"),
        Column("networks", numeric=True),
        Column(f"as selected, {name} %", numeric=True),
        Column(f"best on test, {name} %", numeric=True),
        Column("gap, points", numeric=True, low_is_good=True),
        Column("interval of the gap", hint="of the mean over networks, Student's t"),
        Column("epoch selected"),
        Column("epoch best on test"),
        Column("peak, points", numeric=True, hint="of the best epoch above its neighbours"),
        Column("unrest, points", numeric=True, hint="deviation over the second half of the epochs"),
    ]
    targets = {place.contender: links.place(place) for place in audited.board.places}
    rows = [_row(one, targets.get(one.contender)) for one in audited.contenders]
    caption = f"What choosing on test would have claimed, {experiment_name(audited.board.experiment)}"
    return Table(f"audit-{number}", caption, columns, rows)


def _row(one: AuditedContender, target: str | None) -> Row:
    interval = one.gap.interval
    return Row(
        [
            Cell(one.contender, target=target),
            Cell(str(len(one.runs)), len(one.runs)),
            Cell(percent(one.honest, 2), 100 * one.honest),
            Cell(percent(one.claimed, 2), 100 * one.claimed),
            _points(one.gap.value),
            Cell("" if interval is None else f"{signed(interval[0])} to {signed(interval[1])}"),
            Cell(", ".join(str(run.chosen[0]) for run in one.runs)),
            Cell(", ".join(str(run.best[0]) for run in one.runs)),
            _points(one.peak),
            _points(one.unrest),
        ]
    )


def _points(value: float) -> Cell:
    return Cell(f"{100 * value:.2f}", 100 * value)


def _answers(boards: Sequence[AuditedBoard], standings: Standings) -> list[tuple[str, str]]:
    """The thesis's questions in its words, and what these runs say."""
    everybody = [one for board in boards for one in board.contenders]
    networks = [run for one in everybody for run in one.runs]
    unrest, peak, last, gap = (
        100 * statistics.fmean(values)
        for values in (
            [run.unrest for run in networks],
            [run.peak for run in networks],
            [run.best[1] - run.last for run in networks],
            [run.gap for run in networks],
        )
    )
    restless = max(everybody, key=lambda one: one.unrest)
    widest = max(everybody, key=lambda one: one.gap.value)
    over = f"over {count(len(networks), 'network')}"
    return [
        (
            "How difficult or how stable is the training process without a validation set?",
            f"From epoch to epoch the test score moves by {unrest:.2f} points (standard deviation over the "
            f"second half of training, mean {over}); most with {restless.contender}, "
            f"{100 * restless.unrest:.2f}.",
        ),
        (
            "Is there a true convergence, or is the best accuracy on test just a random peak?",
            f"The best epoch on test stands {peak:.2f} points above its neighbours and {last:.2f} above the "
            "last epoch.",
        ),
        (
            "Does this setup give models that can truly generalise well?",
            f"Choosing on test would have claimed {gap:.2f} points more than the selection without it finds "
            f"in the same runs; most with {widest.contender}, {100 * widest.gap.value:.2f}. {_order(boards)}",
        ),
        ("Are the hyperparameters found using this setup the optimal?", _hyperparameters(standings)),
    ]


def _order(boards: Sequence[AuditedBoard]) -> str:
    """Whether losses would have been ranked otherwise."""
    several = [board for board in boards if len(board.contenders) > 1]
    changed = [board for board in several if board.order_as_selected != board.order_as_claimed]
    if not several:
        return ""
    if not changed:
        return "The order of the losses would have been the same."
    moved = [
        name
        for board in changed
        for name, other in zip(board.order_as_selected, board.order_as_claimed, strict=True)
        if name != other
    ]
    where = "" if len(several) == 1 else f" in {len(changed)} of {len(several)} experiments"
    names = listed(list(dict.fromkeys(moved)))
    return f"The order of the losses would have been another one{where}: {names} moved."


def _hyperparameters(standings: Standings) -> str:
    """Whether validation and test prefer the same values of what was swept."""
    found = [
        one for one in sweeps(standings.outcomes, standings.metric) if one.best_on_validation is not None
    ]
    comparable = [one for one in found if one.validation_compares]
    if not comparable:
        return (
            "These runs do not say: none of their settings was swept with validation classes that compare. "
            "Train a setting's values (nearkin tune, or a plan), all else equal."
        )
    told = []
    for one in comparable:
        assert one.best_on_validation is not None
        chosen, tested = one.best_on_validation.value, one.best_on_test.value
        told.append(
            f"{one.key}: validation and test both prefer {chosen}"
            if chosen == tested
            else f"{one.key}: validation prefers {chosen}, test {tested}"
        )
    agreeing = sum("both prefer" in one for one in told)
    return f"Validation and test agree on {agreeing} of {len(told)} swept settings: {'; '.join(told)}."
