"""Scores against how much is labelled, or labelled wrongly, with the frozen features beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from nearkin.tournament.report.charts import Curve, Curves, PanelChart, panel_chart
from nearkin.tournament.report.tables import Cell, Column, Row, Table
from nearkin.tournament.report.wording import Links, percent, score_name
from nearkin.tournament.standings import Leaderboard, Place, Standings

_LABELLED_CLASSES = "labelled classes, %"
_QUANTITIES = {
    "labelled_classes": _LABELLED_CLASSES,
    "labelled_images": "labelled images of every class, %",
    "images_per_class": "images of every class",
}


@dataclass(frozen=True)
class SupervisionSection:
    """One quantity, such as the share of labelled classes, and what becomes of the scores with it.

    Attributes:
        title: The quantity, and where it was varied.
        chart: A panel per contender, where there are several values.
        table: A row per contender, a column per value, intervals over test classes.
    """

    title: str
    chart: PanelChart | None
    table: Table


def supervision(standings: Standings, links: Links) -> list[SupervisionSection]:
    """A section for every data set, network and quantity that runs with fewer labels varied."""
    groups: dict[tuple[str, str, int, str], dict[float, Leaderboard]] = {}
    for board in standings.leaderboards:
        where = board.experiment
        for quantity, value in _amount(_protocol(board)):
            key = where.dataset, where.network, where.embedding_dim, quantity
            groups.setdefault(key, {})[value] = board
    return [
        _Varied(number, quantity, f"{data} · {network} · {size}-d", boards, standings.metric).section(links)
        for number, ((data, network, size, quantity), boards) in enumerate(sorted(groups.items()), 1)
    ]


def _protocol(board: Leaderboard) -> Mapping[str, Any]:
    """The protocol's table in the settings of a board's runs."""
    terms = next(
        (o.terms for place in board.places for o in place.outcomes if o.terms and o.kind == "run"), None
    )
    table = {} if terms is None else terms.settings.get("protocol", {})
    return table if isinstance(table, Mapping) else {}


def _amount(protocol: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Quantities that a protocol sets, each with its value.

    >>> _amount({"name": "semi_supervised", "labelled_classes": 0.25})
    [('labelled classes, %', 25.0)]
    >>> _amount({"name": "noisy_labels", "share": 0.2, "noise": "uniform"})
    [('wrong labels (uniform), %', 20.0)]
    """
    name = protocol.get("name")
    if name == "unsupervised":
        return [(_LABELLED_CLASSES, 0.0)]
    if name == "noisy_labels":
        share = protocol.get("share", 0.2)
        return [(f"wrong labels ({protocol.get('noise', 'uniform')}), %", round(100 * share, 6))]
    if name not in ("semi_supervised", "few_images"):
        return []
    return [
        (quantity, float(protocol[key]) if key == "images_per_class" else round(100 * protocol[key], 6))
        for key, quantity in _QUANTITIES.items()
        if protocol.get(key) is not None
    ]


@dataclass(frozen=True)
class _Varied:
    """Experiments that differ in one quantity.

    Attributes:
        number: Of the section.
        quantity: Its name with its unit.
        where: Data set, network and size.
        boards: By the values of the quantity.
        metric: The ranked score.
    """

    number: int
    quantity: str
    where: str
    boards: Mapping[float, Leaderboard]
    metric: str

    @property
    def values(self) -> list[float]:
        return sorted(self.boards)

    @property
    def places(self) -> dict[str, dict[float, Place]]:
        """Of every contender at every value, in the order of the largest value."""
        found: dict[str, dict[float, Place]] = {}
        for value in reversed(self.values):
            for place in self.boards[value].places:
                if place.kind == "run":
                    found.setdefault(place.contender, {})[value] = place
        return found

    def section(self, links: Links) -> SupervisionSection:
        title = f"{self.quantity} · {self.where}"
        start = _start(list(self.boards.values()), self.metric)
        chart = self._chart(title, start, links) if len(self.boards) > 1 else None
        return SupervisionSection(title, chart, self._table(title, start, links))

    def _table(self, title: str, start: tuple[str, float] | None, links: Links) -> Table:
        rows = [
            Row([Cell(contender), *(_cell(places.get(value), self.metric, links) for value in self.values)])
            for contender, places in self.places.items()
        ]
        if start is not None:
            name, score = start
            cells = [Cell(percent(score), 100 * score) for _ in self.values]
            rows.append(Row([Cell(name), *cells], kind="baseline"))
        columns = [Column(f"{value:g}", numeric=True, hint=self.quantity) for value in self.values]
        caption = f"{score_name(self.metric)} in %, with intervals over test classes, by {title}"
        return Table(f"supervision_{self.number}", caption, [Column("contender"), *columns], rows)

    def _chart(self, title: str, start: tuple[str, float] | None, links: Links) -> PanelChart:
        panels = [
            Curves(
                label=contender,
                target=links.place(places[max(places)]),
                curves=[
                    Curve([(value, 100 * places[value].scores[self.metric]) for value in sorted(places)])
                ],
                text=percent(places[max(places)].scores[self.metric]),
            )
            for contender, places in self.places.items()
        ]
        if start is not None:
            name, score = start
            line = Curve([(value, 100 * score) for value in self.values])
            table = f"#table-supervision_{self.number}"
            panels.append(Curves(name, table, [line], percent(score), kind="baseline"))
        last = len(self.values) - 1
        return panel_chart(
            f"supervision-{self.number}",
            panels,
            title=title,
            description=f"{score_name(self.metric)} of every contender by {title}; numbers: the table.",
            x_unit=self.quantity,
            y_unit=f"{score_name(self.metric)}, %",
            x_places={value: round(100 * place / last, 2) for place, value in enumerate(self.values)},
        )


def _cell(place: Place | None, metric: str, links: Links) -> Cell:
    if place is None:
        return Cell("")
    score, interval = place.scores[metric], place.interval
    told = "" if interval is None else f" ({percent(interval.low)}–{percent(interval.high)})"
    return Cell(f"{percent(score)}{told}", 100 * score, links.place(place))


def _start(boards: Sequence[Leaderboard], metric: str) -> tuple[str, float] | None:
    """What the runs started from, and its mean score: the same network on the same test classes."""
    starts = [
        outcome.result.start
        for board in boards
        for place in board.places
        for outcome in place.outcomes
        if outcome.result is not None and outcome.result.start is not None
    ]
    scores = [start.test.to_dict().get(metric) for start in starts]
    known = [float(score) for score in scores if score is not None]
    return (starts[0].name, mean(known)) if known else None
