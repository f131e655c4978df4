"""How sure the ranking is, and what tuning changed, as charts and tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nearkin.tournament.doubt_notes import effects_on, group_notes, power_sentence, stability_note
from nearkin.tournament.doubts import BoardDoubts, RankInterval, rank_intervals, sums_of
from nearkin.tournament.report.charts import Dot, DotChart, DotRow, axis_for
from nearkin.tournament.report.tables import Cell, Column, Row, Table
from nearkin.tournament.report.wording import Links, experiment_name, p_value, percent, score_name, signed
from nearkin.tournament.standings import Leaderboard, Place, Standings
from nearkin.tournament.tuning_effects import TuningEffect, settings_warnings

_BEFORE = 1  # the series of default settings


@dataclass(frozen=True)
class DoubtSection:
    """How sure one leaderboard is."""

    name: str
    table: Table
    pairs: Table | None
    notes: list[str]


@dataclass(frozen=True)
class TuningSection:
    """What tuning changed on one leaderboard."""

    name: str
    chart: DotChart | None
    table: Table
    searches: Table
    notes: list[str]


def doubt_sections(standings: Standings, links: Links) -> list[DoubtSection]:
    """One per leaderboard whose runs kept their queries."""
    if standings.doubts is None:
        return []
    found = zip(standings.leaderboards, standings.doubts.boards, strict=True)
    return [
        _doubts(standings, board, doubts, number, links)
        for number, (board, doubts) in enumerate(found, 1)
        if doubts is not None
    ]


def _doubts(
    standings: Standings, board: Leaderboard, doubts: BoardDoubts, number: int, links: Links
) -> DoubtSection:
    ranks = _ranks_on(standings, board)
    places = {place.contender: place for place in board.places}
    rows = [
        Row(_doubt_cells(places[name], doubts, ranks, links, standings.metric)) for name in doubts.spreads
    ]
    columns = [
        Column("loss"),
        Column(f"{score_name(standings.metric)} %", numeric=True),
        Column("rank", numeric=True, low_is_good=True, hint="interval over test classes and seeds"),
        Column("first", numeric=True, hint="how often it is first when classes and seeds are drawn"),
        Column("± seeds", numeric=True, low_is_good=True, hint="standard deviation of one run, in points"),
        Column(
            "± classes", numeric=True, low_is_good=True, hint="standard error over test classes, in points"
        ),
        Column(
            "± tuning",
            numeric=True,
            low_is_good=True,
            hint="of the best trial if others had been drawn, on validation classes, in points",
        ),
        Column("not told from", hint="over seeds and classes, with Holm's correction for all pairs"),
    ]
    name = experiment_name(board.experiment)
    return DoubtSection(
        name=name,
        table=Table(f"doubts_{number}", f"Where the doubt about {name} comes from, in points", columns, rows),
        pairs=_power(doubts, number),
        notes=[note for note in (stability_note(doubts), *group_notes(doubts)) if note],
    )


def _ranks_on(standings: Standings, board: Leaderboard) -> dict[str, RankInterval]:
    """The intervals of the ranks on one leaderboard: those of all, where there is no other."""
    assert standings.doubts is not None
    if len(standings.leaderboards) == 1:
        return standings.doubts.ranks
    return rank_intervals([sums_of(board, standings.metric)], alpha=standings.alpha)


def _doubt_cells(
    place: Place, doubts: BoardDoubts, ranks: dict[str, RankInterval], links: Links, metric: str
) -> list[Cell]:
    spread, rank = doubts.spreads[place.contender], ranks.get(place.contender)
    level = [
        one.second if one.first == place.contender else one.first
        for one in doubts.pairs
        if place.contender in (one.first, one.second) and one.p_holm >= 0.05
    ]
    return [
        Cell(place.contender, target=links.place(place)),
        Cell(percent(place.scores[metric]), 100 * place.scores[metric]),
        Cell("") if rank is None else Cell(f"{rank.rank:g} ({rank.low:g} to {rank.high:g})", rank.rank),
        Cell("") if rank is None else Cell(f"{rank.first:.0%}", rank.first),
        _points(spread.seeds),
        _points(spread.classes),
        _points(spread.tuning),
        Cell(f"{len(level)} of {len(doubts.spreads) - 1}", len(level), note=", ".join(level)),
    ]


def _points(value: float | None) -> Cell:
    return Cell("") if value is None else Cell(percent(value), 100 * value)


def _power(doubts: BoardDoubts, number: int) -> Table | None:
    """What it takes to tell neighbours apart, and the leader from everybody it is not told from."""
    names = list(doubts.spreads)
    wanted = [(names[i], names[i + 1]) for i in range(len(names) - 1)]
    wanted += [
        (one.first, one.second) for one in doubts.pairs if one.first == names[0] and one.p_holm >= 0.05
    ]
    rows = []
    for first, second in dict.fromkeys(wanted):
        pair = doubts.pair(first, second)
        if pair is None:
            continue
        rows.append(
            Row(
                [
                    Cell(f"{pair.first} and {pair.second}", note=power_sentence(pair, doubts)),
                    Cell(signed(pair.difference), 100 * pair.difference),
                    Cell(percent(pair.error, 2), 100 * pair.error),
                    Cell(p_value(pair.p_holm), pair.p_holm),
                    Cell(
                        "no number" if pair.seeds is None else f"{pair.seeds:,}", pair.seeds or float("inf")
                    ),
                    Cell(
                        "no number" if pair.classes is None else f"{pair.classes:,}",
                        pair.classes or float("inf"),
                    ),
                ]
            )
        )
    if not rows:
        return None
    columns = [
        Column("pair"),
        Column("difference, points", numeric=True),
        Column("standard error", numeric=True, low_is_good=True, hint="over seeds and classes"),
        Column("p, Holm", numeric=True, low_is_good=True),
        Column("seeds needed", numeric=True, low_is_good=True, hint=f"with these {doubts.classes} classes"),
        Column("classes needed", numeric=True, low_is_good=True, hint=f"with {doubts.seeds} seeds"),
    ]
    caption = "What it would take to tell two losses apart (5 % level, 80 % power, one pair alone)"
    return Table(f"power_{number}", caption, columns, rows)


def tuning_sections(standings: Standings, links: Links) -> list[TuningSection]:
    """One per leaderboard with losses that were tuned."""
    found = []
    for number, board in enumerate(standings.leaderboards, 1):
        effects = effects_on(standings, board)
        if effects:
            found.append(_tuning(standings, board, effects, number, links))
    return found


def _tuning(
    standings: Standings, board: Leaderboard, effects: list[TuningEffect], number: int, links: Links
) -> TuningSection:
    name = experiment_name(board.experiment)
    places = {place.contender: place for place in board.places}
    targets = {one.contender: links.place(places[one.contender]) for one in effects}
    return TuningSection(
        name=name,
        chart=_before_and_after(effects, name, standings.metric, targets),
        table=_effects_table(effects, name, number, standings.metric, targets),
        searches=_searches_table(effects, name, number, targets),
        notes=settings_warnings(board),
    )


def _before_and_after(
    effects: list[TuningEffect], name: str, metric: str, targets: dict[str, str]
) -> DotChart | None:
    both = [one for one in effects if one.default is not None]
    if not both:
        return None
    axis = axis_for(100 * value for one in both for value in (one.tuned, one.default or 0.0))
    rows = [
        DotRow(
            label=one.contender,
            target=targets[one.contender],
            dots=[
                Dot(
                    axis.place(100 * (one.default or 0.0)), _BEFORE, f"default {percent(one.default or 0.0)}"
                ),
                Dot(axis.place(100 * one.tuned), 0, f"tuned {percent(one.tuned)}"),
            ],
            text=signed(one.tuned - (one.default or 0.0)),
        )
        for one in both
    ]
    return DotChart(
        title="Before and after tuning",
        description=f"{score_name(metric)} on {name} with default and with tuned settings; numbers below.",
        axis=axis,
        rows=rows,
        unit=f"{score_name(metric)}, %; at the right what tuning changed",
        series=["tuned", "default settings"],
    )


def _effects_table(
    effects: list[TuningEffect], name: str, number: int, metric: str, targets: dict[str, str]
) -> Table:
    rows = []
    for one in effects:
        change = None if one.default is None else one.tuned - one.default
        moved = None if one.tuned_rank is None else (one.default_rank or 0.0) - one.tuned_rank
        rows.append(
            Row(
                [
                    Cell(one.contender, target=targets[one.contender]),
                    Cell(percent(one.tuned), 100 * one.tuned),
                    _percent_cell(one.default),
                    Cell("") if change is None else Cell(signed(change), 100 * change),
                    _rank_cell(one.tuned_rank),
                    _rank_cell(one.default_rank),
                    Cell("") if moved is None else Cell(f"{moved:+g}".replace("-", "−"), moved),
                ]
            )
        )
    columns = [
        Column("loss"),
        Column(f"tuned {score_name(metric)} %", numeric=True),
        Column("default %", numeric=True),
        Column("change, points", numeric=True),
        Column("tuned rank", numeric=True, low_is_good=True),
        Column("default rank", numeric=True, low_is_good=True),
        Column("places gained", numeric=True, hint="how much of its rank is tuning"),
    ]
    return Table(f"tuning_{number}", f"Test scores on {name}, tuned and with default settings", columns, rows)


def _percent_cell(value: float | None) -> Cell:
    return Cell("") if value is None else Cell(percent(value), 100 * value)


def _rank_cell(value: float | None) -> Cell:
    return Cell("") if value is None else Cell(f"{value:g}", value)


def _searches_table(effects: list[TuningEffect], name: str, number: int, targets: dict[str, str]) -> Table:
    rows = []
    for one in effects:
        found = one.found
        assert found is not None
        full = len(found.in_full)
        rows.append(
            Row(
                [
                    Cell(one.contender, target=targets[one.contender]),
                    Cell(_told(found.values), note=f"before: {_told(found.own)}"),
                    Cell("; ".join(f"{_short(key)} {_where(values)}" for key, values in found.space.items())),
                    Cell(percent(found.score), 100 * found.score),
                    _percent_cell(found.own_score),
                    Cell(f"{found.as_good} of {full}", found.as_good / max(full, 1)),
                    _points(found.behind),
                    Cell(f"{len(found.trials)}", len(found.trials)),
                    Cell(f"{found.steps:,}", found.steps),
                ]
            )
        )
    columns = [
        Column("loss"),
        Column("found"),
        Column("searched"),
        Column("validation %", numeric=True),
        Column("default there %", numeric=True),
        Column("within a point", numeric=True, hint="trials trained in full that are as good: flat if many"),
        Column(
            "median behind", numeric=True, low_is_good=True, hint="of the trials trained in full, in points"
        ),
        Column("trials", numeric=True),
        Column("steps", numeric=True, hint="training steps of all its trials"),
    ]
    return Table(f"searches_{number}", f"What was searched on {name}, and found", columns, rows)


def _told(values: dict[str, Any]) -> str:
    return ", ".join(f"{_short(key)} {_number(value)}" for key, value in values.items())


def _short(key: str) -> str:
    names = {"optimizer.lr": "learning rate", "schedule.warmup": "warm-up", "loss.lr": "loss's rate"}
    return names.get(key, key.removeprefix("loss."))


def _number(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _where(values: dict[str, Any]) -> str:
    if values["kind"] == "choices":
        return f"one of {', '.join(map(str, values['values']))}"
    return f"{values['low']:g} to {values['high']:g}{' (log)' if values.get('log') else ''}"
