"""Results that others published, as data with their source.

``published("thesis")`` is what Table 11 of the thesis ranks, ``published("thesis_table_17")`` one of its
tables, ``published("papers")`` what the papers of the losses report; :func:`figures_for` finds what was
reported for the configuration of a run. The folder's README names every file's source and its known slips.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from itertools import pairwise

from nearkin.registry import nearest_name
from nearkin.tournament.outcomes import Experiment, Outcome
from nearkin.tournament.standings import PublishedFigure, RankRow

BEST_ON_TEST = "standard_best_on_test"
AS_PUBLISHED = "as_published"
"""In the place of a protocol: papers train and select each in their own way."""

VALIDATION = "validation_recall_at_1"
"""The score on validation classes, where a table of the thesis has it beside that on test classes."""

TABLE = "thesis_table_"
_TABLES = {
    6: "CUB, ResNet50, four embedding sizes",
    7: "CUB, BNInception, four embedding sizes",
    8: "CUB, GoogLeNet, four embedding sizes",
    9: "Cars, BNInception, four embedding sizes",
    10: "SOP, BNInception, four embedding sizes",
    12: "CUB, BNInception, 512: the mean of ten folds, for three losses",
    13: "the ten folds of MultiSimilarity, with their validation scores",
    14: "four splits into training and validation classes, with their validation scores",
    15: "the hyperparameters found on validation classes, ranked by the test scores of Table 16",
    16: "CUB, BNInception, 512: three losses with the hyperparameters of Table 15",
    17: "CUB, BNInception, 512: ten losses and the thesis's own, proxy_repulsion",
    18: "Cars, BNInception, 512: ten losses and the thesis's own, proxy_repulsion",
    19: "SOP, BNInception, 512: ten losses and the thesis's own, proxy_repulsion",
    20: "Cars, ResNet50, four embedding sizes",
    21: "Cars, GoogLeNet, four embedding sizes",
}
# Tables 17 to 19 repeat one size of another table, and add the own loss.
_REPEATED = {17: (7, 512), 18: (9, 512), 19: (10, 512)}
_TOURNAMENT = ("Table 6", "Table 7", "Table 8")
_OWN_LOSS = ("Table 17", "Table 18", "Table 19")
# Half of the last printed digit, and a hair for round-off: a number further off than this is a slip.
_ROUNDING = 0.005 + 1e-9


def names() -> dict[str, str]:
    """The published results that can be ranked, each with what it holds.

    >>> list(names())[:4], len(names())
    (['thesis', 'thesis_all', 'papers', 'thesis_table_6'], 18)
    """
    tables = {f"{TABLE}{number}": f"Table {number} of the thesis: {what}" for number, what in _TABLES.items()}
    return {
        "thesis": "Tables 6 to 8 of the thesis (Psomas, 2020): CUB, 3 networks × 4 embedding sizes",
        "thesis_all": "all of the thesis's experiments: CUB and Cars with 3 networks, SOP with one",
        "papers": "what the papers of the losses report, each on its own terms: CUB, Cars, SOP and In-Shop",
    } | tables


def published(name: str) -> list[Outcome]:
    """Published results as outcomes that can be ranked; ``thesis`` is what its Table 11 ranks.

    In Tables 13 and 14 folds and splits take the place of losses, and have a ``validation_recall_at_1`` too.

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
    if name.startswith(TABLE):
        return _table(int(name.removeprefix(TABLE)))
    figures = _read("thesis_recall.csv")
    if name == "thesis":
        return [figure for figure in figures if figure.source.endswith(_TOURNAMENT)]
    return [figure for figure in figures if not figure.source.endswith(_OWN_LOSS)]


def _table(number: int) -> list[PublishedFigure]:
    """One table of the thesis, in the order in which it is printed."""
    if number == 13:
        return _with_validation("thesis_folds.csv", "fold")
    if number == 14:
        return _with_validation("thesis_splits.csv", "split")
    if number == 15:
        return [replace(one, note=_found(one.contender)) for one in _of_table("thesis_validation.csv", 16)]
    if number in _REPEATED:
        table, size = _REPEATED[number]
        others = [
            one for one in _of_table("thesis_recall.csv", table) if one.experiment.embedding_dim == size
        ]
        (own,) = _of_table("thesis_recall.csv", number)
        printed = [*others[:-1], own, others[-1]]  # before ProxyAnchor
        return [replace(one, source=own.source) for one in printed]
    file = "thesis_validation.csv" if number in (12, 16) else "thesis_recall.csv"
    return _of_table(file, number)


