"""The thesis's figures for whatever data there is, learning curves, and what everything cost."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from statistics import mean
from typing import TypeVar

from nearkin.protocols import chooses_on_test
from nearkin.tournament.outcomes import Experiment, Outcome
from nearkin.tournament.report.charts import (
    Curve,
    Curves,
    Dot,
    DotChart,
    DotRow,
    PanelChart,
    axis_for,
    panel_chart,
)
from nearkin.tournament.report.tables import Cell, Column, Row, Table
from nearkin.tournament.report.wording import (
    Links,
    experiment_name,
    in_common,
    listed,
    percent,
    row_kind,
    score_name,
)
from nearkin.tournament.standings import Leaderboard, Place, Standings

_Key = TypeVar("_Key", bound=Hashable)


def recall_charts(standings: Standings, links: Links) -> list[DotChart]:
    """Recall@k of every contender, a chart per experiment with several values of k (thesis, Figure 27)."""
    common = _common(standings)
    return [chart for board in standings.leaderboards if (chart := _recall_chart(board, common, links))]


def _recall_chart(board: Leaderboard, common: set[str], links: Links) -> DotChart | None:
    names = [
        name
        for name in board.places[0].scores
        if name.startswith("recall_at_") and all(name in place.scores for place in board.places)
    ]
    if len(names) < 2:
        return None
    axis = axis_for(100 * place.scores[name] for place in board.places for name in names)
    rows = [
        DotRow(
            label=place.contender,
            target=links.place(place),
            dots=[
                Dot(
                    axis.place(100 * place.scores[name]),
                    number,
                    f"{score_name(name)}: {percent(place.scores[name], 2)}",
                )
                for number, name in enumerate(names)
            ],
            kind=row_kind(place),
        )
        for place in board.places
    ]
    where = experiment_name(board.experiment, without=common)
    return DotChart(
        title=where,
        description=(
            f"{listed([score_name(name) for name in names])} of every contender on {where}; "
            "the numbers are in the leaderboard's table."
        ),
        axis=axis,
        rows=rows,
        unit="%",
        series=[score_name(name) for name in names],
    )


def size_charts(standings: Standings, links: Links) -> list[PanelChart]:
    """The score over embedding sizes, where there are several (thesis, Figures 28 to 30)."""

    def fixed(experiment: Experiment) -> tuple[str, str, str]:
        return experiment.dataset, experiment.network, experiment.protocol

    common = _common(standings)
    groups = _groups(standings.leaderboards, fixed)
    return [
        _size_chart(number, boards, standings.metric, common, links)
        for number, boards in enumerate(groups, 1)
        if len({board.experiment.embedding_dim for board in boards}) > 1
    ]


def _size_chart(
    number: int, boards: Sequence[Leaderboard], metric: str, common: set[str], links: Links
) -> PanelChart:
    boards = sorted(boards, key=lambda board: board.experiment.embedding_dim)
    sizes = [board.experiment.embedding_dim for board in boards]
    spacing = {float(size): round(100 * place / (len(sizes) - 1), 2) for place, size in enumerate(sizes)}
    found: dict[str, list[tuple[int, Place]]] = {}
    for board in reversed(boards):  # the order of the largest size
        for place in board.places:
            found.setdefault(place.contender, []).insert(0, (board.experiment.embedding_dim, place))
    panels = [
        Curves(
            label=contender,
            target=links.place(places[-1][1]),
            curves=[Curve([(float(size), 100 * place.scores[metric]) for size, place in places])],
            text=percent(places[-1][1].scores[metric]),
            kind=row_kind(places[-1][1]),
        )
        for contender, places in found.items()
    ]
    where = experiment_name(boards[0].experiment, without=common | {"embedding_dim"})
    named = listed([str(size) for size in sizes])
    return panel_chart(
        f"sizes-{number}",
        panels,
        title=where,
        description=f"{score_name(metric)} of every contender with {named} dimensions, {where}.",
        x_unit="embedding size",
        y_unit=f"{score_name(metric)}, %",
        x_places=spacing,
    )


def network_charts(standings: Standings, links: Links) -> list[DotChart]:
    """The score with each network, where there are several (thesis, Figure 31)."""

    def fixed(experiment: Experiment) -> tuple[str, int, str]:
        return experiment.dataset, experiment.embedding_dim, experiment.protocol

    common = _common(standings)
    return [
        _network_chart(boards, standings.metric, common, links)
        for boards in _groups(standings.leaderboards, fixed)
        if len({board.experiment.network for board in boards}) > 1
    ]


def _network_chart(boards: Sequence[Leaderboard], metric: str, common: set[str], links: Links) -> DotChart:
    networks = [board.experiment.network for board in boards]
    axis = axis_for(100 * place.scores[metric] for board in boards for place in board.places)
    found: dict[str, list[tuple[int, Place]]] = {}
    for series, board in enumerate(boards):
        for place in board.places:
            found.setdefault(place.contender, []).append((series, place))
    best_first = sorted(found.values(), key=lambda places: -max(place.scores[metric] for _, place in places))
    rows = [
        DotRow(
            label=places[0][1].contender,
            target=links.contender(places[0][1].contender),
            dots=[
                Dot(
                    axis.place(100 * place.scores[metric]),
                    series,
                    f"{networks[series]}: {percent(place.scores[metric], 2)}",
                )
                for series, place in places
            ],
            kind=row_kind(places[0][1]),
        )
        for places in best_first
    ]
    return DotChart(
        title=experiment_name(boards[0].experiment, without=common | {"network"}),
        description=f"{score_name(metric)} of every contender with {listed(networks)}.",
        axis=axis,
        rows=rows,
        unit=f"{score_name(metric)}, %",
        series=networks,
    )


def _common(standings: Standings) -> set[str]:
    return in_common([board.experiment for board in standings.leaderboards])


def _groups(boards: Iterable[Leaderboard], key: Callable[[Experiment], _Key]) -> list[list[Leaderboard]]:
    """Leaderboards that agree in ``key``, in the order of their first."""
    found: dict[_Key, list[Leaderboard]] = {}
    for board in boards:
        found.setdefault(key(board.experiment), []).append(board)
    return list(found.values())


def learning_charts(standings: Standings, links: Links) -> list[PanelChart]:
    """What each epoch brought, a line per seed with its chosen epoch marked.

    That is the score that selects the epoch, or else the training loss.
    """
    common = _common(standings)
    return [
        chart
        for number, board in enumerate(standings.leaderboards, 1)
        if (chart := _learning_chart(number, board, standings.metric, common, links))
    ]


def _learning_chart(
    number: int, board: Leaderboard, metric: str, common: set[str], links: Links
) -> PanelChart | None:
    outcomes = [outcome for place in board.places for outcome in place.outcomes]
    selecting = any(metric in row for outcome in outcomes for row in outcome.curve)
    panels = []
    for place in board.places:
        curves = [_learning_curve(outcome, metric if selecting else "loss") for outcome in place.outcomes]
        drawn = [curve for curve in curves if len(curve.points) > 1]
        if drawn:
            drawn = drawn if selecting else _own_scale(drawn)
            panels.append(Curves(place.contender, links.place(place), drawn, kind=row_kind(place)))
    if not panels:
        return None
    where = experiment_name(board.experiment, without=common)
    if selecting:
        whose = "TEST classes" if chooses_on_test(board.experiment.protocol) else "validation classes"
        unit = f"{score_name(metric)} on {whose}, %"
    else:
        unit = "training loss, % of the way from its lowest to its highest"
    return panel_chart(
        f"learning-{number}",
        panels,
        title=where,
        description=f"{unit} after every epoch, {where}.",
        x_unit="epoch",
        y_unit=unit,
    )


def _learning_curve(outcome: Outcome, key: str) -> Curve:
    factor = 1 if key == "loss" else 100
    points = [(float(row["epoch"]), factor * float(row[key])) for row in outcome.curve if key in row]
    chosen = None if outcome.result is None else outcome.result.epoch
    return Curve(points, next((point for point in points if point[0] == chosen), None))


def _own_scale(curves: Sequence[Curve]) -> list[Curve]:
    """Losses have no common scale: each is drawn over its own, from 0 to 100."""
    values = [y for curve in curves for _, y in curve.points]
    low, span = min(values), (max(values) - min(values)) or 1

    def scaled(point: tuple[float, float]) -> tuple[float, float]:
        return point[0], 100 * (point[1] - low) / span

    return [
        Curve([scaled(point) for point in curve.points], scaled(curve.mark) if curve.mark else None)
        for curve in curves
    ]


def cost_table(standings: Standings, links: Links) -> Table | None:
    """Time and memory of every contender in every experiment, beside its score."""
    boards = standings.leaderboards
    common = _common(standings)
    rows = []
    for board in boards:
        for place in board.places:
            costs = [outcome.cost for outcome in place.outcomes if outcome.cost]
            if not costs:
                continue
            name = experiment_name(board.experiment, without=common)
            score = place.scores[standings.metric]
            rows.append(
                Row(
                    [
                        Cell(place.contender, target=links.place(place)),
                        *([Cell(name, target=f"#{links.board_anchor(board)}")] if len(boards) > 1 else []),
                        Cell(percent(score), 100 * score, links.place(place)),
                        *(_cost_cell(costs, key, words) for key, words in _COSTS.items()),
                    ],
                    row_kind(place),
                )
            )
    if not rows:
        return None
    columns = [
        Column("loss"),
        *([Column("experiment")] if len(boards) > 1 else []),
        Column(f"{score_name(standings.metric)} %", numeric=True),
        Column("training, s", numeric=True, low_is_good=True),
        Column("per epoch, s", numeric=True, low_is_good=True),
        Column("peak memory, MB", numeric=True, low_is_good=True),
    ]
    return Table("cost", "What a run took, mean over its seeds", columns, rows)


def _seconds(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def _megabytes(value: float) -> str:
    return f"{value / 1e6:,.0f}"


_COSTS: dict[str, Callable[[float], str]] = {
    "training_seconds": _seconds,
    "seconds_per_epoch": _seconds,
    "peak_memory_bytes": _megabytes,
}


def _cost_cell(costs: Sequence[dict[str, float | int]], key: str, words: Callable[[float], str]) -> Cell:
    values = [float(cost[key]) for cost in costs if key in cost]
    if not values:
        return Cell("")
    value = mean(values)
    return Cell(words(value), value / 1e6 if key.endswith("bytes") else value)


def cost_charts(standings: Standings, links: Links) -> list[DotChart]:
    """Seconds per epoch, a bar per loss, for every experiment whose runs kept them."""
    common = _common(standings)
    charts = []
    for board in standings.leaderboards:
        seconds = {
            place.contender: mean(values)
            for place in board.places
            if (
                values := [
                    float(outcome.cost["seconds_per_epoch"])
                    for outcome in place.outcomes
                    if outcome.cost and "seconds_per_epoch" in outcome.cost
                ]
            )
        }
        if not seconds:
            continue
        axis = axis_for(seconds.values(), floor=0)
        where = experiment_name(board.experiment, without=common)
        rows = [
            DotRow(
                place.contender,
                links.place(place),
                [Dot(axis.place(seconds[place.contender]), title=_seconds(seconds[place.contender]))],
                text=_seconds(seconds[place.contender]),
                kind=row_kind(place),
            )
            for place in sorted(board.places, key=lambda place: seconds.get(place.contender, 0))
            if place.contender in seconds
        ]
        charts.append(
            DotChart(
                where,
                f"Seconds per epoch on {where}; the table has them.",
                axis,
                rows,
                "seconds per epoch",
                bars=True,
            )
        )
    return charts
