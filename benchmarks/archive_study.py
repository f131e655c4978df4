"""A study as three files: its report, one CSV of all runs, one archive of their recipes.

``python benchmarks/archive_study.py FOLDER docs/results/STUDY`` reads what ``nearkin benchmark`` and
``nearkin tournament`` wrote (``runs/``, ``baselines/``, ``report.html``) and writes ``report.html`` without
its links into those folders, ``runs.csv`` and ``recipes.zip``.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

SCORES = (
    "recall_at_1",
    "recall_at_2",
    "recall_at_4",
    "recall_at_8",
    "mean_reciprocal_rank",
    "map_at_r",
    "r_precision",
)
COLUMNS = (
    "kind",
    "contender",
    "dimensions",
    "seed",
    "terms",
    "terms_key",
    "epoch",
    *(f"test_{score}" for score in SCORES),
    "test_queries",
    *(f"validation_{score}" for score in SCORES),
    "validation_queries",
    "training_seconds",
    "peak_memory_bytes",
    "recipe",
)


def terms_key(recipe: dict[str, Any]) -> str:
    """What a recipe says beside its loss, embedding size and seed, as twelve digits.

    Runs with one key were trained on equal terms, down to the sampler.
    """
    network = {key: value for key, value in recipe["network"].items() if key != "embedding_dim"}
    terms = {key: value for key, value in recipe.items() if key not in ("loss", "seed")} | {
        "network": network
    }
    return hashlib.sha256(json.dumps(terms, sort_keys=True).encode()).hexdigest()[:12]


def row(folder: Path) -> dict[str, Any]:
    """One run or baseline as a line of the CSV; what it does not have stays empty."""
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    cost = json.loads((folder / "cost.json").read_text(encoding="utf-8"))
    recipe, baseline = result["recipe"], result.get("baseline")
    scores = {
        f"{split}_{name}": (result[split] or {}).get(name, "")
        for split in ("test", "validation")
        for name in (*SCORES, "queries")
    }
    return {
        "kind": "baseline" if baseline else "run",
        "contender": baseline["name"] if baseline else recipe["loss"]["name"],
        "dimensions": recipe["network"]["embedding_dim"],
        "seed": "" if baseline else recipe["seed"],
        "terms": recipe["terms"],
        "terms_key": terms_key(recipe),
        "epoch": result.get("selection", {}).get("epoch", ""),
        **scores,
        "training_seconds": cost.get("training_seconds", ""),
        "peak_memory_bytes": cost.get("peak_memory_bytes", ""),
        "recipe": "" if baseline else f"{folder.name}.toml",
    }


def write_rows(folders: list[Path], path: Path) -> None:
    """One CSV, runs before baselines, in the order of names, sizes and seeds."""
    rows = sorted(
        map(row, folders),
        key=lambda one: (one["kind"] != "run", one["contender"], one["dimensions"], one["seed"]),
    )
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def write_recipes(folders: list[Path], path: Path) -> None:
    """One archive whose bytes depend on the recipes only."""
    with zipfile.ZipFile(path, "w") as archive:
        for folder in sorted(folders):
            entry = zipfile.ZipInfo(f"{folder.name}.toml", date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, (folder / "recipe.toml").read_bytes())


def standalone(report: str) -> str:
    """The report without links into folders that are not kept."""
    report = re.sub(r'<p class="files">.*?</p>', "", report, flags=re.DOTALL)
    report = re.sub(r'<span class="links">.*?</span>', "", report, flags=re.DOTALL)
    report = re.sub(r' href="(?:runs|baselines|tables)/[^"]*"', "", report)
    kept = 'Every run is a line of <a href="runs.csv">runs.csv</a>; <a href="recipes.zip">recipes.zip</a>.'
    return re.sub(r"The same in <a href=\"report\.md\">.*?(?=</footer>)", kept, report, flags=re.DOTALL)


def archive(study: Path, target: Path) -> None:
    """Write the three files of a study."""
    runs = sorted(path.parent for path in study.glob("runs/*/result.json"))
    baselines = sorted(path.parent for path in study.glob("baselines/*/*/result.json"))
    target.mkdir(parents=True, exist_ok=True)
    write_rows(runs + baselines, target / "runs.csv")
    write_recipes(runs, target / "recipes.zip")
    report = (study / "report.html").read_text(encoding="utf-8")
    (target / "report.html").write_text(standalone(report), encoding="utf-8")


if __name__ == "__main__":
    archive(Path(sys.argv[1]), Path(sys.argv[2]))
