"""Decode and augment, beside torchvision's ImageFolder with the same transform.

    python benchmarks/input.py [--shared FOLDER]

The source is a folder of class folders with JPEGs: the real birds in ../shared. Larger JPEGs are made by
laying images side by side, so that a pixel carries as much detail as a photograph's. All sides read the same
files.

ImageFolder runs twice: with transforms on Pillow's images, as everybody writes them, and on tensors, as
torchvision's manual recommends. nearkin runs on the originals, with (ours) and without scaled decoding, and
on a resized copy of short side 256 (which costs one pass over the originals, once). The floor reads the same
files and decodes them at the smallest scale that has 256 pixels along the short side, nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import simplejpeg
import torch
from PIL import Image
from torch.utils.data import DataLoader

import harness
import nearkin.torchvision_import  # noqa: F401  (must come before torchvision)
from harness import FLOOR, OURS, Benchmark, Options, Taken

# isort: split
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from nearkin import data

BATCH, QUALITY = 32, 90
TILE = (340, 256)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
PREPROCESSING = data.Preprocessing(224, MEAN, STD, resize=256)
SIZES: dict[
    str, tuple[int, Callable[[Any], int], int]
] = {  # tiles along a side, which side counts, its pixels
    "short side 256": (1, min, 256),
    "long side 500": (2, max, 500),
    "short side 500": (2, min, 500),
    "short side 1000": (4, min, 1000),
}
SCHEMES = ("resized_crop", "simple_crop", "evaluation")
PILLOW, TENSORS = "ImageFolder, Pillow", "ImageFolder, tensors"

Pass = Callable[[], Iterable[object]]


def birds(options: Options) -> Path:
    return Path(options.shared) / "datasets" / "CUB_200_2011" / "images"


def make_images(source: Path, folder: Path, size: str, images: int) -> None:
    """Write mosaics of birds into two class folders."""
    tiles, side, pixels = SIZES[size]
    originals = sorted(source.glob("*/*.jpg"))
    step = max(len(originals) // (images * tiles * tiles), 1)
    for number in range(images):
        canvas = Image.new("RGB", (TILE[0] * tiles, TILE[1] * tiles))
        for place in range(tiles * tiles):
            path = originals[(number * tiles * tiles + place) * step % len(originals)]
            with Image.open(path) as image:
                tile = image.convert("RGB").resize(TILE, Image.Resampling.LANCZOS)
            canvas.paste(tile, (TILE[0] * (place % tiles), TILE[1] * (place // tiles)))
        scale = pixels / side(canvas.size)
        pixels_of_both = (round(canvas.width * scale), round(canvas.height * scale))
        target = folder / f"class {number % 2}" / f"{number}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        canvas.resize(pixels_of_both, Image.Resampling.LANCZOS).save(target, quality=QUALITY)


def image_folder(folder: Path, scheme: str, *, tensors_first: bool) -> Pass:
    steps = {
        "resized_crop": [v2.RandomResizedCrop(224), v2.RandomHorizontalFlip()],
        "simple_crop": [v2.Resize(256), v2.RandomCrop(224), v2.RandomHorizontalFlip()],
        "evaluation": [v2.Resize(256), v2.CenterCrop(224)],
    }[scheme]
    steps = [v2.ToImage(), *steps] if tensors_first else [*steps, v2.ToImage()]
    transform = v2.Compose([*steps, v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])
    images = ImageFolder(str(folder), transform)
    return DataLoader(images, BATCH).__iter__


def ours(images: data.SampleSet, scheme: str, **keywords: bool) -> Pass:
    if scheme == "evaluation":
        transform = data.evaluation_transform(PREPROCESSING, **keywords)
    else:
        transform = data.training_transform(PREPROCESSING, scheme, **keywords)
    return data.loader(images, transform, batch_size=BATCH).__iter__


def decoded(paths: list[Path]) -> Iterator[object]:
    """The floor: files read and decoded, as small as the transforms allow."""
    for path in paths:
        yield simplejpeg.decode_jpeg(path.read_bytes(), min_height=256, min_width=256, min_factor=1)


def passes(folder: Path, copies: Path, scheme: str) -> dict[str, Pass]:
    paths = sorted(folder.glob("*/*.jpg"))
    images = data.SampleSet(data.ImageFiles(paths), [path.parent.name for path in paths])
    return {
        FLOOR: lambda: decoded(paths),
        OURS: ours(images, scheme),
        PILLOW: image_folder(folder, scheme, tensors_first=False),
        TENSORS: image_folder(folder, scheme, tensors_first=True),
        "full decode": ours(images, scheme, scaled_decoding=False),
        "resized copy": ours(data.resized_copy(images, copies), scheme),
    }


def exhaust(batches: Pass) -> Callable[[], None]:
    def run() -> None:
        for _ in batches():
            pass

    return run


def measure(options: Options) -> Iterator[Taken]:
    """Every size and transform; milliseconds per image."""
    torch.set_num_threads(1)
    images = 8 if options.small else 64
    for size in list(SIZES)[:1] if options.small else SIZES:
        folder = Path(options.folder, size)
        if not folder.exists():  # made by the first process, for all of them
            make_images(birds(options), folder, size, images)
        for scheme in SCHEMES:
            sides = {
                name: exhaust(one)
                for name, one in passes(folder, Path(options.folder, "copies"), scheme).items()
            }
            taken = harness.take_turns(sides, rounds=2, least=2, seed=options.process, scale=1000 / images)
            yield Taken(f"{size}, {scheme}", taken, "ms per image")


BENCHMARKS = [
    Benchmark(
        "input",
        "Decode and augment",
        "files read and decoded at the smallest scale that has 256 pixels along the short side",
        measure,
        "JPEGs laid together from photographs, decoded and augmented in the main process. *full decode* and "
        "*resized copy* are ours, too.",
        threads=1,
        packages=("torch", "torchvision", "pillow", "simplejpeg"),
        missing=lambda options: None if birds(options).exists() else "it needs ../shared/datasets (--shared)",
    )
]

if __name__ == "__main__":
    harness.main(BENCHMARKS, __file__, __doc__)
