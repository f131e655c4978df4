from __future__ import annotations

from pathlib import Path

import pytest
from indexed import picture_model, write_pictures

from nearkin.index import Index
from nearkin.model import Model


@pytest.fixture(scope="session")
def model() -> Model:
    return picture_model()


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch) -> None:
    """Hashes of files are remembered here, not in the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def photos(tmp_path) -> Path:
    """Four classes of five pictures."""
    return write_pictures(tmp_path / "photos")


@pytest.fixture
def index(model, photos, tmp_path):
    with Index.build(model, photos, tmp_path / "shop.index") as built:
        yield built
