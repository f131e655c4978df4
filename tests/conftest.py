from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings
from small_recipes import small_values

# They are loaded as they are; looked through for doctests, files of one name would be taken for each other.
collect_ignore_glob = ["*conftest.py"]

SHARED = Path(__file__).resolve().parents[2] / "shared"

# Tests run in parallel processes: one thread each keeps them from fighting over the cores.
torch.set_num_threads(1)

settings.register_profile("nearkin", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("nearkin")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with real data beside the checkout; tests that need it skip where it is absent."""
    if not (SHARED / "datasets").is_dir():
        pytest.skip("needs the real data in ../shared, which is not here")
    return SHARED


@pytest.fixture(scope="session")
def glyphs_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache of rendered glyphs for all tests and all test processes."""
    root = tmp_path_factory.getbasetemp()
    return (root.parent if root.name.startswith("popen-") else root) / "glyphs"


@pytest.fixture
def small_recipe(glyphs_root: Path) -> dict:
    """Plain values of a recipe that trains in about a second."""
    return small_values(glyphs_root)


@pytest.fixture
def fewer_glyphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents train on all of ``glyphs``; here these are 120 of its characters, for the same code."""
    from nearkin.data.glyphs import glyphs  # noqa: PLC0415  (few tests need it)

    monkeypatch.setitem(glyphs.__kwdefaults__, "num_classes", 120)


@pytest.fixture
def nearkin(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """Runs the command line in this process: (exit code, standard output, standard error)."""
    from nearkin.cli import views  # noqa: PLC0415
    from nearkin.cli.app import main  # noqa: PLC0415  (few tests need it)
    from nearkin.cli.display import console  # noqa: PLC0415

    # A small run takes most of its time to draw pictures: here they are of fewer samples, by the same code.
    small = {
        "retrieval_gallery": {"queries": 2, "neighbours": 3},
        "embedding_map": {"classes": 8, "side": 600},
    }
    for name, keywords in small.items():
        monkeypatch.setattr(views, name, functools.partial(getattr(views, name), **keywords))

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["nearkin", *map(str, arguments)])
        monkeypatch.setattr(console, "_file", None)  # whatever standard output is at the moment
        try:
            main()
            code = 0
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return run