def _of_table(file: str, number: int) -> list[PublishedFigure]:
    return [figure for figure in _read(file) if figure.source.endswith(f"Table {number}")]


def _with_validation(file: str, column: str) -> list[PublishedFigure]:
    """Folds or splits in the place of losses, with both scores."""
    return [
        replace(
            _figure(
                row,
                {"recall_at_1": _share(row["recall_percent"]), VALIDATION: _share(row["validation_percent"])},
            ),
            contender=f"{column} {row[column]}",
            note=row["loss"],
        )
        for row in _rows(file)
    ]


def _share(percent: str) -> float:
    return round(float(percent) / 100, 6)


@dataclass(frozen=True)
class SearchedRange:
    """A line of the thesis's Table 15.

    Attributes:
        loss: Of which loss.
        keyword: Our keyword.
        printed_as: What the table calls it.
        low: Where the search began; 0 itself is left out where ``low_included`` is not.
        high: Where it ended, included.
        low_included: Whether ``low`` was tried.
        step: From one value to the next.
        best: What was found.
        note: What to know about it.
    """

    loss: str
    keyword: str
    printed_as: str
    low: float
    high: float
    low_included: bool
    step: float
    best: float
    note: str = ""

    def values(self) -> list[float]:
        """What was tried, in order.

        >>> [one.values()[:3] for one in table_15() if one.loss == "proxy_anchor"]
        [[0.0, 0.1, 0.2], [2.0, 4.0, 6.0]]
        """
        steps = round((self.high - self.low) / self.step)
        return [round(self.low + k * self.step, 10) for k in range(0 if self.low_included else 1, steps + 1)]

    def __str__(self) -> str:
        bracket = "[" if self.low_included else "("
        found = (
            f"{self.printed_as} {self.best:g} of {bracket}{self.low:g}, {self.high:g}], step {self.step:g}"
        )
        return f"{found} ({self.note})" if self.note else found


def table_15() -> list[SearchedRange]:
    """The thesis's Table 15: what was searched on validation classes, and what was found."""
    return [
        SearchedRange(
            row["loss"],
            row["keyword"],
            row["printed_as"],
            *(float(row[key]) for key in ("low", "high")),
            row["low_included"] == "yes",
            *(float(row[key]) for key in ("step", "best")),
            row["note"],
        )
        for row in _rows("thesis_search.csv")
    ]


def _found(loss: str) -> str:
    return "; ".join(str(one) for one in table_15() if one.loss == loss)


def notes_of(name: str) -> list[str]:
    """What a reader of a published table has to know."""
    number = int(name.removeprefix(TABLE)) if name.startswith(TABLE) else 0
    return {
        12: ["Each figure is the mean over ten folds; the deviation over them stands beside its source."],
        13: ["These are folds of one loss: their order says nothing about losses."],
        14: [
            "The thesis prefers 90/10 for its test score: the test classes chose it. Validation scores over "
            "30, 20, 10 and 5 classes do not compare with each other."
        ],
        15: [f"{one.loss}: {one}" for one in table_15()],
    }.get(number, [])


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
        groups.setdefault(tuple(row.items()), {})[f"recall_at_{k}"] = _share(percent)
    return tuple(_figure(dict(columns), scores) for columns, scores in groups.items())


def _figure(columns: dict[str, str], scores: dict[str, float]) -> PublishedFigure:
    from_paper = "source" in columns
    notes = [
        "a slip in print: Recall@k falls as k grows"
        if any(after < before for before, after in pairwise(_recalls(scores)))
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


def _recalls(scores: dict[str, float]) -> list[float]:
    return [value for name, value in scores.items() if name.startswith("recall_at_")]


def _rows(name: str) -> list[dict[str, str]]:
    text = resources.files(__name__).joinpath(name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
