"""Checking every image of a data set once, and remembering what was found while the files stay the same."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from platformdirs import user_cache_dir

from nearkin.atomic import write_json
from nearkin.data.checking import BadImage, Progress, check_images, image_files
from nearkin.data.sample_hashes import quick_fingerprint
from nearkin.data.samples import DataSet


def bad_images(
    data_set: DataSet, *, folder: Path | None = None, progress: Progress | None = None
) -> list[BadImage]:
    """The images of a data set that cannot be read.

    Decoding all of them takes a while, so the answer is kept for as long as no path, size or time of change
    differs.

    Args:
        data_set: Images in memory are never bad.
        folder: Where answers are kept; by default the user's cache folder.
        progress: Called with the images done and the number of all.
    """
    splits = [split for split in (data_set.train, data_set.validation, data_set.test) if split is not None]
    files = [own for split in splits if (own := image_files(split)) is not None]
    if not files:
        return []
    key = hashlib.sha256("".join(quick_fingerprint(images) for images in files).encode()).hexdigest()[:32]
    answer = (folder or Path(user_cache_dir("nearkin"))) / "checked" / f"{key}.json"
    remembered = _read(answer)
    if remembered is not None:
        return remembered
    found = check_images(data_set, progress=progress)
    write_json(answer, [[image.name, str(image.path), image.reason] for image in found])
    return found


def _read(answer: Path) -> list[BadImage] | None:
    try:
        rows = json.loads(answer.read_text(encoding="utf-8"))
        return [BadImage(name, Path(path), reason) for name, path, reason in rows]
    except (OSError, ValueError, TypeError):
        return None
