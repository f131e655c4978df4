"""A smaller copy of the images, for data sets whose originals are far larger than a network's input."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from PIL import Image

from nearkin.atomic import atomic_path
from nearkin.data.decoding import ImageFiles, read_image
from nearkin.data.sample_hashes import fingerprint
from nearkin.data.samples import SampleSet
from nearkin.data.transforms import resize, short_side_size

_QUALITY = 90


def resized_copy(
    image_set: SampleSet,
    folder: str | os.PathLike[str],
    *,
    short_side: int = 256,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SampleSet:
    """The same images, shrunk to ``short_side`` once and kept as JPEGs of quality 90.

    Evaluation at that size sees the same pixels but for JPEG's loss, about 2 of 255 levels on average;
    ``resized_crop`` sees less detail in small crops. Smaller images keep their size. Copies that exist are
    kept, so that an interrupted run goes on where it stopped; if the originals change, there will be new
    copies.

    Args:
        image_set: Images on disk.
        folder: Where copies live, in a subfolder named after the images and the size.
        short_side: Short side of a copy.
        workers: Threads; by default one per core.
        progress: Called with the images done and the number of all.
    """
    images = image_set.samples
    if not isinstance(images, ImageFiles):
        raise TypeError(f"resized_copy takes images on disk, not {type(images).__name__}")
    root = Path(folder) / f"{short_side}-{fingerprint(images)[:32]}"
    # Two originals may differ in nothing but their suffix.
    names = [f"{images.name(index)}.jpg".lstrip("/") for index in range(len(images))]

    def shrink(index: int) -> None:
        copy = root / names[index]
        if not copy.exists():
            _write(images.path(index), copy, short_side)

    with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
        for done, _ in enumerate(pool.map(shrink, range(len(images))), start=1):
            if progress is not None:
                progress(done, len(images))
    copies = ImageFiles(names, root)
    return SampleSet(
        copies,
        image_set.labels,
        image_set.class_names,
        cameras=image_set.cameras,
        pairs=image_set.pairs,
    )


def _write(original: Path, copy: Path, short_side: int) -> None:
    pixels = read_image(original)
    height, width = pixels.shape[1:]
    if min(height, width) > short_side:
        pixels = resize(pixels, short_side_size(height, width, short_side), "bilinear")
    with atomic_path(copy) as temporary:
        image = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
        image.save(temporary, format="JPEG", quality=_QUALITY)
