"""Put the report together and write it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

import nearkin
from nearkin.atomic import write_text
from nearkin.observer import Observer
from nearkin.pictures.style import light_dark_css
from nearkin.tournament.report import figures, looks
from nearkin.tournament.report.audits import AuditSection, audit_section
from nearkin.tournament.report.certainty import (
    DoubtSection,
    TuningSection,
    doubt_sections,
    tuning_sections,
)
from nearkin.tournament.report.charts import DotChart, PanelChart
from nearkin.tournament.report.disclosure import Disclosure, disclosure
from nearkin.tournament.report.leaderboards import BoardSection, boards
from nearkin.tournament.report.rankings import Rankings, rankings
from nearkin.tournament.report.runs import runs_table
from nearkin.tournament.report.summary import Summary, summarise
from nearkin.tournament.report.supervision import SupervisionSection, supervision
from nearkin.tournament.report.sweeps import SweepSection, sweep_sections
from nearkin.tournament.report.tables import Table, markdown
from nearkin.tournament.report.wording import Links, count, listed
from nearkin.tournament.standings import Standings

_MADE_BY_US = '<meta name="generator" content="nearkin '
_LINKED_TABLE = re.compile(r'<a href="tables/(\w+\.(?:csv|tex))">')
_TEMPLATES = resources.files("nearkin.tournament.report") / "templates"


@dataclass(frozen=True)
class Contents:
    """Everything the templates draw."""

    title: str
    facts: list[tuple[str, str]]
    summary: Summary
    boards: list[BoardSection]
    doubts: list[DoubtSection]
    tuning: list[TuningSection]
    rankings: Rankings
    recalls: list[DotChart]
    sizes: list[PanelChart]
    networks: list[DotChart]
    sweeps: list[SweepSection]
    audit: AuditSection | None
    supervision: list[SupervisionSection]
    learning: list[PanelChart]
    costs: list[DotChart]
    cost_table: Table | None
    looks: list[looks.Look]
    disclosure: Disclosure
    runs: Table
    skipped: list[tuple[str, str]]
    has_published: bool
    version: str

    @property
    def tables(self) -> list[Table]:
        """All that is written as CSV and LaTeX."""
        found = [
            *(board.table for board in self.boards),
            *(board.published for board in self.boards),
            *(board.lead for board in self.boards),
            *(section.table for section in self.supervision),
            *(doubt.table for doubt in self.doubts),
            *(doubt.pairs for doubt in self.doubts),
            *(one.table for one in self.tuning),
            *(one.searches for one in self.tuning),
            self.rankings.table,
            self.rankings.per_experiment,
            self.rankings.records,
            *(sweep.table for sweep in self.sweeps),
            *(self.audit.tables if self.audit else ()),
            self.cost_table,
            self.disclosure.differing,
            self.disclosure.equal,
            self.disclosure.origins,
            self.runs,
        ]
        return [table for table in found if table is not None]


def write_report(
    standings: Standings,
    folder: str | os.PathLike[str],
    *,
    pictures: bool = True,
    observer: Observer | None = None,
) -> Path:
    """Write ``report.html``, ``report.md`` and ``tables/`` (CSV and LaTeX) into a folder.

    The page needs no network and no other file; its links lead to the run directories by their place relative
    to the folder. Tables that an earlier report wrote there and this one does not have are deleted. With
    pictures, the best and the worst network of each data set are run over the test images once more, and the
    best one's ``evaluation.json`` is made if it is not there; where images or networks are missing the page
    says so.

    Args:
        standings: The standings from :func:`nearkin.tournament.rank_outcomes`.
        folder: Made if it is not there; files of the same names are replaced.
        pictures: Draw galleries, maps and confusions, which takes a while.
        observer: Hears what is being done.

    Returns:
        The page.
    """
    folder = Path(folder)
    observer = observer or Observer()
    contents = _contents(standings, folder, pictures, observer)
    environment = _environment()
    page = folder / "report.html"
    before = _tables_of(page)
    files = {f"{table.name}.csv": table.to_csv() for table in contents.tables}
    files |= {f"{table.name}.tex": table.to_latex() for table in contents.tables}
    for name, text in files.items():
        write_text(folder / "tables" / name, text)
    write_text(folder / "report.md", environment.get_template("report.md.j2").render(report=contents))
    write_text(page, environment.get_template("report.html.j2").render(report=contents))
    for name in before.difference(files):
        (folder / "tables" / name).unlink(missing_ok=True)
    observer.end()
    return page


def _tables_of(page: Path) -> set[str]:
    """The files that an earlier report, if there is one, wrote beside its page, which links them all."""
    text = page.read_text(encoding="utf-8", errors="replace") if page.is_file() else ""
    return set(_LINKED_TABLE.findall(text)) if _MADE_BY_US in text else set()


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("nearkin.tournament.report"),
        autoescape=select_autoescape(("html.j2", "html")),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["markdown"] = markdown
    style, script = ((_TEMPLATES / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    environment.globals |= {"style": style.replace("/* COLOURS */", light_dark_css()), "script": script}
    return environment


def _contents(standings: Standings, folder: Path, pictures: bool, observer: Observer) -> Contents:
    links = Links(standings, folder)
    observer.stage("writing the report")
    return Contents(
        title=_title(standings),
        facts=_facts(standings),
        summary=summarise(standings),
        boards=boards(standings, links),
        doubts=doubt_sections(standings, links),
        tuning=tuning_sections(standings, links),
        rankings=rankings(standings, links),
        recalls=figures.recall_charts(standings, links),
        sizes=figures.size_charts(standings, links),
        networks=figures.network_charts(standings, links),
        sweeps=sweep_sections(standings),
        audit=audit_section(standings, links),
        supervision=supervision(standings, links),
        learning=figures.learning_charts(standings, links),
        costs=figures.cost_charts(standings, links),
        cost_table=figures.cost_table(standings, links),
        looks=looks.looks(standings, links, observer) if pictures else [],
        disclosure=disclosure(standings.outcomes),
        runs=runs_table(standings, links),
        skipped=[(links.relative(skipped.path), skipped.reason) for skipped in standings.skipped],
        has_published=any(place.published for board in standings.leaderboards for place in board.places),
        version=nearkin.__version__,
    )


def _title(standings: Standings) -> str:
    """The data sets by their bare names; what changes them is said further down."""
    data_sets = dict.fromkeys(board.experiment.dataset.partition(" (")[0] for board in standings.leaderboards)
    return f"A tournament of losses on {listed(list(data_sets), 3)}"


def _facts(standings: Standings) -> list[tuple[str, str]]:
    """The size of the tournament, as numbers with their nouns."""
    outcomes = standings.outcomes
    numbers = [
        (len({o.contender for o in outcomes if o.kind != "baseline"}), "loss", "losses"),
        (len(standings.leaderboards), "experiment", "experiments"),
        (sum(o.kind == "run" for o in outcomes), "run", "runs"),
        (len({o.contender for o in outcomes if o.kind == "baseline"}), "baseline", "baselines"),
        (sum(o.kind == "published" for o in outcomes), "published result", "published results"),
    ]
    facts = [tuple(count(*number).split(" ", 1)) for number in numbers if number[0]]
    return [(number, noun) for number, noun in facts]
