"""README's snippet about losses satisfies a strict type checker, as a user's code must."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_readmes_snippet_passes_mypy_strict(tmp_path):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    snippets = re.findall(r"^```python\n(.*?)^```", readme, flags=re.DOTALL | re.MULTILINE)
    (snippet,) = [code for code in snippets if "losses.build" in code and "param_groups" in code]
    more = """
values = losses.build("contrastive", reduction="none")(embeddings, labels, weights=torch.ones(32))
wrapped: losses.Loss = losses.as_loss(lambda embeddings, labels: embeddings.sum())
compares: bool = losses.compares_samples("triplet")
"""
    (tmp_path / "snippet.py").write_text(snippet + more, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--no-error-summary"]
    command += ["--cache-dir", str(tmp_path / "cache"), "snippet.py"]
    ran = subprocess.run(
        command,
        cwd=tmp_path,
        env={"MYPYPATH": str(ROOT / "src"), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
