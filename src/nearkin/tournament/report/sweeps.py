"""Swept settings in the report: a chart over the setting, a table, and what can be concluded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nearkin.tournament.outcomes import Outcome
from nearkin.tournament.published import VALIDATION, published
from nearkin.tournament.report.charts import Curve, Curves, PanelChart, Tick, panel_chart
from nearkin.tournament.report.tables import Cell, Column, Row, Table
from nearkin.tournament.report.wording import listed, percent, score_name
from nearkin.tournament.standings import Standings
from nearkin.tournament.sweeps import Mean, Sweep, SweptValue, sweeps

_SPLIT = "protocol.validation_share"
_THESIS = "thesis_table_14"


@dataclass(frozen=True)
class SweepSection:
    """One swept setting of one configuration."""

    title: str
    chart: PanelChart
    table: Table
    notes: list[str]


def sweep_sections(standings: Standings) -> list[SweepSection]:
    """Every setting that was swept while all else stayed equal."""
    found = sweeps(standings.outcomes, standings.metric, alpha=standings.alpha)
    return [_section(number, one) for number, one in enumerate(found, 1)]


def _section(number: int, sweep: Sweep) -> SweepSection:
    run = sweep.values[0].runs[0]
    what = ", ".join(
        str(part)
        for part in (run.loss or run.contender, run.experiment.dataset, run.experiment.network)
        if part
    )
    return SweepSection(
        title=f"{sweep.key}: {what}",
        chart=_chart(number, sweep, what),
        table=_table(number, sweep, what),
        notes=_notes(sweep),
    )


def _chart(number: int, sweep: Sweep, what: str) -> PanelChart:
    """A panel for validation and one for test; a line per seed."""
    places = {float(place): place * 100 / (len(sweep.values) - 1) for place in range(len(sweep.values))}
    panels = [
        Curves("test", "#runs", _lines(sweep, on_test=True), text=percent(sweep.best_on_test.test.value)),
    ]
    if all(one.validation is not None for one in sweep.values):
        panels.insert(0, Curves("validation", "#runs", _lines(sweep, on_test=False)))
    chart = panel_chart(
        f"sweep-{number}",
        panels,
        title=sweep.key,
        description=f"{score_name(sweep.metric)} over {sweep.key}, {what}; the table has the numbers.",
        x_unit=sweep.key,
        y_unit=f"{score_name(sweep.metric)}, %",
        x_places=places,
    )
    ticks = [Tick(_word(one.value), round(places[float(place)], 2)) for place, one in enumerate(sweep.values)]
    return replace(chart, x_ticks=ticks)


def _lines(sweep: Sweep, *, on_test: bool) -> list[Curve]:
    seeds = list(dict.fromkeys(run.seed for one in sweep.values for run in one.runs))
    lines = []
    for seed in seeds:
        points = [
            (float(place), 100 * score)
            for place, one in enumerate(sweep.values)
            for run in one.runs
            if run.seed == seed and (score := _score(sweep, run, on_test=on_test)) is not None
        ]
        lines.append(Curve(points))
    return [line for line in lines if line.points]


def _score(sweep: Sweep, run: Outcome, *, on_test: bool) -> float | None:
    if on_test:
        return run.scores.get(sweep.metric)
    if run.result is None or run.result.validation is None:
        return None
    found = run.result.validation.to_dict().get(sweep.metric)
    return None if found is None else float(found)


def _table(number: int, sweep: Sweep, what: str) -> Table:
    printed = _printed(sweep)
    best, best_validation = sweep.best_on_test, sweep.best_on_validation
    columns = [
        Column(sweep.key),
        Column("seeds", numeric=True),
        Column("validation classes", numeric=True),
        Column("validation %", numeric=True),
        Column("interval over seeds"),
        Column("test %", numeric=True),
        Column("interval over seeds"),
        *(
            [Column("thesis, Table 14: validation %", numeric=True), Column("test %", numeric=True)]
            if printed
            else []
        ),
    ]
    rows = [
        Row(
            [
                Cell(_word(one.value), one.value if isinstance(one.value, int | float) else None),
                Cell(str(len(one.runs)), len(one.runs)),
                Cell(str(one.validation_classes or ""), one.validation_classes),
                *_mean_cells(one.validation, is_best=one is best_validation and sweep.validation_compares),
                *_mean_cells(one.test, is_best=one is best),
                *(_printed_cells(printed, one) if printed else []),
            ]
        )
        for one in sweep.values
    ]
    caption = f"{score_name(sweep.metric)} over {sweep.key}, {what}; all else equal"
    return Table(f"sweep-{number}", caption, columns, rows)


def _mean_cells(mean: Mean | None, *, is_best: bool) -> list[Cell]:
    if mean is None:
        return [Cell(""), Cell("")]
    interval = "" if mean.interval is None else f"{percent(mean.interval[0])} to {percent(mean.interval[1])}"
    return [Cell(percent(mean.value, 2), 100 * mean.value, best=is_best), Cell(interval)]


def _printed(sweep: Sweep) -> dict[float, dict[str, float]]:
    """The thesis's Table 14 by share of validation classes, where that is what was swept."""
    if sweep.key != _SPLIT or sweep.metric != "recall_at_1":
        return {}
    return {round(int(one.contender.rpartition("/")[2]) / 100, 4): one.scores for one in published(_THESIS)}


def _printed_cells(printed: dict[float, dict[str, float]], one: SweptValue) -> list[Cell]:
    scores = printed.get(round(float(one.value), 4), {}) if isinstance(one.value, int | float) else {}
    return [
        Cell(percent(scores[name], 2), 100 * scores[name]) if name in scores else Cell("")
        for name in (VALIDATION, "recall_at_1")
    ]


def _notes(sweep: Sweep) -> list[str]:
    """What can be concluded, and what cannot."""
    best, by_validation = sweep.best_on_test, sweep.best_on_validation
    notes = []
    if by_validation is not None and sweep.validation_compares:
        notes.append(f"By validation {_word(by_validation.value)} is best, by test {_word(best.value)}.")
    elif by_validation is not None:
        notes.append(
            f"By test {_word(best.value)} is best. The validation scores are over different numbers of "
            "classes, of which more are harder, and do not compare."
        )
    ahead, level = sweep.told_apart()
    if not any(sweep.difference(best, one) for one in (*ahead, *level)):
        notes.append("Without two seeds in common nothing can be said about differences.")
    elif not ahead:
        notes.append(
            f"Over these seeds no test score can be told from that of {_word(best.value)} (intervals of the "
            "differences, seed by seed, corrected for their number)."
        )
    else:
        rest = f"; {_words(level)} cannot be told from it" if level else ""
        notes.append(f"{_word(best.value)} is ahead of {_words(ahead)} on the test classes{rest}.")
    notes.append("Whoever takes the value with the best test score has chosen on the test classes.")
    if sweep.key == _SPLIT:
        notes.append("The thesis took 90/10 in that way; its figures are one run each, with BNInception.")
    return notes


def _words(values: Sequence[SweptValue]) -> str:
    return listed([_word(one.value) for one in values])


def _word(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
