from __future__ import annotations

import csv
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from filelock import FileLock
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from nearkin.protocols import execute
from nearkin.recipe import Recipe
from nearkin.recipe.starting_point import StartingPoint
from nearkin.tournament.baselines import run_baselines
from nearkin.tournament.outcomes import Experiment, Outcome, read_outcomes
from nearkin.tournament.ranking import rank_outcomes, rank_published
from nearkin.tournament.report import write_report
from nearkin.training import Run

QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
HOSTILE = '<img src=x onerror="document.title=1">&'
PAGES = ("runs", "published", "papers", "beside", "hostile")
WITHOUT_IMAGES = {"published", "papers", "beside"}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        reason = "needs Chromium on the PATH to open the report in"
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI {reason}")
        pytest.skip(reason)
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=list(QUIET))
        yield launched
        launched.close()


def train(folder: Path, recipe: dict) -> Recipe:
    parsed = Recipe.parse(recipe)
    task = parsed.build()
    execute(task, Run.open(folder, task.description))
    return parsed


def glyph_runs(folder: Path, glyphs_root: Path) -> Path:
    data = {"name": "glyphs", "root": str(glyphs_root), "num_classes": 40, "images_per_class": 6, "size": 16}
    network = {"name": "convnet", "size": 16, "width": 4}
    plan = [
        ("contrastive", 8, 0, "fixed_validation"),
        ("contrastive", 8, 1, "fixed_validation"),
        ("npair", 8, 0, "fixed_validation"),
        ("contrastive", 16, 0, "fixed_validation"),
        ("npair", 16, 0, "fixed_validation"),
        ("npair", 16, 0, "standard_best_on_test"),
    ]
    for loss, size, seed, protocol in plan:
        recipe = train(
            folder / f"{loss} {size} {seed} {protocol}",
            {
                "seed": seed,
                "data": data,
                "network": network | {"embedding_dim": size},
                "loss": {"name": loss},
                "sampler": {"batch_size": 20},
                "training": {"epochs": 1},
                "protocol": {"name": protocol},
            },
        )
        if (seed, protocol) == (0, "fixed_validation") and loss == "npair":
            run_baselines(StartingPoint(recipe), folder / "baselines", names=["raw_pixels", "pca"])
    return folder


def hostile_run(folder: Path) -> Path:
    """A run on images of classes whose names are code."""
    draws = np.random.default_rng(0)
    for number in range(8):
        home = folder / "images" / f"{number}{HOSTILE}"
        home.mkdir(parents=True)
        for image in range(4):
            pixels = draws.integers(0, 255, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(home / f"{image}.png")
    train(
        folder / "runs" / f"run {HOSTILE}",
        {
            "data": {"name": "folder", "root": str(folder / "images")},
            "network": {"name": "convnet", "size": 16, "width": 4, "embedding_dim": 8, "channels": 3},
            "loss": {"name": "contrastive"},
            "sampler": {"batch_size": 8, "images_per_class": 4},
            "training": {"epochs": 1},
            "protocol": {"name": "standard"},
        },
    )
    return folder / "runs"


def published_configurations() -> list[Outcome]:
    """Scores, made up, of runs on a configuration that others reported figures for."""
    experiment = Experiment("cub200", "bninception", 512, "fixed_validation")
    made_up = {"soft_triple": 0.641, "proxy_anchor": 0.662, "nca": 0.5}
    return [
        Outcome(experiment, loss, "run", {"recall_at_1": recall, "recall_at_2": 0.8}, f"runs/{loss}", seed=0)
        for loss, recall in made_up.items()
    ]


@pytest.fixture(scope="module")
def reports(glyphs_root: Path) -> dict[str, Path]:
    """Reports of real runs, of published results, and of names that are code, for all test processes."""
    folder = glyphs_root.with_name("reports")
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            write_reports(folder, glyphs_root)
    return {name: folder / f"{name} report" / "report.html" for name in PAGES}


def write_reports(folder: Path, glyphs_root: Path) -> None:
    write_report(rank_published("thesis"), folder / "published report")
    write_report(rank_published("papers"), folder / "papers report")
    write_report(rank_outcomes(published_configurations()), folder / "beside report", pictures=False)
    for name, runs in {
        "runs": glyph_runs(folder / "runs", glyphs_root),
        "hostile": hostile_run(folder / "hostile"),
    }.items():
        reading = read_outcomes([runs])
        standings = rank_outcomes(reading.outcomes, skipped=reading.skipped)
        write_report(standings, folder / f"{name} report")


class Visit:
    """A page in the browser, and what it did that a page from disk must not."""

    def __init__(self, browser: Browser, file: Path, width: int = 1280, scheme: str = "light") -> None:
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        self.page: Page = context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri())

    def open_everything(self) -> None:
        self.page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_complains_of_nothing_asks_for_nothing_and_shows_all_its_images(browser, reports, name):
    visit = Visit(browser, reports[name])
    visit.open_everything()
    assert visit.complaints == []
    assert [url for url in visit.requests if not url.startswith("data:")] == [reports[name].as_uri()]
    broken = "[...document.images].filter(image => !(image.complete && image.naturalWidth)).length"
    assert visit.page.evaluate(broken) == 0
    assert all(visit.page.evaluate("[...document.images].map(image => image.alt)"))
    shown = visit.page.evaluate("document.images.length")
    assert shown == 0 if name in WITHOUT_IMAGES else shown > 20
    assert reports[name].stat().st_size < 5_000_000


