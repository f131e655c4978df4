"""The embedded data set: characters in many typefaces, distorted. No download, thousands of classes.

A character is a class; one picture is one typeface under random distortion. Rendered once, in seconds, into
a cache that is checked when it is read and made anew if it is damaged.
"""

from __future__ import annotations

import hashlib
import json
import os
import unicodedata
import warnings
from pathlib import Path

import torch
from platformdirs import user_cache_dir
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from nearkin.atomic import atomic_path
from nearkin.data.glyphs.distortion import distort
from nearkin.data.glyphs.typefaces import TYPEFACES, Characters, distinct_characters
from nearkin.data.registry import registry
from nearkin.data.samples import DataSet, ImageArray, SampleSet
from nearkin.data.seeding import refuse_wrong_seed

VERSION = 1  # raise it when the pictures of a seed change: older caches are then left alone and not read
TEST_SHARE = 0.5
VALIDATION_SHARE = 0.05
MOST_DIFFICULT = 100.0
_CHUNK = 4096
_FILES = "glyphs-v"


@registry.register("glyphs")
def glyphs(
    *,
    root: str | os.PathLike[str] | None = None,
    seed: int = 0,
    difficulty: float = 1.0,
    num_classes: int | None = None,
    images_per_class: int = 16,
    size: int = 32,
) -> DataSet:
    """Characters of many scripts, drawn by the 16 DejaVu and STIX typefaces that come with matplotlib.

    Half of the classes are for testing, and a tenth of the others for validation, as in the thesis's fixed
    validation split.

    Args:
        root: Where the rendered pictures are kept; by default the user's cache folder.
        seed: Draws typefaces, distortions and the split. The same seed gives the same pictures.
        difficulty: Scales rotation, warp, stroke weight, contrast, noise and clutter. 0 is clean type, 1 the
            default; pictures of a class grow more different with it.
        num_classes: Use only so many characters, drawn at random; all by default.
        images_per_class: Pictures of each character. Up to 16 they come from different typefaces where there
            are enough.
        size: Side of a picture in pixels.
    """
    refuse_wrong_seed(seed)
    if not 0 <= difficulty <= MOST_DIFFICULT:  # NaN neither
        raise ValueError(f"difficulty={difficulty} must lie between 0 and {MOST_DIFFICULT:g}")
    if images_per_class < 2:
        raise ValueError(f"images_per_class={images_per_class}: a query needs another picture to find")
    if size < 8:
        raise ValueError(f"size={size} must be at least 8 pixels")
    if num_classes is not None and num_classes < 4:
        raise ValueError(f"num_classes={num_classes} must be at least 4, to be split")
    settings = {
        "version": VERSION,
        "seed": seed,
        "difficulty": float(difficulty),
        "num_classes": num_classes,
        "images_per_class": images_per_class,
        "size": size,
    }
    folder = Path(user_cache_dir("nearkin")) if root is None else _own_folder(Path(root))
    key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
    file = folder / f"{_FILES}{VERSION}-{key}.safetensors"
    cached = _read(file)
    if cached is None:
        cached = _render(
            seed=seed,
            difficulty=difficulty,
            num_classes=num_classes,
            images_per_class=images_per_class,
            size=size,
        )
        _write(file, *cached)
    return _split(*cached, images_per_class=images_per_class, seed=seed)


def _own_folder(root: Path) -> Path:
    """The folder, if there is nothing in it but renderings: none are written among other people's files."""
    if root.exists() and not root.is_dir():
        raise NotADirectoryError(f"glyphs: root={root} is a file; leave root out, or name a folder")
    if root.is_dir() and root != Path(user_cache_dir("nearkin")):
        for entry in root.iterdir():
            if not entry.name.startswith((_FILES, ".")):
                raise ValueError(
                    f"glyphs draws its own pictures and root={root} is only where they are kept, but it "
                    f'holds other things ({entry.name}): to use your images choose name = "folder"; for '
                    "glyphs leave root out or name a folder of its own"
                )
    return root


