"""A recipe from beginning to end: data, training, selection, and one look at the test classes."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from dataclasses import asdict, dataclass
from typing import Any

import psutil
import torch

import nearkin
from nearkin import data
from nearkin.data import DataSet, ImageSet, split_classes
from nearkin.protocols.sealed import Opened, SealedTest
from nearkin.training import Observer, Recipe, Run, Trained, build_network, train
from nearkin.training.trunk import seen_by_trunk

_DISCLOSED_LIBRARIES = (
    "torch",
    "torchvision",
    "timm",
    "accelerate",
    "numpy",
    "pillow",
    "matplotlib",
)

_LISTED = 5


@dataclass(frozen=True)
class Finished:
    """A finished run.

    Attributes:
        run: Its directory.
        result: What ``result.json`` says.
        opened: The test images and embeddings, if this call trained the run; ``None`` if it was finished.
    """

    run: Run
    result: dict[str, Any]
    opened: Opened | None


def open_data(recipe: Recipe, observer: Observer | None = None) -> DataSet:
    """The recipe's data set, every image of which can be read.

    Raises:
        ValueError: that lists the images that cannot be read, unless the recipe skips them.
    """
    observer = observer or Observer()
    observer.stage(f"opening {recipe.data.name}")
    data_set = data.build(recipe.data.name, recipe.data.root, **recipe.data.keywords)
    bad = data.bad_images(data_set)
    if bad and not recipe.data.skip_bad:
        listed = "; ".join(map(str, bad[:_LISTED])) + ("; …" if len(bad) > _LISTED else "")
        raise ValueError(
            f"{len(bad)} images cannot be read: {listed}. Mend them, or leave them out with --skip-bad "
            "(nearkin datasets check lists all)"
        )
    return data.leave_out(data_set, bad)


def training_splits(
    recipe: Recipe, data_set: DataSet, observer: Observer | None = None
) -> tuple[ImageSet, ImageSet | None]:
    """The images to learn from, and those to select on if the protocol has a validation.

    With a cached trunk they are its activations.
    """
    train = _as_trained_on(recipe, data_set.train, observer or Observer())
    if recipe.protocol.name == "standard":
        return train, None
    if data_set.validation is not None:
        return train, data_set.validation
    share = recipe.protocol.validation_share
    images, validation = split_classes(train, share, recipe.seed)
    if validation.num_classes < 2:
        raise ValueError(
            f"protocol.validation_share={share} of {train.num_classes} classes holds one class out, "
            "and kin cannot be told from strangers there: raise it, or choose protocol.name=standard"
        )
    return images, validation


def _as_trained_on(recipe: Recipe, images: ImageSet, observer: Observer) -> ImageSet:
    """Images, or the activations of the recipe's trunk: of all of them at once, however they are split."""
    if recipe.network.cached_trunk is None:
        return images
    observer.stage(f"computing what {recipe.network.cached_trunk} makes of {len(images)} images, once")
    return seen_by_trunk(recipe, build_network(recipe), images, flips=True)


def execute(run: Run, observer: Observer | None = None) -> Finished:
    """Train a run's recipe under its protocol, or go on where it stopped; a finished run is only read."""
    done = run.result()
    if done is not None:
        return Finished(run, done, opened=None)
    observer = observer or Observer()
    data_set = open_data(run.recipe, observer)
    images, validation = training_splits(run.recipe, data_set, observer)
    test = SealedTest(data_set)
    trained = train(run, images, validation, observer)
    if not run.writes:  # the first of several processes does the rest
        return Finished(run, {}, opened=None)
    observer.stage("scoring the test classes")
    opened = test.open(trained.network, run.recipe)
    run.write_queries(opened.scores, opened.queries.labels)
    run.write_cost(_cost(run, trained))
    run.write_result(_result(run.recipe, data_set, (images, validation), trained, opened))
    return Finished(run, run.result() or {}, opened)


def _result(
    recipe: Recipe,
    data_set: DataSet,
    splits: tuple[ImageSet, ImageSet | None],
    trained: Trained,
    opened: Opened,
) -> dict[str, Any]:
    """All that the run found out. Nothing here may differ between two runs of one recipe on one machine."""
    images, validation = splits
    selection = "last epoch" if validation is None else "best epoch on validation classes"
    return {
        "recipe": recipe.to_dict(),
        "selection": {"rule": selection, "epoch": trained.epoch},
        "warnings": list(trained.warnings),
        "test": opened.scores.to_dict(),
        "validation": trained.validation,
        "data": {
            "train": _counts(images),
            "validation": None if validation is None else _counts(validation),
            "test": _counts(data_set.test),
            "notes": list(data_set.notes),
        },
        "network": {
            "parameters": sum(p.numel() for p in trained.network.parameters()),
            "preprocessing": asdict(trained.network.preprocessing),
        },
        "versions": {"nearkin": nearkin.__version__, "python": platform.python_version()}
        | {library: importlib.metadata.version(library) for library in _DISCLOSED_LIBRARIES},
    }


def _cost(run: Run, trained: Trained) -> dict[str, float | int]:
    """What the training took."""
    seconds = [row["seconds"] for row in run.metrics() if "seconds" in row]
    return {
        "training_seconds": round(sum(seconds), 3),
        "seconds_per_epoch": round(sum(seconds) / len(seconds), 3),
        "peak_memory_bytes": _peak_memory(next(trained.network.parameters()).device),
    }


def _peak_memory(device: torch.device) -> int:
    """Most bytes in use so far: on the device where it counts them, or else of the whole process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource  # noqa: PLC0415  (not on Windows)

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _counts(images: ImageSet) -> dict[str, int]:
    return {"images": len(images), "classes": images.num_classes}
