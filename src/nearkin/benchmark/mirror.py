"""A folder of runs that is kept elsewhere as well: anywhere that fsspec can write to."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nearkin.benchmark.snapshots import Snapshot
from nearkin.extras import require

LOG = "log.jsonl"
_PUSH_EVERY = 30.0  # seconds


class Mirror:
    """A local folder as it is: there is nothing to mirror.

    Attributes:
        local: The folder to work in.
    """

    def __init__(self, local: Path) -> None:
        self.local = local
        local.mkdir(parents=True, exist_ok=True)

    def push_now_and_then(self) -> None:
        """Bring what changed to the other place, if it is some time ago that this was done."""


class RemoteMirror(Mirror):
    """A local folder whose files are brought to an address, and its unfinished runs from there.

    Args:
        local: The folder to work in.
        address: Such as ``s3://bucket/folder``.
        names: The runs in it.
    """

    def __init__(self, local: Path, address: str, names: Iterable[str]) -> None:
        super().__init__(local)
        self._address = address
        self._files: Any
        core = require("fsspec.core", extra="remote", purpose=f"keeping runs at {address}")
        self._files, root = core.url_to_fs(address)
        self._root = root.rstrip("/")
        for name in names:
            self._pull(name)
        if self._files.exists(f"{self._root}/{LOG}"):
            self._files.get_file(f"{self._root}/{LOG}", str(local / LOG))
        self._snapshot = Snapshot(local)
        self._snapshot.changes()
        self._pushed = time.monotonic()

    def _pull(self, name: str) -> None:
        """Fetch a run: all of one to go on with, what says how it ended of one that is done."""
        folder = f"{self._root}/{name}"
        found = [str(path)[len(folder) + 1 :] for path in self._files.find(folder)]
        done = "result.json" in found
        for file in found:
            if not (done and file.startswith("checkpoint/")):
                target = self.local / name / file
                target.parent.mkdir(parents=True, exist_ok=True)
                self._files.get_file(f"{folder}/{file}", str(target))

    def push(self) -> None:
        """Bring what changed to the address; what could not be brought, the next push brings."""
        self._pushed = time.monotonic()
        changes = self._snapshot.changes()
        waiting = deque(changes.written)
        try:
            while waiting:
                self._upload(waiting[0])
                waiting.popleft()
        finally:
            for file in waiting:
                self._snapshot.forget(file)
        for file in changes.removed:
            if self._files.exists(f"{self._root}/{file}"):
                self._files.rm(f"{self._root}/{file}")

    def _upload(self, file: str) -> None:
        target = f"{self._root}/{file}"
        self._files.makedirs(os.path.dirname(target), exist_ok=True)  # noqa: PTH120  (of an address)
        try:
            self._files.put_file(str(self.local / file), target)
        except FileNotFoundError:
            self._snapshot.forget(file)  # replaced in this moment: the next push has what came after it

    def push_now_and_then(self) -> None:
        """Push twice a minute; an address that cannot be reached for a while stops nobody."""
        if time.monotonic() - self._pushed <= _PUSH_EVERY:
            return
        try:
            self.push()
        except Exception as error:  # every kind of address has errors of its own
            warnings.warn(f"cannot write to {self._address} now ({error}): trying again", stacklevel=2)

    def conclude(self) -> None:
        """Push the rest and remove the local folder, which is kept if that is not possible."""
        try:
            self.push()
        except Exception as error:
            raise OSError(
                f"cannot write to {self._address} ({error}): all is kept in {self.local}"
            ) from error
        shutil.rmtree(self.local)


@contextmanager
def mirrored(folder: str | os.PathLike[str], names: Iterable[str]) -> Iterator[Mirror]:
    """A local folder to work in for a path, which is that folder, or an address, which it is mirrored to."""
    if "://" not in str(folder):
        yield Mirror(Path(folder))
        return
    scratch = Path(tempfile.mkdtemp(prefix="nearkin-"))
    try:
        mirror = RemoteMirror(scratch, str(folder), names)
    except BaseException:
        shutil.rmtree(scratch)
        raise
    try:
        yield mirror
    finally:
        mirror.conclude()