@pytest.mark.parametrize("name", PAGES)
def test_nothing_overflows_on_a_phone(browser, reports, name):
    visit = Visit(browser, reports[name], width=380)
    visit.open_everything()
    assert visit.page.evaluate("document.scrollingElement.scrollWidth") <= 380


CONTRASTS = """
() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const luminance = (colour) => colour.slice(0, 3).map((part) => part / 255)
    .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, index) => sum + part * [0.2126, 0.7152, 0.0722][index], 0);
  const behind = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const colour = rgba(getComputedStyle(each).backgroundColor);
      if (colour[3] > 250) return colour;
    }
    return [255, 255, 255, 255];
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const words = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!words || !element.checkVisibility() || element.closest("script, title")) continue;
    const style = getComputedStyle(element);
    const ink = rgba(element instanceof SVGElement ? style.fill : style.color);
    const [light, dark] = [luminance(ink), luminance(behind(element))].sort((a, b) => b - a);
    found.push([(light + 0.05) / (dark + 0.05), element.outerHTML.slice(0, 120)]);
  }
  return found;
}
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_word_stands_out_from_its_background(browser, reports, scheme):
    visit = Visit(browser, reports["runs"], scheme=scheme)
    visit.open_everything()
    contrasts = visit.page.evaluate(CONTRASTS)
    assert len(contrasts) > 300
    assert [entry for entry in contrasts if entry[0] < 4.5] == []


def background(page: Page) -> str:
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_the_toggle_turns_the_colours_round_and_paper_is_always_light(browser, reports):
    visit = Visit(browser, reports["published"], scheme="dark")
    dark = background(visit.page)
    visit.page.click("#theme")
    light = background(visit.page)
    visit.page.click("#theme")
    assert background(visit.page) == dark != light
    visit.page.emulate_media(media="print", color_scheme="dark")
    assert background(visit.page) == light
    assert visit.page.pdf().startswith(b"%PDF")
    assert visit.complaints == []


def column(page: Page, table: str, number: int) -> list[str]:
    cells = f"#{table} tbody td:nth-child({number})"
    return page.eval_on_selector_all(cells, "cells => cells.map(cell => cell.dataset.sort)")


def test_tables_sort_by_a_click_both_ways_with_empty_cells_last(browser, reports):
    page = Visit(browser, reports["runs"]).page
    table = "table-leaderboard_1"
    titles = page.eval_on_selector_all(f"#{table} thead th", "cells => cells.map(cell => cell.innerText)")
    score, name, rank = (1 + titles.index(title) for title in ("Recall@1 %", "loss", "rank"))
    before = [float(value) for value in column(page, table, score)]
    assert len(before) == 4
    header = f"#{table} thead th:nth-child({{}})"
    page.click(header.format(score) + " button")
    assert [float(value) for value in column(page, table, score)] == sorted(before, reverse=True)
    assert page.get_attribute(header.format(score), "aria-sort") == "descending"
    page.click(header.format(score) + " button")
    assert [float(value) for value in column(page, table, score)] == sorted(before)
    page.click(header.format(name) + " button")
    assert column(page, table, name) == sorted(column(page, table, name))
    assert page.get_attribute(header.format(score), "aria-sort") is None
    page.click(header.format(rank) + " button")
    assert column(page, table, rank) == ["1", "2", "", ""] or column(page, table, rank) == [
        "1.0",
        "2.0",
        "",
        "",
    ]
    page.click(header.format(rank) + " button")
    assert column(page, table, rank)[2:] == ["", ""]


@pytest.mark.parametrize("name", PAGES)
def test_every_link_leads_somewhere(browser, reports, name):
    page = Visit(browser, reports[name]).page
    targets = set(page.eval_on_selector_all("a", "links => links.map(link => link.getAttribute('href'))"))
    places = set(page.eval_on_selector_all("[id]", "places => places.map(place => place.id)"))
    for target in targets:
        if target.startswith("#"):
            assert target[1:] in places
        else:
            assert (reports[name].parent / unquote(target)).exists(), target


def test_every_run_and_every_number_of_a_leaderboard_is_linked(browser, reports):
    visit = Visit(browser, reports["runs"])
    runs = [file.parent for file in (reports["runs"].parents[1] / "runs").rglob("result.json")]
    links = visit.page.eval_on_selector_all(
        "#table-runs a", "links => links.map(a => a.getAttribute('href'))"
    )
    found = {(reports["runs"].parent / unquote(link)).resolve() for link in links}
    assert len(runs) == 6 + 4
    assert {run.resolve() for run in runs} <= found
    unlinked = visit.page.eval_on_selector_all(
        "#leaderboard table[id^=table-leaderboard] td",
        """cells => cells.filter(cell => {
            const title = cell.closest("table").tHead.rows[0].cells[cell.cellIndex].innerText;
            return title.includes("@") && !cell.querySelector("a");
        }).length""",
    )
    assert unlinked == 0


def test_a_link_into_a_closed_part_opens_it(browser, reports):
    page = Visit(browser, reports["runs"]).page
    closed = page.locator("#leaderboard > details").nth(1)
    assert closed.get_attribute("open") is None
    page.evaluate("id => { location.hash = id }", closed.get_attribute("id"))
    page.wait_for_function("id => document.getElementById(id).open", arg=closed.get_attribute("id"))


def test_names_that_are_code_are_shown_and_not_run(browser, reports):
    page = Visit(browser, reports["hostile"]).page
    assert page.title().startswith("A tournament of losses on ")
    assert page.locator("img[onerror], img[src=x]").count() == 0
    assert HOSTILE in page.inner_text("#looks")
    text = (reports["hostile"].parent / "report.md").read_text(encoding="utf-8")
    assert "<img" not in text


def test_choosing_on_test_is_labelled_wherever_it_appears(browser, reports):
    page = Visit(browser, reports["runs"])
    page.open_everything()
    words = page.page.inner_text("body")
    labels = r"standard_best_on_test \(epoch chosen on test\)|\(standard_best_on_test\)"
    assert len(re.findall(labels, words)) > 3
    unlabelled = re.sub(f"{labels}|npair 16 0 standard_best_on_test", "", words)  # a run may be called so
    assert "standard_best_on_test" not in unlabelled
    assert "Recall@1 on TEST classes" in words


def test_tables_are_there_as_files_and_in_markdown(reports):
    folder = reports["runs"].parent
    names = {file.stem for file in (folder / "tables").glob("*.csv")}
    assert {"leaderboard_1", "lead_1", "rankings", "records", "cost", "differs", "equal", "runs"} <= names
    assert names == {file.stem for file in (folder / "tables").glob("*.tex")}
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert text.startswith("# A tournament of losses on glyphs")
    assert "## Leaderboard" in text
    table_11 = (reports["published"].parent / "tables" / "rankings.csv").read_text(encoding="utf-8")
    assert table_11.splitlines()[1].startswith("proxy_anchor,12.0,1.0,0.0,12")


def test_pictures_can_be_left_out_and_what_is_missing_is_said(browser, reports, tmp_path):
    folder = reports["hostile"].parents[1] / "hostile"
    copied = shutil.copytree(folder / "runs", tmp_path / "runs")
    shutil.rmtree(next(copied.iterdir()) / "checkpoint")
    standings = rank_outcomes(read_outcomes([copied]).outcomes)
    page = Visit(browser, write_report(standings, tmp_path / "report")).page
    assert "Nothing to see here" in page.inner_text("#looks")
    without = write_report(standings, tmp_path / "without", pictures=False)
    assert 'id="looks"' not in without.read_text(encoding="utf-8")


def test_a_run_stands_beside_every_figure_published_for_its_configuration(browser, reports):
    table = reports["beside"].parent / "tables" / "published_1"
    rows = list(csv.DictReader(table.with_suffix(".csv").read_text(encoding="utf-8").splitlines()))
    assert [(row["loss"], row["published %"], row["difference, points"]) for row in rows[-3:]] == [
        ("soft_triple", "66.76", "-2.66"),
        ("soft_triple", "66.12", "-2.02"),
        ("soft_triple", "65.4", "-1.3"),
    ]
    assert rows[-1]["reported by"] == "Qian et al., 2019, ICCV"
    assert rows[-1]["terms"] == "read in Table 2 of Kim et al., 2020, CVPR"
    assert rows[-3]["terms"] == "epoch chosen on test"
    line = r"soft\_triple & 64.10 & 65.40 & $-$1.3 & Qian et al., 2019, ICCV & read in Table 2"
    assert line in table.with_suffix(".tex").read_text(encoding="utf-8")
    text = reports["beside"].with_suffix(".md").read_text(encoding="utf-8")
    assert "| 64.10 | 65.40 | −1.3 | Qian et al., 2019, ICCV | read in Table 2 of Kim et al." in text
    visit = Visit(browser, reports["beside"])
    shown = visit.page.get_by_role("row").filter(has_text="Qian et al.")
    assert shown.is_visible()  # without a click
    assert shown.inner_text().split("\t")[1:4] == ["64.10", "65.40", "−1.3"]
    assert visit.page.get_by_role("cell", name="65.40–66.76").is_visible()
