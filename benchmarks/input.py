"""Decode and augment: images per second, beside torchvision's ImageFolder with the same transform.

    python benchmarks/input.py [--source FOLDER] [--workers N]

The source is a folder of class folders with JPEGs, by default the real birds in ../shared. Larger JPEGs are
made by laying images side by side, so that a pixel carries as much detail as a photograph's. The contestants
read the same files in one process, in turn, several times; the table shows medians of images per second.

ImageFolder runs twice: with transforms on Pillow's images, as everybody writes them, and on tensors, as
torchvision's manual recommends. nearkin runs on the originals, with and without scaled decoding, and on a
resized copy of short side 256 (which costs one pass over the originals, once).
"""

from __future__ import annotations

import argparse
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import PIL
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table
from torch.utils.data import DataLoader

import nearkin.torchvision_import  # noqa: F401  (must come before torchvision)

# isort: split
import torchvision
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from nearkin import data

RESULTS = Path(__file__).parent / "results" / "input.md"
BIRDS = Path(__file__).resolve().parents[2] / "shared" / "datasets" / "CUB_200_2011" / "images"
IMAGES, BATCH, REPEATS, QUALITY = 64, 32, 3, 90
TILE = (340, 256)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
PREPROCESSING = data.Preprocessing(224, MEAN, STD, resize=256)
SIZES = {  # tiles along a side, which side counts, and its pixels
    "short side 256": (1, min, 256),
    "long side 500": (2, max, 500),
    "short side 500": (2, min, 500),
    "short side 1000": (4, min, 1000),
}
SCHEMES = ("resized_crop", "simple_crop", "evaluation")
RIVALS = ("ImageFolder, Pillow", "ImageFolder, tensors")
OURS = ("nearkin", "full decode", "resized copy")

Pass = Callable[[], Iterable[object]]


def make_images(source: Path, folder: Path, tiles: int, side: Callable[[Any], int], pixels: int) -> None:
    """Write mosaics of ``tiles`` × ``tiles`` images into two class folders."""
    originals = sorted(source.glob("*/*.jpg"))
    step = max(len(originals) // (IMAGES * tiles * tiles), 1)
    for number in range(IMAGES):
        canvas = Image.new("RGB", (TILE[0] * tiles, TILE[1] * tiles))
        for place in range(tiles * tiles):
            path = originals[(number * tiles * tiles + place) * step % len(originals)]
            with Image.open(path) as image:
                tile = image.convert("RGB").resize(TILE, Image.Resampling.LANCZOS)
            canvas.paste(tile, (TILE[0] * (place % tiles), TILE[1] * (place // tiles)))
        scale = pixels / side(canvas.size)
        size = (round(canvas.width * scale), round(canvas.height * scale))
        target = folder / f"class {number % 2}" / f"{number}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        canvas.resize(size, Image.Resampling.LANCZOS).save(target, quality=QUALITY)


def image_folder(folder: Path, scheme: str, workers: int, *, tensors_first: bool) -> Pass:
    steps = {
        "resized_crop": [v2.RandomResizedCrop(224), v2.RandomHorizontalFlip()],
        "simple_crop": [v2.Resize(256), v2.RandomCrop(224), v2.RandomHorizontalFlip()],
        "evaluation": [v2.Resize(256), v2.CenterCrop(224)],
    }[scheme]
    steps = [v2.ToImage(), *steps] if tensors_first else [*steps, v2.ToImage()]
    transform = v2.Compose([*steps, v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])
    images = ImageFolder(str(folder), transform)
    return DataLoader(images, BATCH, num_workers=workers, persistent_workers=workers > 0).__iter__


def ours(images: data.SampleSet, scheme: str, workers: int, **keywords: bool) -> Pass:
    if scheme == "evaluation":
        transform = data.evaluation_transform(PREPROCESSING, **keywords)
    else:
        transform = data.training_transform(PREPROCESSING, scheme, **keywords)
    return data.loader(images, transform, batch_size=BATCH, workers=workers).__iter__


def contestants(folder: Path, copies: Path, scheme: str, workers: int) -> dict[str, Pass]:
    paths = sorted(folder.glob("*/*.jpg"))
    images = data.SampleSet(data.ImageFiles(paths), [path.parent.name for path in paths])
    return {
        "ImageFolder, Pillow": image_folder(folder, scheme, workers, tensors_first=False),
        "ImageFolder, tensors": image_folder(folder, scheme, workers, tensors_first=True),
        "nearkin": ours(images, scheme, workers),
        "full decode": ours(images, scheme, workers, scaled_decoding=False),
        "resized copy": ours(data.resized_copy(images, copies), scheme, workers),
    }


def images_per_second(passes: dict[str, Pass]) -> dict[str, float]:
    """Median over passes that take turns, after one pass to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in passes}
    for repeat in range(REPEATS + 1):
        for name, batches in passes.items():
            start = time.perf_counter()
            for _ in batches():
                pass
            if repeat:
                seconds[name].append(time.perf_counter() - start)
    return {name: IMAGES / statistics.median(times) for name, times in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", type=Path, default=BIRDS)
    parser.add_argument("--workers", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        for size, (tiles, side, pixels) in SIZES.items():
            folder = Path(temporary, size)
            make_images(arguments.source, folder, tiles, side, pixels)
            for scheme in SCHEMES:
                passes = contestants(folder, Path(temporary, "copies"), scheme, arguments.workers)
                rows.append((size, scheme, images_per_second(passes)))
    write(rows, arguments.workers)


def write(rows: list[tuple[str, str, dict[str, float]]], workers: int) -> None:
    heading = [
        "JPEGs",
        "transform",
        *RIVALS,
        *OURS,
        "ratio to Pillow",
        "to tensors",
        "copy to Pillow",
        "to tensors",
    ]
    table = Table(*heading)
    lines = [f"| {' | '.join(heading)} |", "|---|---|" + "---:|" * (len(heading) - 2)]
    for size, scheme, speeds in rows:
        ratios = [speeds[mine] / speeds[rival] for mine in ("nearkin", "resized copy") for rival in RIVALS]
        speed_cells = [f"{speeds[name]:.0f}" for name in (*RIVALS, *OURS)]
        cells = [size, scheme, *speed_cells, *(f"{ratio:.2f} ×" for ratio in ratios)]
        table.add_row(*cells)
        lines.append(f"| {' | '.join(cells)} |")
    Console(width=160).print(table)
    versions = (
        f"torch {torch.__version__}, torchvision {torchvision.__version__}, Pillow {PIL.__version__}, "
        f"Python {platform.python_version()}, 1 thread, {workers} workers"
    )
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(
        "# Decode and augment, images per second\n\n"
        f"Medians of {REPEATS} passes over {IMAGES} JPEGs that take turns in one process; {versions}. "
        "Written by `benchmarks/input.py`, which says what is compared.\n\n" + "\n".join(lines) + "\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
