"""Results that others published, as data with their source.

``published("thesis")`` is what Table 11 of the thesis ranks, ``published("papers")`` what the papers of the
losses report; :func:`figures_for` finds what was reported for the configuration of a run. The folder's README
names every file's source and its known slips.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from functools import cache
from importlib import resources
from itertools import pairwise

from nearkin.registry import nearest_name
from nearkin.tournament.outcomes import Experiment, Outcome
from nearkin.tournament.standings import PublishedFigure, RankRow

BEST_ON_TEST = "standard_best_on_test"
AS_PUBLISHED = "as_published"
"""In the place of a protocol: papers train and select each in their own way."""

_TOURNAMENT = ("Table 6", "Table 7", "Table 8")
_OWN_LOSS = ("Table 17", "Table 18", "Table 19")
# Half of the last printed digit, and a hair for round-off: a number further off than this is a slip.
_ROUNDING = 0.005 + 1e-9


def names() -> dict[str, str]:
    """The published results that can be ranked, each with what it holds.

    >>> list(names())
    ['thesis', 'thesis_all', 'papers']
    """
    return {
        "thesis": "Tables 6 to 8 of the thesis (Psomas, 2020): CUB, 3 networks × 4 embedding sizes",
        "thesis_all": "all of the thesis's experiments: CUB and Cars with 3 networks, SOP with one",
        "papers": "what the papers of the losses report, each on its own terms: CUB, Cars, SOP and In-Shop",
    }


def published(name: str) -> list[Outcome]:
    """Published results as outcomes that can be ranked; ``thesis`` is what its Table 11 ranks.

    >>> outcomes = published("thesis")
    >>> len(outcomes), len({outcome.experiment for outcome in outcomes})
    (120, 12)
    """
    if name not in names():
        raise ValueError(f"unknown published results {name!r}: {nearest_name(name, list(names()))}")
    return [
        Outcome(
            experiment=figure.experiment,
            contender=figure.contender,
            kind="published",
            scores=figure.scores,
            source=figure.source,
            description=figure.note,
        )
        for figure in _ranked(name)
    ]


def figures_for(experiment: Experiment, contender: str) -> list[PublishedFigure]:
    """What was reported for this loss on this data set, network and embedding size, under any protocol.

    >>> experiment = Experiment("cub200", "bninception", 512, "fixed_validation")
    >>> [(figure.source, figure.scores["recall_at_1"]) for figure in figures_for(experiment, "soft_triple")]
    [('Psomas, 2020, Table 7', 0.6676), ('Psomas, 2020, Table 16', 0.6612),
     ('Qian et al., 2019, ICCV', 0.654)]
    """
    same = (experiment.dataset, _plain_network(experiment.network), experiment.embedding_dim)
    figures = [
        figure
        for file in ("thesis_recall.csv", "thesis_validation.csv", "papers_recall.csv")
        for figure in _read(file)
        if figure.contender == contender
        and (figure.experiment.dataset, figure.experiment.network, figure.experiment.embedding_dim) == same
    ]
    # Cross-validation is another quantity than a single run's score: it stands beside its like only.
    return [
        figure
        for figure in figures
        if (figure.experiment.protocol == "cross_validation") == (experiment.protocol == "cross_validation")
    ]


def slips_in_table_11(rows: Iterable[RankRow]) -> list[str]:
    """Where the thesis's Table 11 prints something else than the ranks of its Tables 6 to 8 give."""
    printed = {row["loss"]: row for row in _rows("thesis_table11.csv")}
    slips = []
    for row in rows:
        for name, what, value in (
            ("total", "total", row.total),
            ("average", "average rank", row.average),
            ("deviation", "standard deviation", row.deviation),
        ):
            there = float(printed[row.contender][name])
            if abs(there - value) > _ROUNDING:
                slips.append(
                    f"Table 11 of the thesis prints {there:g} for the {what} of {row.contender}; "
                    f"the ranks in its Tables 6 to 8 give {value:.2f}."
                )
    return slips


def _ranked(name: str) -> list[PublishedFigure]:
    """The figures that compete under a name."""
    if name == "papers":
        return _first_of_each(_read("papers_recall.csv"))
    figures = _read("thesis_recall.csv")
    if name == "thesis":
        return [figure for figure in figures if figure.source.endswith(_TOURNAMENT)]
    return [figure for figure in figures if not figure.source.endswith(_OWN_LOSS)]


def _first_of_each(figures: Iterable[PublishedFigure]) -> list[PublishedFigure]:
    """One figure per loss and experiment: where a paper has several, the file has its usual terms first."""
    first: dict[tuple[Experiment, str], PublishedFigure] = {}
    for figure in figures:
        first.setdefault((figure.experiment, figure.contender), figure)
    return list(first.values())


def _plain_network(name: str) -> str:
    """A network's name wherever it comes from: ``timm:resnet50`` is a ``resnet50``."""
    return name.removeprefix("timm:")


@cache
def _read(name: str) -> tuple[PublishedFigure, ...]:
    """The figures of a file: its lines hold one k each, and those that differ in nothing else are one."""
    groups: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
    for row in _rows(name):
        k, percent = row.pop("k"), row.pop("recall_percent")
        groups.setdefault(tuple(row.items()), {})[f"recall_at_{k}"] = round(float(percent) / 100, 6)
    return tuple(_figure(dict(columns), scores) for columns, scores in groups.items())


def _figure(columns: dict[str, str], scores: dict[str, float]) -> PublishedFigure:
    from_paper = "source" in columns
    notes = [
        "a slip in print: Recall@k falls as k grows"
        if any(after < before for before, after in pairwise(scores.values()))
        else "",
        columns.get("note", ""),
        f"read in {columns['read_in']}" if from_paper else "",
    ]
    return PublishedFigure(
        source=columns["source"] if from_paper else f"Psomas, 2020, Table {columns['table']}",
        contender=columns["loss"],
        experiment=Experiment(
            dataset=columns["dataset"],
            network=columns["network"],
            embedding_dim=int(columns["embedding_dim"]),
            protocol=columns.get("protocol", AS_PUBLISHED if from_paper else BEST_ON_TEST),
        ),
        scores=scores,
        note=", ".join(filter(None, notes)),
    )


def _rows(name: str) -> list[dict[str, str]]:
    text = resources.files(__name__).joinpath(name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
