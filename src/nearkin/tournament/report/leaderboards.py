"""A leaderboard as a chart, as a table, and who beats whom in it."""

from __future__ import annotations

from dataclasses import dataclass

from nearkin.protocols import chooses_on_test
from nearkin.tournament.report.charts import Axis, Dot, DotChart, DotRow, axis_for
from nearkin.tournament.report.tables import Cell, Column, Link, Row, Table
from nearkin.tournament.report.wording import (
    Links,
    experiment_name,
    in_common,
    labelled,
    p_value,
    percent,
    row_kind,
    score_name,
    signed,
)
from nearkin.tournament.standings import Leaderboard, Place, PublishedFigure, Standings

_PUBLISHED_SERIES = 1
_ONLY_BY_RUN = {"mean_reciprocal_rank", "r_precision"}  # a leaderboard has room for the field's usual scores


@dataclass(frozen=True)
class BoardSection:
    """A leaderboard as the report shows it."""

    anchor: str
    name: str
    leader: str
    chart: DotChart
    table: Table
    published: Table | None
    lead: Table | None
    notes: list[str]


def boards(standings: Standings, links: Links) -> list[BoardSection]:
    """All leaderboards, in the order of the standings."""
    several = len(standings.leaderboards) > 1
    common = in_common([board.experiment for board in standings.leaderboards]) if several else set()
    return [
        _board(board, number, standings.metric, links, common)
        for number, board in enumerate(standings.leaderboards, 1)
    ]


def _board(board: Leaderboard, number: int, metric: str, links: Links, without: set[str]) -> BoardSection:
    name = experiment_name(board.experiment, without=without)
    return BoardSection(
        anchor=links.board_anchor(board),
        name=name,
        leader=_leader(board, metric),
        chart=_chart(board, metric, links, name),
        table=_table(board, number, metric, links),
        published=_published(board, number, metric, links),
        lead=_lead(board, number, metric, links),
        notes=[labelled(note) for note in board.notes],
    )


def _leader(board: Leaderboard, metric: str) -> str:
    """Who is first, with what score."""
    first = next((place for place in board.places if place.kind != "baseline"), board.places[0])
    return f"{first.contender} {percent(first.scores[metric])} %"


def _chart(board: Leaderboard, metric: str, links: Links, name: str) -> DotChart:
    axis = axis_for(100 * value for place in board.places for value in _extent(place, metric))
    best = board.places[0]
    return DotChart(
        title=f"{score_name(metric)} on test classes",
        description=(
            f"{score_name(metric)} of {len(board.places)} contenders on {name}, from "
            f"{percent(best.scores[metric])} % for {best.contender} down to "
            f"{percent(board.places[-1].scores[metric])} % for {board.places[-1].contender}. "
            "The table below has every number."
        ),
        axis=axis,
        rows=[_chart_row(place, metric, axis, links) for place in board.places],
        unit=f"{score_name(metric)}, %",
    )


def _extent(place: Place, metric: str) -> list[float]:
    """All that has to fit on the axis."""
    values = [outcome.scores[metric] for outcome in place.outcomes]
    if place.interval is not None:
        values += [place.interval.low, place.interval.high]
    return values + [figure.scores[metric] for figure in place.published if metric in figure.scores]


def _chart_row(place: Place, metric: str, axis: Axis, links: Links) -> DotRow:
    dots = [
        Dot(
            axis.place(100 * figure.scores[metric]),
            _PUBLISHED_SERIES,
            f"published: {percent(figure.scores[metric], 2)} ({figure.source})",
        )
        for figure in place.published
        if metric in figure.scores
    ]
    if len(place.outcomes) > 1:
        dots += [
            Dot(
                axis.place(100 * one.scores[metric]),
                title=f"seed {one.seed}: {percent(one.scores[metric], 2)}",
                small=True,
            )
            for one in place.outcomes
        ]
    dots.append(Dot(axis.place(100 * place.scores[metric]), title=percent(place.scores[metric], 2)))
    interval = place.interval
    return DotRow(
        label=place.contender,
        target=links.place(place),
        dots=dots,
        whisker=None
        if interval is None
        else (axis.place(100 * interval.low), axis.place(100 * interval.high)),
        text=percent(place.scores[metric]),
        kind=row_kind(place),
    )


def shown_scores(places: list[Place], metric: str) -> list[str]:
    """The scores that every line has, the one that ranks first; Precision@1 is Recall@1 by another name."""
    common = set.intersection(*(set(place.scores) for place in places)) - {metric, "precision_at_1"}
    return [metric, *(name for name in places[0].scores if name in common)]


