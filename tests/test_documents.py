"""What the documents tell a reader to run does run."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

from nearkin import losses
from nearkin.losses.testing import check_loss

ROOT = Path(__file__).parents[1]


def python_blocks(document: str) -> list[str]:
    text = (ROOT / document).read_text(encoding="utf-8")
    blocks = re.findall(r"^( *)```python\n(.*?)^ *```", text, flags=re.DOTALL | re.MULTILINE)
    return [re.sub(f"^{indent}", "", code, flags=re.MULTILINE) for indent, code in blocks]


@pytest.mark.usefixtures("fewer_glyphs")
@pytest.mark.parametrize("number", range(len(python_blocks("README.md"))))
def test_the_readmes_python_runs(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = compile(python_blocks("README.md")[number], f"README.md block {number}", "exec")
    exec(code, {"__name__": "readme"})


def test_the_readme_has_python_to_run():
    assert len(python_blocks("README.md")) >= 2


def test_the_contributors_loss_passes_the_common_checks():
    (code,) = python_blocks("CONTRIBUTING.md")
    try:
        exec(compile(code, "CONTRIBUTING.md", "exec"), {"__name__": "contributing"})
        check_loss("squared_hinge")
        assert losses.describe("squared_hinge").source == "Who proposed it, where, when."
    finally:
        losses.unregister("squared_hinge")


def test_the_readmes_test_command_is_what_ci_runs():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    command = "pip install -c constraints.txt -e '.[test]' && ./check"
    assert command in readme
    assert command in ci


def test_documents_point_to_files_that_exist():
    for document in ("README.md", "CONTRIBUTING.md"):
        text = (ROOT / document).read_text(encoding="utf-8")
        for target in re.findall(r"""(?:\]\(|src=")(?!https?:)([^)#"]+)""", text):
            assert (ROOT / target).exists(), f"{document} points to {target}"


def test_no_document_claims_every_loss_there_is():
    for path in (
        ROOT / "README.md",
        ROOT / "mkdocs.yml",
        ROOT / "pyproject.toml",
        *(ROOT / "docs").glob("*.md"),
    ):
        text = " ".join(path.read_text(encoding="utf-8").lower().split())
        assert not re.search(r"(every|all) loss(es)? of (deep metric learning|the field)", text), path


def test_coming_from_pytorch_metric_learning_names_all_of_it():
    """What its code says is run with that of the other pages, in test_site.py."""
    text = (ROOT / "docs/from_pytorch_metric_learning.md").read_text(encoding="utf-8")
    for room in ("losses", "miners", "samplers", "reducers", "regularizers"):
        module = importlib.import_module(f"pytorch_metric_learning.{room}")
        names = [name for name, made in vars(module).items() if inspect.isclass(made)]
        missing = [
            name
            for name in names
            if name not in text and not name.startswith("Base") and not name.endswith("Mixin")
        ]
        assert set(missing) <= {
            "GenericPairLoss",  # what others are made of
            "EmbeddingsAlreadyPackagedAsTriplets",
            "DivisorReducer",
            "MultipleReducers",
        }, missing
