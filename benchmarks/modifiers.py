"""Losses × modifiers: weights from validation classes, three seeds, and the page about what came of it.

    python benchmarks/modifiers.py glyphs
    python benchmarks/modifiers.py cub --set recipe.data.root=DATASETS --set recipe.network.weights=FILE
    python benchmarks/modifiers.py --page docs/results/modifiers.md   # from all studies that are there

A study has two parts, and both go on where they were stopped. First the weight of each modifier is searched
for each loss, on validation classes: test classes stay sealed. Then the packaged plan (``nearkin benchmark
modifiers``, ``modifiers_cub``) is run with these weights. Everything lies below ``--folder``; ``--small``
tries the way through with tiny trainings.

What networks reach that are trained with fewer dimensions is read from the study's folder ``smaller``:

    nearkin benchmark modifiers_cub --set 'embedding_dims=[64]' --set 'modifiers=["none"]' -o …
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nearkin.atomic import write_json
from nearkin.benchmark.execution import execute_plan
from nearkin.benchmark.plan import Plan, packaged_plans
from nearkin.benchmark.watching import BoardDisplay
from nearkin.evaluation import Interval, mean_intervals
from nearkin.losses import Choices
from nearkin.recipe import Recipe, override, read_toml
from nearkin.recipe.searching import VALIDATION_SHARE, SearchedRecipe
from nearkin.tournament.outcomes import Outcome, read_outcomes
from nearkin.tuning.plan import SearchPlan
from nearkin.tuning.search import Search
from nearkin.workers import available_cores

PLANS = {"glyphs": "modifiers", "cub": "modifiers_cub"}
TITLES = {"glyphs": "Glyphs", "cub": "CUB200-2011, cached trunk"}
GRID = {"mixup": (0.1, 0.2, 0.4, 0.8), "s2sd": (1.0, 5.0, 20.0, 50.0), "distil": (0.003, 0.01, 0.03, 0.1)}
"""Weights that are tried; matryoshka has none."""
SMALL = ["recipe.training.epochs=1", "recipe.data.num_classes=60", "recipe.data.images_per_class=8"]
WEIGHTS = "weights.json"
NONE = "none"


def plan_of(study: str, settings: list[str], weights: Mapping[str, Mapping[str, float]]) -> Plan:
    """The packaged plan with tuned weights, by loss and modifier."""
    name = PLANS[study]
    values = override(read_toml(packaged_plans()[name], kind="plan"), settings)
    tuned = [
        {
            "where": {"loss": loss, "modifier": modifier},
            "recipe": {"loss": {modifier: {"weight": weight}}},
        }
        for loss, of_loss in weights.items()
        for modifier, weight in of_loss.items()
    ]
    return Plan.parse({"name": name, **values, "adjust": [*values.get("adjust", []), *tuned]})


def tune(
    study: str,
    settings: list[str],
    folder: Path,
    grid: Mapping[str, tuple[float, ...]],
    jobs: int | None = None,
) -> None:
    """Write the best weight of every modifier around every loss, by Recall@1 of validation classes."""
    searches = [
        (run.labels["loss"], run.labels["modifier"], run.recipe)
        for run in plan_of(study, settings, {}).runs()
        if run.labels["modifier"] in grid and run.labels["seed"] == "0"
    ]
    jobs = jobs or available_cores()
    with ProcessPoolExecutor(
        jobs,
        get_context("spawn"),  # threads of torch do not survive a fork
        initializer=torch.set_num_threads,
        initargs=(max(1, available_cores() // jobs),),
    ) as pool:
        futures = [
            pool.submit(best_weight, recipe, modifier, grid[modifier], folder / f"{loss}-{modifier}")
            for loss, modifier, recipe in searches
        ]
        found: dict[str, dict[str, float]] = defaultdict(dict)
        for (loss, modifier, _), future in zip(searches, futures, strict=True):
            found[loss][modifier] = future.result()
            print(f"{study}: {loss} with {modifier}: weight {found[loss][modifier]:g}", flush=True)
    write_json(folder.parent / WEIGHTS, dict(found))


def best_weight(recipe: Recipe, modifier: str, weights: tuple[float, ...], folder: Path) -> float:
    """The weight whose network finds validation classes best."""
    key = f"loss.{modifier}.weight"
    trials = recipe.changed({"protocol.validation_share": VALIDATION_SHARE})
    plan = SearchPlan(SearchedRecipe(trials, {key: Choices(*weights)}), sampler="grid", pruner="none")
    search = Search.open(folder, plan)
    search.run(len(weights))
    return float(search.best().values[key])


class Cell(NamedTuple):
    """One loss with one modifier.

    Attributes:
        scores: Recall@1 of each seed, by seed.
        right: of every query the share of seeds that found it, ``(Q,)``.
        labels: of the queries, ``(Q,)``.
    """

    scores: dict[int, float]
    right: Tensor
    labels: Tensor


def modifier_of(outcome: Outcome) -> str:
    """The name of what goes around the loss."""
    assert outcome.result is not None
    tables = outcome.result.recipe["loss"]
    return next((name for name, table in tables.items() if isinstance(table, Mapping)), NONE)


def cells(folder: Path) -> dict[tuple[str, str], Cell]:
    """What the runs of a study found, by loss and modifier."""
    grouped: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for outcome in read_outcomes([folder]).outcomes:
        if outcome.kind == "run":
            grouped[outcome.loss, modifier_of(outcome)].append(outcome)
    return {key: cell_of(outcomes) for key, outcomes in grouped.items()}


def cell_of(outcomes: Sequence[Outcome]) -> Cell:
    """What the seeds of one contender found."""
    found, labels = [], torch.zeros(0, dtype=torch.long)
    for outcome in outcomes:
        kept = outcome.queries()
        assert kept is not None
        values = kept[0].per_query
        assert values is not None
        found.append((values.first_rank == 1).double())
        labels = kept[1][values.indices]
    scores = {outcome.seed or 0: outcome.scores["recall_at_1"] for outcome in outcomes}
    return Cell(scores, torch.stack(found).mean(dim=0), labels)


def gain(with_it: Cell, without: Cell) -> Interval:
    """How much a modifier adds to Recall@1, in points, with an interval over test classes."""
    values = {"gain": 100 * (with_it.right - without.right)}
    return mean_intervals(values, with_it.labels)["gain"]


def table(found: Mapping[tuple[str, str], Cell]) -> list[str]:
    """Mean Recall@1 over the seeds, and what each modifier adds."""
    losses = list(dict.fromkeys(loss for loss, _ in found))
    modifiers = [NONE, *dict.fromkeys(name for _, name in found if name != NONE)]
    lines = [f"| Recall@1, % | {' | '.join(modifiers)} |", f"|---|{'---:|' * len(modifiers)}"]
    for loss in losses:
        row = []
        for modifier in modifiers:
            cell = found.get((loss, modifier))
            text = "–" if cell is None else f"{100 * statistics.fmean(cell.scores.values()):.2f}"
            if cell is not None and modifier != NONE and (loss, NONE) in found:
                change = gain(cell, found[loss, NONE])
                text += f" ({change.value:+.2f}; {change.low:+.2f} to {change.high:+.2f})"
            row.append(text)
        lines.append(f"| {loss} | {' | '.join(row)} |")
    return lines


def verdicts(found: Mapping[tuple[str, str], Cell]) -> list[str]:
    """What helps, what hurts, and what cannot be told, in sentences."""
    said: dict[str, list[str]] = {"helps": [], "hurts": [], "cannot be told from nothing": []}
    for (loss, modifier), cell in found.items():
        if modifier == NONE or (loss, NONE) not in found:
            continue
        change = gain(cell, found[loss, NONE])
        verdict = "helps" if change.low > 0 else "hurts" if change.high < 0 else "cannot be told from nothing"
        said[verdict].append(f"{modifier} around {loss}")
    return [f"- **{verdict}**: {', '.join(pairs) if pairs else 'none'}" for verdict, pairs in said.items()]


def beginnings(folder: Path) -> list[str]:
    """The first dimensions after a matryoshka beside networks that were trained with so few, or nothing.

    Args:
        folder: Of a study. ``smaller`` in it has runs of the bare losses with fewer dimensions.
    """
    if not (folder / "smaller").is_dir():
        return []
    small: dict[tuple[str, int], list[Outcome]] = defaultdict(list)
    for outcome in read_outcomes([folder / "smaller"]).outcomes:
        if outcome.result is not None:
            small[outcome.loss, outcome.result.recipe["network"]["embedding_dim"]].append(outcome)
    whole: dict[tuple[str, int], list[float]] = defaultdict(list)
    for outcome in read_outcomes([folder / "runs"]).outcomes:
        if outcome.result is not None and modifier_of(outcome) == "matryoshka":
            for size, scores in outcome.result.test_by_size.items():
                whole[outcome.loss, size].append(scores.recall_at[1])
    lines = [
        "| loss | dimensions | trained with so few, % | over classes | the first of a matryoshka, % |",
        "|---|---:|---:|---|---:|",
    ]
    for (loss, size), outcomes in small.items():
        cell, first = cell_of(outcomes), whole[loss, size]
        around = mean_intervals({"recall": 100 * cell.right}, cell.labels)["recall"]
        of_whole = f"{100 * statistics.fmean(first):.2f}" if first else "–"
        lines.append(
            f"| {loss} | {size} | {around.value:.2f} | {around.low:.2f} to {around.high:.2f} | {of_whole} |"
        )
    return ["", "The beginnings of embeddings, means over the seeds:", "", *lines]


def page(folder: Path) -> str:
    """The page, of all studies below a folder."""
    lines = [
        "# Losses × modifiers",
        "",
        "Mean Recall@1 on test classes over the seeds; in brackets what the modifier adds to the bare",
        "loss, in points, with a 95 % interval over test classes. The weight of every modifier was chosen",
        "for every loss on validation classes, all else is equal. Made by `benchmarks/modifiers.py`; nobody",
        "edits it.",
    ]
    for study, title in TITLES.items():
        found = cells(folder / study / "runs") if (folder / study / "runs").is_dir() else {}
        if not found:
            continue
        seeds = sorted({seed for cell in found.values() for seed in cell.scores})
        weights = json.loads((folder / study / WEIGHTS).read_text(encoding="utf-8"))
        lines += ["", f"## {title}", "", f"Seeds {', '.join(map(str, seeds))}.", "", *table(found), ""]
        lines += [*verdicts(found), "", "Chosen weights:", ""]
        lines += [
            f"- {loss}: {', '.join(f'{modifier} {weight:g}' for modifier, weight in of_loss.items())}"
            for loss, of_loss in weights.items()
        ]
        lines += beginnings(folder / study)
    return "\n".join(lines) + "\n"


def parsed(arguments: list[str] | None = None) -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("studies", nargs="*", choices=[[], *PLANS], help="which to carry out")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--folder", type=Path, default=Path("studies/modifiers"))
    parser.add_argument("--page", type=Path, help="write the page of all studies that are there")
    parser.add_argument("--jobs", type=int, default=None)
    parser.add_argument("--small", action="store_true", help="one epoch of few classes, one weight each")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options = parsed(arguments)
    settings = [*options.settings, *(SMALL if options.small else [])]
    grid = {name: weights[:1] for name, weights in GRID.items()} if options.small else GRID
    for study in options.studies:
        home = options.folder / study
        if not (home / WEIGHTS).exists():
            tune(study, settings, home / "tuning", grid, options.jobs)
        weights = json.loads((home / WEIGHTS).read_text(encoding="utf-8"))
        plan = plan_of(study, settings, weights)
        execute_plan(plan, home / "runs", jobs=options.jobs, observer=BoardDisplay())
    if options.page is not None:
        options.page.parent.mkdir(parents=True, exist_ok=True)
        options.page.write_text(page(options.folder), encoding="utf-8")


if __name__ == "__main__":
    main()
