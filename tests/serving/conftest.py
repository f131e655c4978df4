from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from indexed import write_pictures
from serving_indexes import build_index, open_index
from starlette.testclient import TestClient

from nearkin.serving import create_app


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six classes of six pictures."""
    return write_pictures(tmp_path_factory.mktemp("photos") / "shop", classes=6, each=6)


@pytest.fixture(scope="session")
def shop(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an index of them."""
    return build_index(photos, tmp_path_factory.mktemp("indexes") / "shop.index")


@pytest.fixture(scope="session")
def older(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same pictures, another model."""
    return build_index(photos, tmp_path_factory.mktemp("indexes") / "older.index", seed=1)


Start = Callable[..., TestClient]


@contextmanager
def starting(shop: Path) -> Iterator[Start]:
    running: list[TestClient] = []

    def begin(indexes: dict[str, Any] | None = None, **settings: Any) -> TestClient:
        app = create_app(indexes or {"shop": open_index(shop)}, **settings)
        client = TestClient(app, base_url="http://localhost", raise_server_exceptions=False)
        client.__enter__()
        running.append(client)
        return client

    yield begin
    for client in running:
        client.__exit__(None, None, None)


@pytest.fixture
def start(shop: Path) -> Iterator[Start]:
    """Starts servers of indexes, by default of ``shop``; they end with the test."""
    with starting(shop) as begin:
        yield begin


@pytest.fixture(scope="module")
def client(shop: Path) -> Iterator[TestClient]:
    """A server of ``shop`` for tests that only ask."""
    with starting(shop) as begin:
        yield begin()


@pytest.fixture
def one_photo(photos: Path) -> Path:
    return photos / "class2" / "3.png"
