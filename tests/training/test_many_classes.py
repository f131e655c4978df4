"""A million classes, end to end: the recipe of docs/many_classes.md."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from running import execute, new_run

from nearkin.recipe import Recipe, override
from nearkin.training import Run

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAGE = Path(__file__).parents[2] / "docs" / "many_classes.md"


def recipe_text() -> str:
    return re.search(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[1]


def size_of(folder: Path) -> int:
    total = 0
    for file in folder.rglob("*"):
        try:
            total += file.stat().st_size if file.is_file() else 0
        except FileNotFoundError:  # moved in the meantime  # noqa: PERF203
            continue
    return total


def test_the_recipe_of_the_page_trains_on_less(tmp_path):
    small = ["data.num_classes=2000", "data.test_classes=50", "sampler.batch_size=64", "sampler.batches=6"]
    recipe = Recipe.parse(override(tomllib.loads(recipe_text()), [*small, "loss.storage=bfloat16"]))
    result = execute(new_run(tmp_path / "run", recipe))
    assert result is not None
    assert Run.existing(tmp_path / "run").metrics()[-1]["loss"] > 0


@pytest.mark.slow
def test_a_hundred_steps_of_a_million_classes(tmp_path):
    """The run directory stays under twice the size of the proxies, at every moment."""
    recipe, run = tmp_path / "million.toml", tmp_path / "run"
    recipe.write_text(recipe_text(), encoding="utf-8")
    command = [sys.executable, "-m", "nearkin", "train", str(recipe), "-o", str(run)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    largest = 0
    while process.poll() is None:
        largest = max(largest, size_of(run))
        time.sleep(0.05)
    assert process.returncode == 0
    proxies = 1_000_000 * 128 * 4
    print(f"the run directory held at most {largest / proxies:.2f} times the proxies")
    assert proxies < largest < 2 * proxies
    assert Run.existing(run).result.test.recall_at[1] > 0.5
