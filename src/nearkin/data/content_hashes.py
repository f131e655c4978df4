"""Hashes of files' bytes, remembered for as long as a file's path, size and time of change stay the same."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from platformdirs import user_cache_dir

from nearkin.atomic import write_json

Progress = Callable[[int, int], None]
"""Called with the number of files done and the number of all."""

_CHUNK = 1 << 20


def content_hashes(
    paths: Sequence[Path], *, cache: Path | None = None, progress: Progress | None = None
) -> list[str]:
    """SHA-256 of every file.

    Args:
        paths: The files.
        cache: The file where hashes are remembered; by default one in the user's cache folder for each
            folder that holds all the paths.
        progress: Called with the files done and the number of all, while files are read.
    """
    if not paths:
        return []
    names = [str(path.absolute()) for path in paths]
    stamps = [(status.st_size, status.st_mtime_ns) for status in map(os.stat, names)]
    cache = cache or _default_cache(names)
    remembered = _read(cache)
    missing = [
        place
        for place, (name, stamp) in enumerate(zip(names, stamps, strict=True))
        if tuple(remembered.get(name, ())[:2]) != stamp
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        hashes = pool.map(content_hash, [names[place] for place in missing])
        for done, (place, found) in enumerate(zip(missing, hashes, strict=True), start=1):
            remembered[names[place]] = [*stamps[place], found]
            if progress is not None:
                progress(len(names) - len(missing) + done, len(names))
    if missing:
        write_json(cache, _read(cache) | {names[place]: remembered[names[place]] for place in missing})
    return [str(remembered[name][2]) for name in names]


def _default_cache(names: list[str]) -> Path:
    common = os.path.commonpath([str(Path(name).parent) for name in names])
    key = hashlib.sha256(common.encode()).hexdigest()[:32]
    return Path(user_cache_dir("nearkin")) / "content-hashes" / f"{key}.json"


def content_hash(file: str | Path) -> str:
    """SHA-256 of one file, which nothing remembers."""
    digest = hashlib.sha256()
    with Path(file).open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _read(cache: Path) -> dict[str, list[int | str]]:
    try:
        rows = json.loads(cache.read_text(encoding="utf-8"))
        return {name: row for name, row in rows.items() if len(row) == 3}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
