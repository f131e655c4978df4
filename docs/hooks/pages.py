"""What mkdocs builds beside the pages that people write: a page per loss with its pictures, tables, results.

Everything comes from where it already is: equations and advice from docstrings, costs from
``benchmarks/results``, published scores from the thesis's table, pictures from ``nearkin.explain``.
"""

from __future__ import annotations

import csv
import html
import os
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from equations import equation_html, replace_blocks
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from reference import ROOMS, api_pages, api_table, recipe_reference
from seeds import seeds_table

from nearkin import losses
from nearkin.explain import (
    PRINTED,
    LossChoice,
    Measurement,
    animate,
    draw_forces,
    draw_similarities,
    draw_weights,
    every_loss,
    layouts,
    measure_choice,
    structured_batch,
)
from nearkin.explain.pair_weighting import check_weighs_pairs
from nearkin.explain.similarities import CHANGES, differences, in_words, mark

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))

import figures  # noqa: E402 - where the benchmarks are
import quote  # noqa: E402

PUBLISHED = ROOT / "src" / "nearkin" / "tournament" / "published"
COSTS = {180: "losses_b180", 1024: "losses_b1024"}
"""Results of the benchmarks that the tables quote, by size of the batch."""
PICTURES = os.environ.get("NEARKIN_DOCS_PICTURES", "1") != "0"
"""Drawing takes most of the time of a build; 0 leaves the pictures empty, to look at text quickly."""

_EMPTY = {"svg": b'<svg xmlns="http://www.w3.org/2000/svg"/>', "html": b"<!doctype html><title>empty</title>"}

