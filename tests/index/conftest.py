from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from indexed import picture_model, write_pictures
from store_servers import MilvusServer, PostgresServer

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


@pytest.fixture(scope="session")
def postgres_server():
    """A real one; it lies outside of pytest's folders, which are closed to the account that it runs under."""
    with tempfile.TemporaryDirectory(prefix="nearkin-postgres-") as folder:
        server = PostgresServer(Path(folder))
        yield server
        server.stop()


@pytest.fixture(scope="session")
def milvus_server():
    with tempfile.TemporaryDirectory(prefix="nearkin-milvus-", ignore_cleanup_errors=True) as folder:
        server = MilvusServer(Path(folder))
        yield server
        server.stop()