def _table(board: Leaderboard, number: int, metric: str, links: Links) -> Table:
    scores = [name for name in shown_scores(board.places, metric) if name not in _ONLY_BY_RUN - {metric}]
    best = {
        name: max((place.scores[name] for place in board.places if place.kind != "baseline"), default=None)
        for name in scores
    }
    published = any(place.published for place in board.places)
    interval = any(place.interval is not None for place in board.places)
    several = any(place.seeds > 1 for place in board.places)
    columns = [
        Column("rank", numeric=True, low_is_good=True),
        Column("loss"),
        Column(f"{score_name(metric)} %", numeric=True),
    ]
    if interval:
        columns.append(
            Column("interval", numeric=True, hint="over test classes: would other classes say the same?")
        )
    if several:
        columns += [
            Column("± seeds", numeric=True, hint="standard deviation over seeds", low_is_good=True),
            Column("seeds", numeric=True),
        ]
    if published:
        columns.append(
            Column("published %", numeric=True, hint="lowest to highest that others reported, sources below")
        )
    columns += [Column(f"{score_name(name)} %", numeric=True) for name in scores[1:]]
    rows = []
    for place in board.places:
        cells = [_rank_cell(place), _name_cell(place, links), _score_cell(place, metric, links, best[metric])]
        if interval:
            cells.append(_interval_cell(place))
        if several:
            spread = place.spread.get(metric)
            cells.append(Cell("") if spread is None else Cell(percent(spread), 100 * spread))
            cells.append(Cell(str(place.seeds), place.seeds))
        if published:
            cells.append(_published_cell(place, metric))
        cells += [
            Cell(
                percent(place.scores[name]),
                100 * place.scores[name],
                links.place(place),
                best=place.kind != "baseline" and place.scores[name] == best[name],
            )
            for name in scores[1:]
        ]
        rows.append(Row(cells, row_kind(place)))
    return Table(
        f"leaderboard_{number}", f"Test scores on {experiment_name(board.experiment)}", columns, rows
    )


def _rank_cell(place: Place) -> Cell:
    return Cell("") if place.rank is None else Cell(f"{place.rank:g}", place.rank)


def _name_cell(place: Place, links: Links) -> Cell:
    first = place.outcomes[0]
    about = [first.source] if place.kind == "published" else []
    about += [outcome.description for outcome in place.outcomes if outcome.description][:1]
    return Cell(place.contender, target=links.place(place), note=": ".join(about))


def _score_cell(place: Place, metric: str, links: Links, best: float | None) -> Cell:
    seeds = tuple(
        Link(percent(outcome.scores[metric]), target)
        for outcome in place.outcomes
        if len(place.outcomes) > 1 and (target := links.run(outcome))
    )
    value = place.scores[metric]
    return Cell(
        percent(value),
        100 * value,
        links.place(place),
        links=seeds,
        best=place.kind != "baseline" and value == best,
    )


def _interval_cell(place: Place) -> Cell:
    interval = place.interval
    if interval is None:
        return Cell("")
    return Cell(f"{percent(interval.low)}–{percent(interval.high)}", 100 * interval.low)


def _published_cell(place: Place, metric: str) -> Cell:
    found = sorted(figure.scores[metric] for figure in place.published if metric in figure.scores)
    if not found:
        return Cell("")
    ends = dict.fromkeys(percent(value, 2) for value in (found[0], found[-1]))
    return Cell("–".join(ends), 100 * found[-1])


def _published(board: Leaderboard, number: int, metric: str, links: Links) -> Table | None:
    """Every score beside every figure that others reported for the same configuration."""
    rows = []
    for place in board.places:
        ours = place.scores[metric]
        for figure in place.published:
            if metric not in figure.scores:
                continue
            theirs = figure.scores[metric]
            cells = [
                Cell(place.contender, target=links.place(place)),
                Cell(percent(ours, 2), 100 * ours),
                Cell(percent(theirs, 2), 100 * theirs),
                Cell(signed(ours - theirs), 100 * (ours - theirs)),
                Cell(figure.source),
                Cell(_terms(figure)),
            ]
            rows.append(Row(cells, row_kind(place)))
    if not rows:
        return None
    columns = [
        Column("loss"),
        Column(f"{score_name(metric)} here %", numeric=True),
        Column("published %", numeric=True),
        Column("difference, points", numeric=True),
        Column("reported by"),
        Column("terms"),
    ]
    caption = (
        f"{score_name(metric)} beside what others reported for the same loss, data set, network and size"
    )
    return Table(f"published_{number}", caption, columns, rows)


def _terms(figure: PublishedFigure) -> str:
    """What to know about a figure before comparing with it."""
    chosen = "epoch chosen on test" if chooses_on_test(figure.experiment.protocol) else ""
    return ", ".join(filter(None, (chosen, figure.note)))


def _lead(board: Leaderboard, number: int, metric: str, links: Links) -> Table | None:
    """The leader's lead over everybody else, on the same queries."""
    leader = next((place for place in board.places if place.kind != "baseline"), None)
    if leader is None:
        return None
    rows = []
    for place in board.places:
        found = board.comparison(leader.contender, place.contender)
        if found is None:
            continue
        cells = [
            Cell(place.contender, target=links.place(place)),
            Cell(signed(found.difference), 100 * found.difference),
            Cell(f"{signed(found.low)} to {signed(found.high)}", 100 * found.low),
            Cell(p_value(found.p_value), found.p_value),
            Cell(p_value(found.p_holm), found.p_holm),
            Cell({"win": "ahead", "tie": "not told apart", "loss": "behind"}[found.verdict]),
        ]
        rows.append(Row(cells, row_kind(place)))
    if not rows:
        return None
    columns = [
        Column(f"{leader.contender} beside"),
        Column("difference, points", numeric=True, low_is_good=True),
        Column("interval", numeric=True, low_is_good=True),
        Column("p", numeric=True),
        Column("p, Holm", numeric=True, hint="corrected for all pairs of this experiment"),
        Column("verdict"),
    ]
    caption = f"{leader.contender}'s {score_name(metric)} minus everybody's, paired over test classes"
    return Table(f"lead_{number}", caption, columns, rows)
