"""Every run behind the report, with where it lives."""

from __future__ import annotations

from nearkin.tournament.outcomes import Experiment, Outcome
from nearkin.tournament.report.leaderboards import shown_scores
from nearkin.tournament.report.tables import Cell, Column, Link, Row, Table
from nearkin.tournament.report.wording import Links, in_common, percent, protocol_label, row_kind, score_name
from nearkin.tournament.standings import Place, Standings

_FILES = ("recipe.toml", "result.json", "metrics.jsonl", "cost.json", "evaluation.json")
_PARTS = {"dataset": "data set", "network": "network", "embedding_dim": "size", "protocol": "protocol"}


def runs_table(standings: Standings, links: Links) -> Table:
    """A line per run, baseline and published figure, with links to its files."""
    places = [place for board in standings.leaderboards for place in board.places]
    scores = shown_scores(places, standings.metric)
    common = in_common([board.experiment for board in standings.leaderboards]) - {"protocol"}
    parts = [part for part in _PARTS if part not in common]
    columns = [
        Column("contender"),
        Column("seed", numeric=True, low_is_good=True),
        Column("run"),
        *(Column(f"{score_name(name)} %", numeric=True) for name in scores),
        *(Column(_PARTS[part], numeric=part == "embedding_dim") for part in parts),
    ]
    shared = ", ".join(
        str(getattr(places[0].outcomes[0].experiment, part)) for part in _PARTS if part in common
    )
    return Table(
        "runs",
        f"Every run, all on {shared}" if shared else "Every run",
        columns,
        [
            _row(place, outcome, scores, parts, links, first=number == 0)
            for place in places
            for number, outcome in enumerate(place.outcomes)
        ],
    )


def _row(
    place: Place, outcome: Outcome, scores: list[str], parts: list[str], links: Links, *, first: bool
) -> Row:
    target = links.run(outcome)
    return Row(
        [
            Cell(outcome.contender),
            Cell("") if outcome.seed is None else Cell(str(outcome.seed), outcome.seed),
            _run_cell(outcome, target),
            *(Cell(percent(outcome.scores[name], 2), 100 * outcome.scores[name], target) for name in scores),
            *(_part_cell(outcome.experiment, part) for part in parts),
        ],
        row_kind(place),
        anchor=links.runs_anchor(outcome.experiment, place.contender) if first else "",
    )


def _run_cell(outcome: Outcome, target: str | None) -> Cell:
    """The directory by name, and below it the files that are there."""
    if outcome.path is None or target is None:
        return Cell(outcome.source)
    files = [name for name in _FILES if (outcome.path / name).exists()]
    links = tuple(Link(name.partition(".")[0], f"{target}{name}") for name in files)
    return Cell(outcome.path.name, target=target, links=links)


def _part_cell(experiment: Experiment, part: str) -> Cell:
    if part == "protocol":
        return Cell(protocol_label(experiment.protocol))
    value = getattr(experiment, part)
    return Cell(str(value), value)
