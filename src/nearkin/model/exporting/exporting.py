"""Model → file for another runtime: written, compared with the model, and only then put in its place."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nearkin.atomic import write_json
from nearkin.data import ImageArray, Samples, SampleSet
from nearkin.evaluation import Threshold, choose_threshold
from nearkin.evaluation.thresholds import TooFewPairsError
from nearkin.model.exporting.comparison import (
    Comparison,
    Held,
    Tolerance,
    batches,
    compare,
    embed_with,
    whole_classes,
)
from nearkin.model.exporting.errors import ExportError
from nearkin.model.exporting.formats import FLOAT32, INT8, Format, registry
from nearkin.model.exporting.graph import GraphInput, Place, UnitEmbeddings, graph_input, on_cpu
from nearkin.model.exporting.manifest import manifest, manifest_of, versions
from nearkin.model.exporting.quantization import NOTE
from nearkin.model.model import Model
from nearkin.networks import WrappedNetwork
from nearkin.observer import Observer

FOLDER = "folder"
_CALIBRATION = 200
_NOISE = 16
_UNFINISHED = ".unfinished-export-"


@dataclass(frozen=True)
class Export:
    """One exported file.

    Attributes:
        file: Where it is; the folder, where the format is one.
        manifest: What somebody must know to use it.
        precision: ``float32`` or ``int8``.
        bytes: Of everything that belongs to it.
        comparison: With the model.
    """

    file: Path
    manifest: Path
    precision: str
    bytes: int
    comparison: Comparison

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "file": str(self.file),
            "manifest": str(self.manifest),
            "precision": self.precision,
            "bytes": self.bytes,
            "compared_with_torch": self.comparison.to_dict(),
        }


@dataclass(frozen=True)
class _Order:
    """What is exported, once everything about it has been found out."""

    model: Model
    taken: GraphInput
    kind: str
    held: Held
    tolerance: float | None
    recall_tolerance: float | None
    calibration: Samples | None
    observer: Observer

    def allowed(self, precision: str) -> Tolerance:
        return Tolerance.of(precision, self.tolerance, self.recall_tolerance)


def names() -> list[str]:
    """Every format that a model can be exported to."""
    return [*registry.names(), FOLDER]


def default_name(model: str, format: str) -> str:  # noqa: A002
    """What an export is called that nobody names.

    >>> default_name("birds", "onnx"), default_name("birds", "folder")
    ('birds.onnx', 'birds-model')
    """
    return f"{model}-model" if format == FOLDER else f"{model}{registry.build(format).suffix}"


def export(
    model: Model,
    output: str | os.PathLike[str],
    *,
    format: str = "onnx",  # noqa: A002  (what everybody calls it)
    int8: bool = False,
    preprocessing: Place | None = None,
    validation: SampleSet | None = None,
    samples: Any = None,
    calibration: Any = None,
    tolerance: float | None = None,
    recall_tolerance: float | None = None,
    most: int = 1000,
    opset: int = 18,
    why_no_validation: str = "no validation classes were given",
    observer: Observer | None = None,
) -> list[Export]:
    """Write a model as a file for another runtime, unless its embeddings differ from the model's.

    See :meth:`nearkin.Model.export` for the arguments; ``why_no_validation`` says in the comparison why there
    is no Recall@1.
    """
    path, observer = Path(output), observer or Observer()
    if most < 1:
        raise ValueError(f"most={most} must be at least 1")
    if model.has_two and format != "folder":
        raise ExportError(
            "this model has two networks, and a file holds one: save one of them, "
            "model.modality(0).save(folder), and export that; or choose --format folder for both"
        )
    kind = None if format == FOLDER else registry.build(format)
    if int8 and (kind is None or not kind.quantizes):
        raise ExportError(f"there is no int8 {format}: choose onnx or openvino")
    if kind is not None:
        kind.require()
    on_cpu(model)
    given = None if samples is None else model.samples(samples)
    shown = given if given is not None or validation is None else validation.samples
    if kind is None:
        held = _held(model, validation, given, most=most, why=why_no_validation, observer=observer)
        return [_export_folder(model, path, held, Tolerance.of(FLOAT32, tolerance, recall_tolerance))]
    calibrated = _calibration(model, calibration) if int8 else None
    taken = graph_input(model, preprocessing, shown or calibrated)
    targets = {precision: target(path, kind, precision) for precision in (FLOAT32, *([INT8] * int8))}
    others = given or (calibrated if validation is None else None)
    held = _held(model, validation, others, most=most, why=why_no_validation, observer=observer)
    order = _Order(model, taken, format, held, tolerance, recall_tolerance, calibrated, observer)
    return _written(order, kind, targets, opset)


def target(output: Path, kind: Format, precision: str) -> Path:
    """The file that an output means: itself, or ``model`` in a folder.

    Raises:
        ExportError: Its name says another format, or a file is there that no export made.
    """
    others = {registry.build(name).suffix for name in registry.names()} - {kind.suffix}
    if output.suffix in others:
        raise ExportError(f"{output} ends in {output.suffix}, and this format in {kind.suffix}")
    file = output if output.suffix == kind.suffix else output / f"model{kind.suffix}"
    file = file if precision == FLOAT32 else file.with_name(f"{file.stem}.{precision}{kind.suffix}")
    if file.exists() and not manifest_of(file).exists():
        raise ExportError(f"{file} is there already, and no export made it: choose another output")
    return file


def _calibration(model: Model, given: Any) -> Samples:
    """Some samples evenly over all that were given: training data comes class by class."""
    if given is None:
        raise ExportError(
            "int8 needs training samples, whose activations show the ranges of eight bits: give a folder of "
            "them (--calibration FOLDER), or export the run while its data is at hand (--data-root)"
        )
    found = model.samples(given)
    rows = torch.linspace(0, len(found) - 1, min(_CALIBRATION, len(found))).round().long()
    return found.select(rows.unique().tolist())


def _held(
    model: Model,
    validation: SampleSet | None,
    samples: Samples | None,
    *,
    most: int,
    why: str,
    observer: Observer,
) -> Held:
    """The samples to compare on, and what torch makes of them."""
    labels, complete, why = None, False, "" if validation is not None else why
    if validation is not None:
        part = whole_classes(validation, most)
        found, kind = part.samples, "samples of validation classes"
        labels, complete = part.labels, len(part) == len(validation)
    elif samples is not None:
        found, kind = samples.select(range(min(most, len(samples)))), "samples"
    else:
        found, kind = _noise(model), "images of noise"
    observer.stage(f"embedding {len(found):,} {kind} with torch")
    embeddings = model.embed(found, progress=observer.progress)
    return Held(found, kind, embeddings, labels, why, complete)


def _noise(model: Model) -> Samples:
    expected = model.embedders[0].network.preprocessing
    if expected is None:
        raise ExportError("there are no samples to compare on: give some with --samples (samples= in Python)")
    generator = torch.Generator().manual_seed(0)
    shape_ = (_NOISE, expected.channels, expected.size, expected.size)
    return ImageArray(torch.randint(0, 256, shape_, generator=generator, dtype=torch.uint8))


def _written(order: _Order, kind: Format, targets: dict[str, Path], opset: int) -> list[Export]:
    graph = UnitEmbeddings(order.model, pixels=order.taken.name == "pixels")
    home = targets[FLOAT32].parent
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home, prefix=_UNFINISHED) as folder:
        order.observer.stage(f"writing {targets[FLOAT32].name}")
        made = kind.write(graph, order.taken, Path(folder), opset=opset, calibration=_batches(order))
        return [_placed(order, kind, precision, made[precision], file) for precision, file in targets.items()]


def _batches(order: _Order) -> Callable[[], Iterator[Tensor]] | None:
    samples = order.calibration
    return None if samples is None else lambda: batches(order.taken, samples)


def _placed(order: _Order, kind: Format, precision: str, made: Path, file: Path) -> Export:
    """Compare a file with the model and, if they agree, move it into its place; the manifest comes last."""
    order.observer.stage(f"comparing {file.name} with torch")
    rows = embed_with(kind.open(made), order.taken, order.held.samples, order.observer)
    comparison, allowed = compare(order.held, rows), order.allowed(precision)
    comparison.check(allowed, file.name)
    parts = kind.files(made)
    for part in parts:  # the names that they will have, for the manifest
        part.rename(part.with_name(file.name).with_suffix(part.suffix))
    renamed = kind.files(made.with_name(file.name))
    threshold, threshold_of = _threshold(order, precision, rows)
    more = {}
    if precision == INT8:
        more = {"calibration": {"training_samples": len(order.calibration or ()), "note": NOTE}}
    about = manifest(
        order.model,
        order.taken,
        comparison,
        allowed,
        kind=order.kind,
        precision=precision,
        files=renamed,
        threshold=threshold,
        threshold_of=threshold_of,
        packages=kind.packages,
        more=more,
    )
    for part in renamed:
        shutil.move(part, file.parent / part.name)
    write_json(manifest_of(file), about)
    size = sum(one["bytes"] for one in about["files"])
    return Export(file, manifest_of(file), precision, size, comparison)


def _threshold(order: _Order, precision: str, rows: Tensor) -> tuple[Threshold | None, str]:
    """The model's threshold; of int8 chosen anew where all of the validation classes are at hand."""
    known, held = order.model.threshold, order.held
    if precision == FLOAT32 or known is None or held.labels is None or not held.complete:
        return known, FLOAT32
    try:
        rate = known.wanted_false_accept_rate
        return choose_threshold(
            rows, held.labels, false_accept_rate=rate, class_names=known.class_names
        ), precision
    except TooFewPairsError:
        return known, FLOAT32


