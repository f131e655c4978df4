"""The Python of the pages about applications and pictures runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize("page", ["applications.md", "explain.md"])
def test_its_python_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    assert blocks
    names: dict[str, object] = {"__name__": "page"}
    for number, code in enumerate(blocks):
        exec(compile(code, f"{page} block {number}", "exec"), names)
