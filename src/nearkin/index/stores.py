"""Which store an index lives in: a folder, or an address of a server."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from filelock import FileLock

from nearkin.index.address import is_address, parse_address
from nearkin.index.embedded import MODEL, EmbeddedStore
from nearkin.index.milvus import MilvusStore
from nearkin.index.postgres import PostgresStore
from nearkin.index.store import Store
from nearkin.model import Model

Place = str | os.PathLike[str]
"""A folder, ``postgresql://host/database/name`` or ``milvus://host/name``."""

_LOCK = ".creating.lock"
_SERVERS: dict[str, type[PostgresStore] | type[MilvusStore]] = {
    "postgresql": PostgresStore,
    "milvus": MilvusStore,
}


def open_store(place: Place) -> Store:
    """The store at a place.

    Raises:
        ValueError: There is none, a damaged one, or one of a newer format.
        ConnectionError: Its server cannot be reached.
    """
    if not is_address(place):
        return EmbeddedStore(place)
    address = parse_address(place)
    return _SERVERS[address.scheme](address)


def store_exists(place: Place) -> bool:
    """Whether there is a store at a place."""
    if not is_address(place):
        return EmbeddedStore.exists(place)
    address = parse_address(place)
    return _SERVERS[address.scheme].exists(address)


def create_store(place: Place, model: Model, *, precision: str) -> Store:
    """An empty store for embeddings of a model, which is kept in it; or the store that is there.

    Raises:
        ValueError: The place is taken by something else, or such a store has no such precision.
    """
    about = {"fingerprint": model.fingerprint, "model": repr(model)}
    if not is_address(place):
        return _create_folder(Path(place), model, precision, about)
    address = parse_address(place)
    kind = _SERVERS[address.scheme]
    if not kind.exists(address):
        try:
            return kind.create(
                address, dimension=model.embedding_dim, precision=precision, about=about, model=model
            )
        except FileExistsError:  # another process has just made it
            pass
    return kind(address)


def name_of(place: Place) -> str:
    """What an index is called.

    >>> name_of("shop/birds.index"), name_of("milvus://localhost/birds")
    ('birds', 'birds')
    """
    if is_address(place):
        return parse_address(place).name
    folder = Path(place).resolve()
    return folder.name.removesuffix(".index") or folder.name


def _create_folder(folder: Path, model: Model, precision: Any, about: dict[str, str]) -> EmbeddedStore:
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file: an index is a folder")
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / _LOCK):
        if not EmbeddedStore.exists(folder):
            _refuse_other_files(folder)
            _copy_model(model, folder)
            EmbeddedStore.create(
                folder, dimension=model.embedding_dim, precision=precision, about=about
            ).close()
    return EmbeddedStore(folder)


def _refuse_other_files(folder: Path) -> None:
    ours = (MODEL, _LOCK, "index.sqlite", ".unfinished-")
    others = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith(ours))
    if others:
        raise ValueError(f"{folder} holds other files ({others[0]}): choose another folder for the index")


def _copy_model(model: Model, folder: Path) -> None:
    """A whole copy of the model, or none."""
    shutil.rmtree(folder / MODEL, ignore_errors=True)
    for leftover in folder.glob(".unfinished-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    temporary = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=folder))
    temporary.chmod(0o755)
    model.save(temporary)
    temporary.rename(folder / MODEL)
