"""The page about modifiers: its Python runs, its tables are recipes and plans, and it knows all of them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from nearkin.benchmark.plan import Plan
from nearkin.losses import modifiers
from nearkin.recipe import Recipe

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAGE = (Path(__file__).parents[1] / "docs" / "modifiers.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)


def test_its_python_runs_from_top_to_bottom(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    try:
        for number, code in enumerate(blocks("python")):
            exec(compile(code, f"modifiers.md block {number}", "exec"), names)
    finally:
        modifiers.unregister("shorter")
    assert len(blocks("python")) >= 3


def test_its_tables_are_recipes_and_plans():
    for text in blocks("toml"):
        values = tomllib.loads(text)
        if "losses" in values:
            assert len(Plan.parse(values).runs()) == 8
        else:
            assert Recipe.parse(values).loss.modifiers


def test_its_table_has_every_modifier_in_the_order_of_application():
    listed = re.findall(r"^\| `(\w+)` \|", PAGE, flags=re.MULTILINE)
    assert listed == modifiers.in_order(modifiers.names())
