"""A folder that is looked at again and again: what is new or changed goes into an index."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from nearkin.data import ImageFiles
from nearkin.data.class_folders import files_below
from nearkin.index.items import Added

if TYPE_CHECKING:
    from nearkin.index.index import Index

Stamp = tuple[int, int]
"""Size and time of change of a file."""


def watch(
    index: Index,
    folder: Path,
    *,
    every: float = 2.0,
    prefix: str = "",
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Added]:
    """Add what appears or changes in a folder, for as long as the caller goes on.

    A file is taken when it has not changed between two looks, so that none is read while it is written.

    Args:
        index: Where it goes.
        folder: Which may vanish and come back.
        every: Seconds between two looks.
        prefix: As in :meth:`nearkin.Index.add`.
        sleep: Waits.

    Yields:
        What became of the files, after every look that found some.
    """
    done: dict[str, Stamp] = {}
    before: dict[str, Stamp] = {}
    while True:
        now = _stamps(folder)
        ready = [file for file, stamp in now.items() if before.get(file) == stamp != done.get(file)]
        if ready:
            yield index.add(ImageFiles(ready, folder), prefix=prefix)
            done |= {file: now[file] for file in ready}
        before = now
        sleep(every)


def _stamps(folder: Path) -> dict[str, Stamp]:
    found: dict[str, Stamp] = {}
    for file in files_below(folder):
        try:
            status = (folder / file).stat()
        except OSError:  # gone since, or closed
            continue
        found[file] = (status.st_size, status.st_mtime_ns)
    return found