def _render(
    *, seed: int, difficulty: float, num_classes: int | None, images_per_class: int, size: int
) -> tuple[str, Tensor, Tensor]:
    """The characters, their pictures ``(N, 1, size, size)``, class by class, and each picture's typeface."""
    generator = torch.Generator().manual_seed(seed)
    characters = distinct_characters()
    if num_classes is not None:
        if num_classes > len(characters.characters):
            raise ValueError(
                f"num_classes={num_classes} but there are {len(characters.characters)} characters"
            )
        chosen = torch.randperm(len(characters.characters), generator=generator)[:num_classes]
        characters = characters.select(chosen.sort().values)
    faces = _draw_typefaces(characters, images_per_class, generator).flatten()
    classes = torch.arange(len(characters.characters)).repeat_interleave(images_per_class)
    pictures = []
    for chunk in torch.arange(len(classes)).split(_CHUNK):
        others = torch.randint(len(characters.characters), (len(chunk),), generator=generator)
        pictures.append(
            distort(
                characters.masks[classes[chunk], faces[chunk]],
                characters.masks[others, faces[chunk]],
                size=size,
                difficulty=difficulty,
                generator=generator,
            )
        )
    return "".join(characters.characters), torch.cat(pictures), faces.to(torch.uint8)


def _draw_typefaces(characters: Characters, count: int, generator: torch.Generator) -> Tensor:
    """``count`` typefaces per character ``(C, count)``: all that have it in random order, again and again."""
    order = torch.rand(characters.drawn.shape, generator=generator)
    order = order.masked_fill(~characters.drawn, -1).argsort(dim=1, descending=True)
    available = characters.drawn.sum(dim=1, keepdim=True)
    return order.gather(1, torch.arange(count) % available)


def _split(characters: str, pictures: Tensor, faces: Tensor, *, images_per_class: int, seed: int) -> DataSet:
    names = [f"U+{ord(c):04X} {c} {unicodedata.name(c, 'unnamed').lower()}" for c in characters]
    labels = torch.arange(len(names)).repeat_interleave(images_per_class)
    picture_names = [
        f"{characters[label]} in {TYPEFACES[face]}"
        for label, face in zip(labels.tolist(), faces.tolist(), strict=True)
    ]
    everything = SampleSet(ImageArray(pictures, picture_names), labels, names)
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(seed))
    test = round(TEST_SHARE * len(names))
    validation = max(1, round(VALIDATION_SHARE * len(names)))
    return DataSet(
        name="glyphs",
        train=everything.of_classes(order[test + validation :]),
        validation=everything.of_classes(order[test : test + validation]),
        test=everything.of_classes(order[:test]),
    )


def _digest(pictures: Tensor, faces: Tensor) -> str:
    digest = hashlib.sha256(pictures.numpy().tobytes())
    digest.update(faces.numpy().tobytes())
    return digest.hexdigest()


def _write(file: Path, characters: str, pictures: Tensor, faces: Tensor) -> None:
    metadata = {"characters": characters, "digest": _digest(pictures, faces)}
    with atomic_path(file) as temporary:
        save_file({"pictures": pictures, "typefaces": faces}, temporary, metadata=metadata)


def _read(file: Path) -> tuple[str, Tensor, Tensor] | None:
    """What is in the cache, or ``None`` where there is nothing or it is damaged."""
    if not file.exists():
        return None
    try:
        with safe_open(file, framework="pt") as stored:
            metadata = stored.metadata()
            pictures, faces = stored.get_tensor("pictures"), stored.get_tensor("typefaces")
        if metadata["digest"] == _digest(pictures, faces):
            return metadata["characters"], pictures, faces
        reason = "its contents do not match its digest"
    except (SafetensorError, KeyError, TypeError, OSError) as error:
        reason = str(error)
    warnings.warn(f"{file} is damaged ({reason}): drawing the glyphs anew", stacklevel=2)
    return None
