"""What only some of nearkin needs is asked for when it is needed, and its absence is said with the remedy."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from nearkin.benchmark.mirror import RemoteMirror
from nearkin.extras import require
from test_documents import ROOT
from test_packaging import EXTRAS, PROJECT

ABSENT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {packages!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name.partition(".")[0])

sys.meta_path.insert(0, Absent())
{code}
"""


def without(packages: set[str], code: str) -> subprocess.CompletedProcess[str]:
    """Run Python as if these packages were not installed."""
    text = ABSENT.format(packages=packages, code=code)
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)


def test_what_is_there_is_returned():
    assert require("xml.dom", extra="tune", purpose="this") is sys.modules["xml.dom"]


def test_what_is_missing_is_named_with_the_command_that_brings_it():
    with pytest.raises(
        ModuleNotFoundError, match=r"looking at stars needs the package not_there, .* 'nearkin\[sky\]'"
    ) as caught:
        require("not_there.inside", extra="sky", purpose="looking at stars")
    assert caught.value.name == "not_there"


def test_a_broken_package_speaks_for_itself(tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text("import something_it_misses")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="No module named 'something_it_misses'"):
        require("broken", extra="tune", purpose="this")


def test_every_extra_that_is_asked_for_exists():
    asked = set()
    for path in (ROOT / "src").rglob("*.py"):
        if path.name != "extras.py":
            asked |= set(re.findall(r'require\([^)]*extra="(\w+)"', path.read_text(encoding="utf-8")))
    assert {"tune", "remote"} <= asked <= set(EXTRAS)


def test_the_tests_extra_brings_what_the_tests_of_the_others_need():
    (own,) = (text for text in EXTRAS["test"] if text.startswith("nearkin["))
    heavy = {"test", "openvino", "ray", "tracking", "milvus", "postgres", "servers"}
    assert set(re.findall(r"\w+", own)[1:]) == set(EXTRAS) - heavy


@pytest.mark.parametrize(
    ("package", "address", "extra"),
    [
        ("psycopg", "postgresql://localhost/shop/birds", "postgres"),
        ("pymilvus", "milvus://localhost/birds", "milvus"),
    ],
)
def test_an_index_on_a_server_without_its_client_says_so_in_one_line(
    package, address, extra, nearkin, monkeypatch
):
    monkeypatch.setitem(sys.modules, package, None)
    code, _, err = nearkin("index", address)
    assert code == 2
    assert f"needs the package {package}, which is not installed: pip install 'nearkin[{extra}]'" in err


def test_base_dependencies_are_none_of_the_extras():
    base = {re.split(r"[>=;\[]", text)[0] for text in PROJECT["dependencies"]}
    extra = {re.split(r"[>=;\[]", text)[0] for texts in EXTRAS.values() for text in texts}
    assert not base & extra


def test_a_search_without_optuna_says_so_in_one_line():
    """In a process of its own: whatever searched before in this one has imported it."""
    code = "from nearkin.cli import main; sys.argv = ['nearkin', 'tune', '--trials', '1']; main()"
    done = without({"optuna"}, code)
    assert done.returncode == 2
    assert done.stderr.strip() == (
        "nearkin: hyperparameter search needs the package optuna, which is not installed: "
        "pip install 'nearkin[tune]'"
    )


def test_training_and_tournament_need_no_extra():
    code = "import nearkin.cli.tournament, nearkin.tournament.report.writing, nearkin.benchmark.execution"
    done = without({"optuna", "faiss", "ray", "transformers"}, f"{code}\nimport nearkin.protocols")
    assert done.returncode == 0, done.stderr


def test_runs_kept_elsewhere_without_fsspec_say_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(ModuleNotFoundError, match=r"nearkin\[remote\]"):
        RemoteMirror(tmp_path, "memory://there", [])
