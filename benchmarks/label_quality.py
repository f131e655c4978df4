"""Wrong labels: how many of them neighbours and sub-centres find, and what leaving them out is worth.

    python benchmarks/label_quality.py --set recipe.data.root=DATASETS --set recipe.network.weights=FILE
    python benchmarks/label_quality.py --page docs/results/label_quality.md   # from what is there

Runs the packaged plan ``label_quality``, going on where it was stopped, and writes ``result.json`` and a
table: precision and recall of the labels that were taken for wrong, and Recall@1 on the test classes after a
training without them. Everything lies below ``--folder``.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nearkin.atomic import write_json, write_text
from nearkin.benchmark.execution import execute_plan
from nearkin.benchmark.plan import Plan, packaged_plans
from nearkin.benchmark.watching import BoardDisplay
from nearkin.protocols.noisy_labels import QUALITY
from nearkin.recipe import override, read_toml
from nearkin.tournament.outcomes import read_outcomes

PLAN = "label_quality"
CLEANED = ("none", "neighbours", "sub_centres")

Key = tuple[str, str, float]
"""A loss, the kind of noise, and its share."""


def plan_of(settings: Sequence[str]) -> Plan:
    """The packaged plan with other settings."""
    values = override(read_toml(packaged_plans()[PLAN], kind="plan"), settings)
    return Plan.parse({"name": PLAN, **values})


def rows(folder: Path) -> list[dict[str, Any]]:
    """What every run found, in plain values."""
    found = []
    for outcome in read_outcomes([folder]).outcomes:
        if outcome.kind != "run" or outcome.result is None or outcome.path is None:
            continue
        protocol = outcome.result.recipe["protocol"]
        file = outcome.path / QUALITY
        found.append(
            {
                "loss": outcome.loss,
                "noise": protocol.get("noise", "uniform"),
                "share": protocol.get("share", 0.2),
                "clean": protocol.get("clean") or "none",
                "seed": outcome.seed,
                "recall_at_1": outcome.scores["recall_at_1"],
                "quality": json.loads(file.read_text(encoding="utf-8")) if file.exists() else None,
            }
        )
    return found


def table(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Recall@1 without cleaning and after each way, with precision and recall of what was found."""
    grouped: dict[Key, dict[str, list[Mapping[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in found:
        grouped[row["loss"], row["noise"], row["share"]][row["clean"]].append(row)
    titles = ["all labels, R@1"]
    for name in CLEANED[1:]:
        titles += [f"{name.replace('_', '-')}: precision", "recall", "R@1 after"]
    lines = [f"| loss | wrong labels | {' | '.join(titles)} |", f"|---|---|{'---:|' * len(titles)}"]
    for (loss, noise, share), ways in sorted(grouped.items()):
        cells = [_mean([row["recall_at_1"] for row in ways["none"]])]
        for name in CLEANED[1:]:
            known = [row["quality"] for row in ways[name] if row["quality"] is not None]
            cells += [_mean([one[key] for one in known]) for key in ("precision", "recall")]
            cells.append(_mean([row["recall_at_1"] for row in ways[name]]))
        lines.append(f"| {loss} | {100 * share:.0f} % {noise} | {' | '.join(cells)} |")
    return lines


def _mean(values: Sequence[float]) -> str:
    if not values:
        return "–"
    mean = f"{100 * statistics.fmean(values):.2f}"
    return mean if len(values) == 1 else f"{mean} ± {100 * statistics.stdev(values):.2f}"


def page(found: Sequence[Mapping[str, Any]]) -> str:
    """What was found, for people."""
    seeds = sorted({row["seed"] for row in found})
    lines = [
        "# Wrong labels, found and left out",
        "",
        "Test classes of CUB200-2011 after a training on labels of which a share is wrong: with all of",
        "them, and without those that none of a sample's neighbours has, or that lie far from their class's",
        f"dominant sub-centre. In per cent, mean ± deviation over seeds {', '.join(map(str, seeds))}.",
        "Made by `benchmarks/label_quality.py`.",
        "",
        *table(found),
    ]
    return "\n".join(lines) + "\n"


def parsed(arguments: list[str] | None = None) -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--folder", type=Path, default=Path("studies/label_quality"))
    parser.add_argument("--jobs", type=int, default=None)
    parser.add_argument("--page", type=Path, help="write the page of what is there, and run nothing")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options = parsed(arguments)
    if options.page is None:
        execute_plan(
            plan_of(options.settings), options.folder / "runs", jobs=options.jobs, observer=BoardDisplay()
        )
    found = rows(options.folder / "runs")
    write_json(options.folder / "result.json", {"runs": found})
    print("\n".join(table(found)))
    if options.page is not None:
        options.page.parent.mkdir(parents=True, exist_ok=True)
        write_text(options.page, page(found))


if __name__ == "__main__":
    main()
