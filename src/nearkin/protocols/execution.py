"""A recipe from beginning to end: data, training, selection, and one look at the test classes."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, replace
from typing import Any

import psutil
import torch

from nearkin.data import SampleSet
from nearkin.protocols.base import Learnt, registry
from nearkin.protocols.disclosure import disclosure
from nearkin.protocols.opened import Opened, concatenated
from nearkin.protocols.sealed import SealedTest, seal
from nearkin.protocols.training_data import as_trained_on, open_data
from nearkin.training import Observer, Run, load_network


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


def execute(run: Run, observer: Observer | None = None) -> Finished:
    """Train a run's recipe under its protocol, or go on where it stopped; a finished run is only read."""
    done = run.result()
    if done is not None:
        return Finished(run, done, opened=None)
    run.remove_leftovers()
    observer = observer or Observer()
    training_data, test = seal(open_data(run.recipe, observer))
    training_data = as_trained_on(run.recipe, training_data, observer)
    protocol = registry.build(run.recipe.protocol.name)
    if protocol.test_chooses_epoch:
        training_data = replace(training_data, test_scorer=test.unsealed_scores(run.recipe))
    learnt = protocol.train(run, training_data, observer)
    if not run.writes:  # the first of several processes does the rest
        return Finished(run, {}, opened=None)
    observer.stage("scoring the test classes")
    opened = test.open([one.trained.network for one in learnt], run.recipe)
    for one, scored in zip(learnt, opened, strict=True):
        one.run.write_queries(scored.scores, scored.queries.labels)
        one.run.write_cost(_cost(one))
        one.run.write_result(_result(one, scored, test, training_data.notes))
    shown = protocol.conclude(run, learnt, opened)
    return Finished(run, run.result() or {}, shown)


def reopened(finished: Finished, observer: Observer | None = None) -> Finished:
    """A finished run with the test images and embeddings of its networks, embedded anew for its pictures."""
    run, result = finished.run, finished.result
    observer = observer or Observer()
    _, test = seal(open_data(run.recipe, observer))
    observer.stage("embedding the test classes again")
    runs = [Run.existing(run.path / fold["run"]) for fold in result.get("folds", [])] or [run]
    opened = test.open([load_network(one) for one in runs], run.recipe)
    return replace(finished, opened=opened[0] if len(opened) == 1 else concatenated(run.recipe, opened))


def _result(learnt: Learnt, opened: Opened, test: SealedTest, notes: tuple[str, ...]) -> dict[str, Any]:
    """All that a run found out. Nothing here may differ between two runs of one recipe on one machine."""
    trained, validation = learnt.trained, learnt.validation
    return {
        "recipe": learnt.run.recipe.to_dict(),
        "selection": {"rule": learnt.rule, "epoch": trained.epoch},
        "warnings": list(trained.warnings),
        "test": opened.scores.to_dict(),
        "validation": None if validation is None else trained.validation,
        "data": {
            "train": _counts(learnt.images),
            "validation": None if validation is None else _counts(validation),
            "test": {"images": test.num_images, "classes": test.num_classes},
            "notes": list(notes),
        },
        "network": {
            "parameters": sum(p.numel() for p in trained.network.parameters()),
            "preprocessing": asdict(trained.network.preprocessing),
        },
        "disclosure": disclosure(learnt.run.recipe),
    }


def _cost(learnt: Learnt) -> dict[str, float | int]:
    """What the training took."""
    seconds = [row["seconds"] for row in learnt.run.metrics() if "seconds" in row]
    return {
        "training_seconds": round(sum(seconds), 3),
        "seconds_per_epoch": round(sum(seconds) / len(seconds), 3),
        "peak_memory_bytes": _peak_memory(next(learnt.trained.network.parameters()).device),
    }


def _peak_memory(device: torch.device) -> int:
    """Most bytes in use so far: on the device where it counts them, or else of the whole process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource  # noqa: PLC0415  (not on Windows)

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _counts(images: SampleSet) -> dict[str, int]:
    return {"images": len(images), "classes": images.num_classes}
