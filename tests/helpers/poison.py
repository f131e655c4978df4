"""A test split that nobody can touch unseen."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from nearkin import data
from nearkin.data import DataSet, SampleSet
from nearkin.protocols import SealedTest


@dataclasses.dataclass
class Vault:
    """How often a test split was opened or unsealed."""

    opened: int = 0
    unsealed: int = 0


class Lock:
    """Says whether one data set's test split may be touched now."""

    def __init__(self) -> None:
        self.closed = True

    @contextmanager
    def lifted(self) -> Iterator[None]:
        self.closed = False
        try:
            yield
        finally:
            self.closed = True


class Poisoned(SampleSet):
    """Images that raise when anybody asks them anything while they are locked."""

    def __init__(self, images: SampleSet, lock: Lock) -> None:
        vars(self).update(vars(images), lock=lock)

    def __getattribute__(self, name: str) -> object:
        if not name.startswith("__") and vars(self)["lock"].closed:
            raise AssertionError(f"somebody asked the test split for its {name}")
        return super().__getattribute__(name)


def poison_test_splits(monkeypatch: pytest.MonkeyPatch) -> Vault:
    """From now on every data set that is opened has a test split that only ``SealedTest`` can touch."""
    vault = Vault()
    leave_out, tell_scores = data.leave_out, SealedTest.unsealed_scores
    count, open_ = SealedTest.__init__, SealedTest.open

    def poisoned(data_set: DataSet, bad: object) -> DataSet:
        data_set = leave_out(data_set, bad)
        names = [name for name in ("test", "query", "gallery") if getattr(data_set, name) is not None]
        lock = Lock()
        with lock.lifted():
            return dataclasses.replace(
                data_set, **{name: Poisoned(getattr(data_set, name), lock) for name in names}
            )

    def counted(sealed: SealedTest, data_set: DataSet) -> None:
        with vars(data_set.test)["lock"].lifted():
            count(sealed, data_set)

    def opened(sealed: SealedTest, *arguments: object) -> object:
        vault.opened += 1
        vars(sealed._data_set.test)["lock"].closed = False
        return open_(sealed, *arguments)

    def unsealed(sealed: SealedTest, recipe: object) -> object:
        vault.unsealed += 1
        tell = tell_scores(sealed, recipe)
        lock = vars(sealed._data_set.test)["lock"]

        def told(network: object) -> object:
            with lock.lifted():
                return tell(network)

        return told

    monkeypatch.setattr(data, "leave_out", poisoned)
    monkeypatch.setattr(SealedTest, "__init__", counted)
    monkeypatch.setattr(SealedTest, "open", opened)
    monkeypatch.setattr(SealedTest, "unsealed_scores", unsealed)
    return vault
