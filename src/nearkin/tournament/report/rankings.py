"""Ranks over the experiments, as in Table 11 of the thesis, and who beat whom how often."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nearkin.pictures.diagram import RankDiagram, rank_diagram
from nearkin.tournament.doubts import RankInterval
from nearkin.tournament.report.tables import Cell, Column, Row, Table
from nearkin.tournament.report.wording import Links, count, experiment_name, in_common, labelled
from nearkin.tournament.standings import NemenyiTest, OverallRanking, Standings


@dataclass(frozen=True)
class MatrixCell:
    """One contender's record against another; ``share`` of wins less losses, from −1 to 1."""

    text: str
    title: str
    share: float


@dataclass(frozen=True)
class Matrix:
    """Everybody's record against everybody, in the order of the ranking."""

    names: Sequence[str]
    baselines: frozenset[str]
    rows: Sequence[Sequence[MatrixCell | None]]


@dataclass(frozen=True)
class Rankings:
    """What the report says over all experiments."""

    table: Table | None
    per_experiment: Table | None
    diagram: RankDiagram | None
    targets: dict[str, str]
    matrix: Matrix | None
    records: Table | None
    notes: list[str]


def rankings(standings: Standings, links: Links) -> Rankings:
    """Lay out the ranking, the critical-difference diagram and the win/tie/loss matrix."""
    matrix = _matrix(standings)
    return Rankings(
        table=_table(standings, links),
        per_experiment=_per_experiment(standings, links),
        diagram=None if standings.nemenyi is None else _diagram(standings.ranking, standings.nemenyi),
        targets={row.contender: links.contender(row.contender) for row in standings.ranking.rows},
        matrix=matrix,
        records=None if matrix is None else _records(standings, matrix),
        notes=[labelled(note) for note in standings.test_notes],
    )


def _diagram(ranking: OverallRanking, test: NemenyiTest) -> RankDiagram:
    return rank_diagram(
        ranking.averages, critical_difference=test.critical_difference, groups=test.groups, alpha=test.alpha
    )


def _table(standings: Standings, links: Links) -> Table | None:
    ranking = standings.ranking
    if not ranking.rows:
        return None
    columns = [
        Column("loss"),
        Column("total", numeric=True, low_is_good=True, hint="sum of ranks"),
        Column("average", numeric=True, low_is_good=True),
        Column("standard deviation", numeric=True, low_is_good=True),
        Column("first places", numeric=True),
    ]
    intervals = {} if standings.doubts is None else standings.doubts.ranks
    if intervals:
        hint = "of the average rank, over experiments, test classes and seeds"
        columns.append(Column("interval", numeric=True, low_is_good=True, hint=hint))
    rows = [
        Row(
            [
                Cell(row.contender, target=links.contender(row.contender)),
                Cell(f"{row.total:g}", row.total),
                Cell(f"{row.average:.2f}", row.average),
                Cell(f"{row.deviation:.2f}", row.deviation),
                Cell(str(firsts := sum(rank == 1 for rank in row.ranks.values())), firsts),
                *([_interval_cell(intervals.get(row.contender))] if intervals else []),
            ]
        )
        for row in ranking.rows
    ]
    over = count(len(ranking.experiments), "experiment")
    return Table("rankings", f"Ranks over {over}: 1 is best in each", columns, rows)


def _interval_cell(interval: RankInterval | None) -> Cell:
    return Cell("") if interval is None else Cell(f"{interval.low:.1f} to {interval.high:.1f}", interval.low)


def _per_experiment(standings: Standings, links: Links) -> Table | None:
    """The rank of every loss in every experiment."""
    ranking = standings.ranking
    if len(ranking.experiments) < 2:
        return None
    common = in_common(ranking.experiments)
    columns = [
        Column("loss"),
        *(
            Column(experiment_name(experiment, without=common), numeric=True, low_is_good=True)
            for experiment in ranking.experiments
        ),
    ]
    rows = []
    for row in ranking.rows:
        cells = [Cell(row.contender, target=links.contender(row.contender))]
        for experiment in ranking.experiments:
            place = standings.place(experiment, row.contender)
            rank = row.ranks[experiment]
            cells.append(
                Cell(f"{rank:g}", rank, None if place is None else links.place(place), best=rank == 1)
            )
        rows.append(Row(cells))
    return Table("ranks_per_experiment", "Rank in each experiment", columns, rows)


def _matrix(standings: Standings) -> Matrix | None:
    if not standings.records:
        return None
    kinds = {outcome.contender: outcome.kind for outcome in standings.outcomes}
    present = {name for pair in standings.records for name in pair}
    ranked = [row.contender for row in standings.ranking.rows if row.contender in present]
    others = sorted(present.difference(ranked), key=lambda name: (kinds[name] == "baseline", name))
    names = [*ranked, *others]
    return Matrix(
        names=names,
        baselines=frozenset(name for name in names if kinds[name] == "baseline"),
        rows=[[_matrix_cell(standings, row, column) for column in names] for row in names],
    )


def _matrix_cell(standings: Standings, row: str, column: str) -> MatrixCell | None:
    record = standings.records.get((row, column))
    if record is None:
        return None
    met = record.wins + record.ties + record.losses
    title = (
        f"{row} against {column}: {count(record.wins, 'win')}, {count(record.ties, 'tie')}, "
        f"{count(record.losses, 'loss', 'losses')}"
    )
    text = (
        f"{record.wins}·{record.ties}·{record.losses}"
        if met > 1
        else _ONE_MEETING[record.wins - record.losses]
    )
    return MatrixCell(text, title, (record.wins - record.losses) / max(met, 1))


_ONE_MEETING = {1: "W", 0: "=", -1: "L"}


def _records(standings: Standings, matrix: Matrix) -> Table:
    """The matrix as a list of pairs, for files."""
    columns = [
        Column("first"),
        Column("second"),
        *(Column(name, numeric=True) for name in ("wins", "ties", "losses")),
    ]
    rows = []
    for number, first in enumerate(matrix.names):
        for second in matrix.names[number + 1 :]:
            record = standings.records.get((first, second))
            if record is not None:
                numbers = (record.wins, record.ties, record.losses)
                rows.append(Row([Cell(first), Cell(second), *(Cell(str(n), n) for n in numbers)]))
    return Table("records", "Wins, ties and losses of every pair", columns, rows)