_SHOWN_LAYOUTS = {"triplet": "a negative about as near as the positive", "hard": "a negative in between"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the losses and the results into the navigation."""
    of_losses: list[Any] = ["losses/index.md", *(f"losses/{name}.md" for name in losses.names())]
    results = sorted(path.name for path in (Path(config.docs_dir) / "results").glob("*.md"))
    for entry in config.nav or []:
        if "Losses" in entry:
            entry["Losses"] = of_losses
        if "API" in entry:
            entry["API"] = ["api.md", "api/nearkin.md", *(f"api/{room}.md" for room in ROOMS)]
    if results and config.nav:
        config.nav.insert(-1, {"Results": [f"results/{name}" for name in results]})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and pictures that are made here."""
    add = _adder(files, config)
    add("losses/index.md", _index())
    add("recipe.md", recipe_reference())
    for path, page in api_pages():
        add(path, page)
    for choice in every_loss():
        add(f"losses/{choice.name}.md", _page(choice))
        _add_pictures(add, choice)
    toy = layouts.find("clusters")
    add("losses/moving.html", _drawn("html", lambda path: animate(every_loss(), toy, path)))
    add("pictures/similarities.svg", _drawn("svg", lambda path: draw_similarities(_table_1(), path)))
    triplet = layouts.find("triplet")
    add("pictures/forces.svg", _drawn("svg", lambda path: draw_forces(every_loss(), triplet, path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in tables and equations."""
    for marker, table in _TABLES.items():
        if marker in markdown:
            markdown = markdown.replace(marker, table())
    return replace_blocks(markdown)


def _adder(files: Files, config: MkDocsConfig) -> Callable[[str, str | bytes], None]:
    def add(path: str, content: str | bytes) -> None:
        files.append(File.generated(config, path, content=content))

    return add


def _drawn(extension: str, draw: Callable[[Path], object]) -> bytes:
    if not PICTURES:
        return _EMPTY[extension]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"picture.{extension}"
        draw(path)
        return path.read_bytes()


def _add_pictures(add: Callable[[str, str | bytes], None], choice: LossChoice) -> None:
    for layout in _SHOWN_LAYOUTS:
        points = layouts.find(layout)
        picture = _drawn("svg", lambda path, points=points: draw_forces([choice], points, path))
        add(f"losses/{choice.name}-{layout}.svg", picture)
    batch = structured_batch()
    if _why_no_weights(choice) is None:
        add(
            f"losses/{choice.name}-weights.svg",
            _drawn("svg", lambda path: draw_weights([choice], batch, path)),
        )


def _page(choice: LossChoice) -> str:
    """A loss: equation, advice, pictures, cost, published scores, hyperparameters, source."""
    about = losses.describe(choice.name)
    equation, *notes = about.equation.split("\n\n")
    parts = [f"# {about.name}", about.summary, equation_html(equation), *notes]
    parts += ["## When to use it", about.when_to_use]
    if about.relations:
        parts += ["## Relations to other losses", about.relations]
    parts += ["## What it does to points", _forces(choice)]
    parts += ["## What it does to pairs", _weights(choice)]
    parts += ["## Cost", _cost(about.name)]
    parts += ["## Published scores", _published(about.name), _in_papers(about.name)]
    parts += ["## Hyperparameters", _hyperparameters(about)]
    parts += [
        "## In code",
        _code(about),
        f"Class: `nearkin.losses.{about.class_name}`",
        f"## Source\n\n{about.source}",
    ]
    return "\n\n".join(parts) + "\n"


def _forces(choice: LossChoice) -> str:
    pictures = "\n".join(
        f"![Forces of {choice.name} with {words}]({choice.name}-{layout}.svg){{ width=49% }}"
        for layout, words in _SHOWN_LAYOUTS.items()
    )
    left, right = _SHOWN_LAYOUTS.values()
    return (
        f"{pictures}\n\nOne step of gradient descent on the unit circle: {left} (left) and {right} (right). "
        "The longest arrow of a picture is equally long in all; the number says how long it really is. "
        "[All losses in motion](moving.html). "
        f"Yours: `nearkin explain forces {choice.name} --layout points.csv`."
    )


def _why_no_weights(choice: LossChoice) -> str | None:
    """Why a loss has no ∂L/∂S to draw, if it has none."""
    try:
        check_weighs_pairs(choice.build(2, 2))
    except ValueError as error:
        return str(error)
    return None


def _weights(choice: LossChoice) -> str:
    reason = _why_no_weights(choice)
    if reason is not None:
        return f"There is no one matrix ∂L/∂S to show: {reason}."
    return (
        f"![Pair weights of {choice.name}]({choice.name}-weights.svg){{ width=75% }}\n\n"
        f"Yours: `nearkin explain weights {choice.name} --run runs/birds`."
    )


def _costs() -> dict[int, figures.Result]:
    """What was measured, and not by code that has changed since."""
    found = {size: figures.current(name) for size, name in COSTS.items()}
    return {size: result for size, result in found.items() if result}


def _benchmarked_as(name: str) -> str:
    """The benchmark's ``npair`` is one pair per class; our default is its ``npair_all``."""
    return "npair_all" if name == "npair" else name


def _cost(name: str) -> str:
    rows = []
    for size, result in _costs().items():
        row = _benchmarked_as(name)
        if row in (found.name for found in result.rows):
            rows.append(
                f"| {size:,} | {quote.shown(result, [row], figures.OURS, figures.FLOOR)} | "
                f"{_shown_cost(result, row)} | {_beside_pml(result, row)} |"
            )
    if not rows:
        return f"{figures.NOT_MEASURED.capitalize()}."
    head = "| batch | of its bare matrix products | per step | faster than PML |\n|---:|---:|---:|---:|"
    return (
        f"{head}\n"
        + "\n".join(rows)
        + "\n\nForward and backward, mining included, without a GPU: medians over fresh processes, with "
        "the lowest and highest. `benchmarks/results` names the machine, has every row and sample, and says "
        "where the two sides do not compute quite the same."
    )


def _beside_pml(result: figures.Result, row: str) -> str:
    has_counterpart = "PML" in result.row(row).samples
    return quote.shown(result, [row], "PML", figures.OURS) if has_counterpart else "–"


def _recalls(name: str = "thesis_recall.csv") -> list[dict[str, str]]:
    with (PUBLISHED / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _published(name: str) -> str:
    rows = [row for row in _recalls() if row["loss"] == name and row["k"] == "1"]
    if not rows:
        return "The thesis has none for this loss."
    sizes = sorted({int(row["embedding_dim"]) for row in rows})
    cells: dict[tuple[str, str], dict[int, str]] = {}
    for row in rows:
        cells.setdefault((row["dataset"], row["network"]), {})[int(row["embedding_dim"])] = row[
            "recall_percent"
        ]
    head = "| data set | network | " + " | ".join(f"{size}-d" for size in sizes) + " |"
    line = "|---|---|" + "---:|" * len(sizes)
    body = [
        f"| {dataset} | {network} | " + " | ".join(found.get(size, "–") for size in sizes) + " |"
        for (dataset, network), found in cells.items()
    ]
    return (
        "\n".join([head, line, *body])
        + "\n\nRecall@1 in percent, by embedding size, as the thesis printed it: one "
        "run each, its epoch chosen on the test classes."
    )


def _in_papers(name: str) -> str:
    rows = [row for row in _recalls("papers_recall.csv") if row["loss"] == name and row["k"] == "1"]
    if not rows:
        return ""
    head = "| data set | network | size | Recall@1 % | reported by | terms |\n|---|---|---:|---:|---|---|"
    body = [
        f"| {row['dataset']} | {row['network']} | {row['embedding_dim']} | {row['recall_percent']} | "
        f"{row['source']} | {', '.join(filter(None, (row['note'], 'read in ' + row['read_in'])))} |"
        for row in rows
    ]
    return "\n".join([head, *body]) + "\n\nAs papers of the loss report it, each on its own terms."


def _hyperparameters(about: losses.Description) -> str:
    rows = [
        f"| `{keyword}` | `{default!r}` | {about.arguments.get(keyword, '').replace('|', chr(92) + '|')} |"
        for keyword, default in about.defaults.items()
    ]
    return "\n".join(["| keyword | default | meaning |", "|---|---|---|", *rows])


def _code(about: losses.Description) -> str:
    sizes = ", num_classes=8, embedding_dim=128" if about.needs_classes else ""
    return f"""```python
import torch
from nearkin import losses

embeddings = torch.randn(32, 128, requires_grad=True)
labels = torch.arange(32) % 8
loss = losses.build("{about.name}"{sizes})
loss(embeddings, labels).backward()
```"""


def _index() -> str:
    rows = [
        f"| [{name}]({name}.md) | {html.escape(losses.describe(name).summary, quote=False)} |"
        for name in losses.names()
    ]
    return "\n".join(
        [
            "# Losses",
            "",
            "Each page is made from the loss's docstring, its measured cost and the scores of the thesis.",
            "[See all of them move](moving.html), or [choose one](../choose.md).",
            "",
            "| loss | what it does |",
            "|---|---|",
            *rows,
            "",
        ]
    )


def _shown_cost(result: figures.Result | None, row: str) -> str:
    if result is None or row not in (found.name for found in result.rows):
        return figures.NOT_MEASURED
    found = result.value(row, figures.OURS)
    return format(found, "ms") if found else "–"


def _choice_table() -> str:
    """Every loss in a row: proxies, cost, published quality."""
    recall = {
        (row["loss"], row["dataset"], row["network"]): row["recall_percent"]
        for row in _recalls()
        if row["k"] == "1" and row["embedding_dim"] == "512"
    }
    costs = _costs()
    rows = []
    for choice in every_loss():
        name = choice.name
        shown = [_shown_cost(costs.get(size), _benchmarked_as(name)) for size in COSTS]
        scores = [recall.get((name, *where), "–") for where in _COMPARED]
        proxies = "yes" if losses.describe(name).needs_classes else "no"
        rows.append(f"| [{name}](losses/{name}.md) | {proxies} | {' | '.join(shown + scores)} |")
    columns = ["loss", "proxies", *(f"B {size:,}" for size in COSTS), *(f"{d} {n}" for d, n in _COMPARED)]
    rule = "|---|---|" + "---:|" * (len(columns) - 2)
    return "\n".join(["| " + " | ".join(columns) + " |", rule, *rows])


_COMPARED = (("cub200", "resnet50"), ("cars196", "resnet50"), ("sop", "bninception"))


@cache
def _table_1() -> tuple[Measurement, ...]:
    return tuple(measure_choice(LossChoice(name)) for name in PRINTED)


def _similarity_table() -> str:
    """Table 1, printed and measured."""
    lines = ["| loss | | " + " | ".join(CHANGES) + " |", "|---|---|" + "---|" * len(CHANGES)]
    found = []
    for measured in _table_1():
        name = measured.choice.name
        printed = PRINTED[name]
        words = " | ".join("" if change == "own" else mark(printed[change]) for change in CHANGES)
        lines.append(f"| [{name}](losses/{name}.md) | printed | {words} |")
        kinds = [("measured", measured.alone)]
        if measured.mined:
            kinds.append(("measured, with its mining", measured.mined))
        lines += [
            f"| | {what} | {' | '.join(in_words(one[change]) for change in CHANGES)} |" for what, one in kinds
        ]
        found += differences(measured)
    return (
        "\n".join(lines)
        + "\n\nWhere measurement and print differ:\n\n"
        + "\n".join(f"- {one}" for one in found)
    )


_TABLES: dict[str, Callable[[], str]] = {
    "<!-- table: api -->": api_table,
    "<!-- table: choice -->": _choice_table,
    "<!-- table: seeds -->": seeds_table,
    "<!-- table: similarities -->": _similarity_table,
}