def _export_folder(model: Model, path: Path, held: Held, allowed: Tolerance) -> Export:
    """The model as it is, in a folder that ``nearkin.load`` reads, compared with the model itself."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=_UNFINISHED) as folder:
        given = _given_in_python(model)
        saved = Model.read(model.save(Path(folder) / "model"), **given)
        comparison = compare(held, saved.embed(held.samples))
    comparison.check(allowed, str(path))
    model.save(path)
    about = {
        "manifest": 1,
        "format": FOLDER,
        "precision": FLOAT32,
        "fingerprint": model.fingerprint,
        "threshold": None if model.threshold is None else model.threshold.to_dict(),
        "compared_with_torch": comparison.to_dict()
        | {"allowed": {"difference": allowed.difference, "recall_at_1": allowed.recall}},
        "versions": versions(("torch", "timm")),
    }
    write_json(path / "manifest.json", about)
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return Export(path, path / "manifest.json", FLOAT32, size, comparison)


def _given_in_python(model: Model) -> dict[str, Any]:
    """What a folder does not hold and whoever loads it must give again."""
    first = model.embedders[0]
    given: dict[str, Any] = {}
    if first.network.spec is None:
        wrapped = isinstance(first.network, WrappedNetwork)
        given["network"] = first.network.backbone if wrapped else first.network
    if first.transform_spec is None:
        given["transform"] = first.evaluation_transform
    return given
