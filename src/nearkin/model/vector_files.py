"""Embeddings of any number of samples in a file: written chunk by chunk, and gone on with after a kill.

Every chunk is written whole, into a folder beside the file, under a key of what it was made from: the
model's fingerprint, and the names, sizes and times of change of its samples. A chunk whose key is there is
never embedded again. When all are there, the file is put together and the folder goes.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout

from nearkin.atomic import atomic_path, remove_unfinished, write_json
from nearkin.data import ImageFiles, Samples, Texts
from nearkin.data import as_samples as data_samples
from nearkin.data.class_folders import files_below
from nearkin.data.packed import SUFFIXES as PACKED
from nearkin.data.packed import PackedImages, packed_images
from nearkin.extras import require
from nearkin.model.embedding_workers import Embed, embedding_workers
from nearkin.model.model import Chunk, Model, Progress
from nearkin.tensor_files import DamagedFileError, TensorFile, read_tensors, write_tensors

SUFFIXES = (".parquet", ".npy")
_CHUNK = 1024
_METADATA = b"nearkin"


@dataclass(frozen=True)
class NamedSamples:
    """Samples in files.

    Attributes:
        samples: All of them.
        names: What each is called: a path below the folder that was given, or the number of a row.
        labels: The class of each, where it lies in a folder of its class, or ``None``.
        files: What the numbers depend on, per sample: a file, its size and its time of change.
    """

    samples: Samples
    names: list[str]
    labels: list[str | None]
    files: list[str]


@dataclass(frozen=True)
class VectorFile:
    """What :func:`write_vectors` wrote.

    Attributes:
        path: The file; of ``.npy``, names and labels are in a ``.csv`` beside it.
        samples: Rows.
        dimensions: D, of every row.
        embedded: Samples that were embedded now.
        found: Samples that had been embedded before this call.
        skipped: Files that could not be read, each with the reason.
        fingerprint: Of the model.
    """

    path: str
    samples: int
    dimensions: int
    embedded: int
    found: int
    skipped: tuple[tuple[str, str], ...]
    fingerprint: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self) | {"skipped": [{"name": name, "reason": why} for name, why in self.skipped]}


def named_samples(inputs: Sequence[str | os.PathLike[str]]) -> NamedSamples:
    """Images in files, folders and packed files, the rows of an array (``.npy``), the lines of a ``.txt``.

    Packed files are WebDataset's tar files and Parquet tables: see :mod:`nearkin.data.packed`.

    Images in a folder are called by their paths below it, or as they were given where there are several
    inputs; one that lies in a folder below the given one has that folder's name as its label.

    Raises:
        ValueError: There is nothing, or a file of rows stands beside other inputs.
        FileNotFoundError: One of them is not there.
    """
    paths = [Path(given) for given in inputs]
    if not paths:
        raise ValueError("nothing to embed: give files or folders")
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"there is no file {path}")
    rows = [path for path in paths if path.suffix.lower() in (".npy", ".txt")]
    packed = [path for path in paths if path.suffix.lower() in PACKED]
    if packed and len(packed) == len(paths):
        return _packed(packed)
    rows += packed
    if not rows:
        return _images(paths)
    if len(paths) > 1:
        raise ValueError(f"{rows[0]} is embedded alone: give no other kind of input beside it")
    (path,) = paths
    if path.suffix.lower() == ".npy":
        samples: Samples = data_samples(path)
    else:
        samples = Texts(path.read_text(encoding="utf-8").splitlines())
    names = [str(row) for row in range(len(samples))]
    state = _state(path)
    return NamedSamples(samples, names, [None] * len(names), [f"{state} {name}" for name in names])


def _packed(paths: Sequence[Path]) -> NamedSamples:
    places: list[Any] = []
    labels: list[str | None] = []
    states: list[str] = []
    for path in paths:
        images, own = packed_images(path)
        places += images.places
        labels += own
        states += [f"{_state(path)} {number}" for number in range(len(images))]
    samples = PackedImages(places)
    return NamedSamples(samples, [samples.name(place) for place in range(len(samples))], labels, states)


def _images(paths: Sequence[Path]) -> NamedSamples:
    files: list[Path] = []
    names: list[str] = []
    labels: list[str | None] = []
    for given in paths:
        if given.is_dir():
            inside = sorted(given / name for name in files_below(given))
            if not inside:
                raise ValueError(f"{given} holds no image")
            below = [file.relative_to(given) for file in inside]
            files += inside
            names += [(name if len(paths) == 1 else given / name).as_posix() for name in below]
            labels += [name.parts[0] if len(name.parts) > 1 else None for name in below]
        else:
            files.append(given)
            names.append(given.as_posix())
            labels.append(None)
    samples = ImageFiles([str(file.absolute()) for file in files], Path("/"))
    return NamedSamples(samples, names, labels, [_state(file) for file in files])


def _state(file: Path) -> str:
    """What changes when a file does; one that is not there (a link to nothing) has a state, too."""
    try:
        about = file.stat()
    except OSError:
        return f"{file.absolute()} cannot be read"
    return f"{file.absolute()} {about.st_size} {about.st_mtime_ns}"


def write_vectors(
    model: Model,
    inputs: Sequence[str | os.PathLike[str]],
    path: str | os.PathLike[str],
    *,
    batch_size: int | None = None,
    progress: Progress | None = None,
    skip_bad: bool = False,
    overwrite: bool = False,
    chunk: int = _CHUNK,
    processes: int | None = None,
    ray: str | None = None,
) -> VectorFile:
    """Embed files of any number into a file; the same call goes on with one that was killed.

    Args:
        model: Embeds.
        inputs: As for :func:`named_samples`.
        path: ``.parquet``, with the columns ``name``, ``label`` (where there are any) and ``vector``; or
            ``.npy``, with ``name`` and ``label`` in a ``.csv`` beside it, row by row.
        batch_size: Samples at a time through the network.
        progress: Called with the samples done and the number of all.
        skip_bad: Leave files out that cannot be read, instead of stopping.
        overwrite: Replace a file that holds something else.
        chunk: Samples per chunk, about.
        processes: That embed chunks beside each other; the chunk of one that is lost goes to another. On a
            cluster: how many chunks are handed over at a time.
        ray: The address of a Ray cluster to embed on: see
            :func:`~nearkin.model.embedding_workers.embedding_workers`.

    Raises:
        ValueError: The file's name ends otherwise, it holds something else, an input cannot be read, or
            another process is writing it; or workers cannot read the model.
        RuntimeError: A chunk was lost with its worker again and again.
    """
    target = Path(path)
    if target.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{target}: vectors are written as {' or '.join(SUFFIXES)}")
    if target.suffix.lower() == ".parquet":
        require("pyarrow.parquet", extra="parquet", purpose="writing .parquet")
    work = _Work(model, named_samples(inputs), target, batch_size or model.embedders[0].batch_size, chunk)
    there = work.finished()
    if there is not None:
        shutil.rmtree(work.folder, ignore_errors=True)  # a kill may have come just before it went
        return there
    if target.exists() and not overwrite:
        raise ValueError(
            f"{target} exists and holds something else, or embeddings of another model or of other files: "
            "choose another name, or overwrite it"
        )
    with _alone(work.folder):
        remove_unfinished(work.folder)
        missing = work.missing()
        with embedding_workers(
            model,
            processes=processes if len(missing) > 1 else None,
            ray=ray,
            batch_size=work.batch_size,
            skip_bad=skip_bad,
        ) as embed:
            work.embed(missing, embed, progress, skip_bad=skip_bad)
        written = work.put_together(sum(len(work.ranges[number]) for number in missing))
    shutil.rmtree(work.folder)
    return written


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = FileLock(folder / ".lock").acquire(timeout=0)
    except Timeout:
        raise ValueError(f"another process is writing into {folder}: wait for it") from None
    with lock:
        yield


class _Work:
    """What is to be embedded, and the chunks that are there already."""

    def __init__(self, model: Model, named: NamedSamples, target: Path, batch_size: int, chunk: int) -> None:
        self.model, self.named, self.target, self.batch_size = model, named, target, batch_size
        self.folder = target.with_name(f"{target.name}.parts")
        self.step = max(chunk // batch_size, 1) * batch_size
        self.fingerprint = model.fingerprint
        count = len(named.names)
        self.ranges = [range(start, min(start + self.step, count)) for start in range(0, count, self.step)]
        self.keys = [self._key(rows) for rows in self.ranges]

    def _key(self, rows: range) -> str:
        digest = hashlib.sha256(self.fingerprint.encode())
        for row in rows:
            digest.update(f"\0{self.named.names[row]}\0{self.named.files[row]}".encode())
        return digest.hexdigest()

    @property
    def key(self) -> str:
        return hashlib.sha256("".join(self.keys).encode()).hexdigest()

    def _file(self, number: int) -> Path:
        return self.folder / f"part-{number:06d}.safetensors"

    def _part(self, number: int) -> TensorFile | None:
        """A chunk that is whole and made from what is here now."""
        if not self._file(number).exists():
            return None
        try:
            part = read_tensors(self._file(number))
        except DamagedFileError:
            return None
        return part if part.state.get("key") == self.keys[number] else None

    def missing(self) -> list[int]:
        """The numbers of chunks that are not there, or made from something else."""
        return [number for number in range(len(self.ranges)) if self._part(number) is None]

    def samples(self, number: int) -> Samples:
        """Those of a chunk."""
        return self.named.samples.select(self.ranges[number])

    def embed(
        self, missing: Sequence[int], embed: Embed, progress: Progress | None, *, skip_bad: bool
    ) -> None:
        """Embed chunks, by workers or here, and write them."""
        total = len(self.named.names)
        done = total - sum(len(self.ranges[number]) for number in missing)

        def told(more: int, _: int) -> None:
            if progress is not None:
                progress(done + more, total)

        told(0, 0)
        for number, chunk in zip(missing, embed(self.samples(number) for number in missing), strict=True):
            self._write(number, self._embedded(number, told, skip_bad) if chunk is None else chunk)
            done += len(self.ranges[number])
            told(0, 0)

    def _embedded(self, number: int, progress: Progress, skip_bad: bool) -> Chunk:
        (found,) = self.model.embed_in_chunks(
            self.samples(number),
            batch_size=self.batch_size,
            progress=progress,
            skip_bad=skip_bad,
            chunk=self.step,
        )
        return found

    def _write(self, number: int, chunk: Chunk) -> None:
        rows = torch.tensor([self.ranges[number].start + index for index in chunk.indices], dtype=torch.long)
        state = {"key": self.keys[number], "skipped": chunk.skipped}
        write_tensors(self._file(number), {"vectors": chunk.embeddings, "rows": rows}, state)

    def _parts(self) -> Iterator[TensorFile]:
        for number in range(len(self.ranges)):
            part = self._part(number)
            if part is None:
                raise ValueError(f"{self._file(number)} is damaged: run the same command again")
            yield part

    def put_together(self, embedded: int) -> VectorFile:
        """Write the file from the chunks."""
        skipped: list[tuple[str, str]] = []
        count = 0
        for part in self._parts():
            count += len(part.tensors["rows"])
            skipped += [(name, why) for name, why in part.state["skipped"]]
        if not count:
            raise ValueError(f"none of {len(self.named.names)} files can be read: {skipped[0][1]}")
        written = VectorFile(
            str(self.target),
            count,
            self.model.embedding_dim,
            embedded,
            len(self.named.names) - embedded,
            tuple(skipped),
            self.fingerprint,
        )
        write = self._write_parquet if self.target.suffix.lower() == ".parquet" else self._write_npy
        write(count, {**written.to_dict(), "key": self.key})
        return written

    def _has_labels(self) -> bool:
        return any(label is not None for label in self.named.labels)

    def _write_parquet(self, _: int, about: Mapping[str, Any]) -> None:
        arrow = require("pyarrow", extra="parquet", purpose="writing .parquet")
        parquet = require("pyarrow.parquet", extra="parquet", purpose="writing .parquet")
        size = self.model.embedding_dim
        fields = [("name", arrow.string())]
        fields += [("label", arrow.string())] if self._has_labels() else []
        fields += [("vector", arrow.list_(arrow.float32(), size))]
        schema = arrow.schema(fields, metadata={_METADATA: json.dumps(about)})
        whole = self.folder / self.target.name
        with atomic_path(whole) as temporary, parquet.ParquetWriter(str(temporary), schema) as file:
            for part in self._parts():
                rows = part.tensors["rows"].tolist()
                flat = arrow.array(part.tensors["vectors"].numpy().ravel(), type=arrow.float32())
                columns = [arrow.array([self.named.names[row] for row in rows], type=arrow.string())]
                if self._has_labels():
                    columns.append(arrow.array([self.named.labels[row] for row in rows], type=arrow.string()))
                columns.append(arrow.FixedSizeListArray.from_arrays(flat, size))
                file.write_table(arrow.Table.from_arrays(columns, schema=schema))
        whole.replace(self.target)

    def _write_npy(self, count: int, about: Mapping[str, Any]) -> None:
        whole = self.folder / self.target.name
        columns = ["name", "label"] if self._has_labels() else ["name"]
        with (
            atomic_path(whole) as temporary,
            atomic_path(whole.with_suffix(".csv")) as table,
            table.open("w", newline="", encoding="utf-8") as lines,
        ):
            vectors = np.lib.format.open_memmap(
                temporary, mode="w+", dtype=np.float32, shape=(count, self.model.embedding_dim)
            )
            out = csv.writer(lines)
            out.writerow(columns)
            done = 0
            for part in self._parts():
                rows = part.tensors["rows"].tolist()
                vectors[done : done + len(rows)] = part.tensors["vectors"].numpy()
                done += len(rows)
                out.writerows(
                    [self.named.names[row], self.named.labels[row] or ""][: len(columns)] for row in rows
                )
            vectors.flush()
            del vectors
        whole.with_suffix(".csv").replace(self.target.with_suffix(".csv"))
        whole.replace(self.target)
        write_json(self.target.with_suffix(".json"), about)

    def finished(self) -> VectorFile | None:
        """What the file is, if it holds all of this already."""
        about = _about(self.target)
        if about is None or about.get("key") != self.key:
            return None
        return VectorFile(
            str(self.target),
            about["samples"],
            about["dimensions"],
            0,
            len(self.named.names),
            tuple((one["name"], one["reason"]) for one in about["skipped"]),
            about["fingerprint"],
        )


def _about(target: Path) -> dict[str, Any] | None:
    """What a file of vectors says about itself; ``None`` if it is none of ours."""
    if not target.is_file():
        return None
    try:
        if target.suffix.lower() == ".npy":
            text: str | bytes = target.with_suffix(".json").read_text(encoding="utf-8")
            rows = np.load(target, mmap_mode="r", allow_pickle=False).shape[0]
            if rows != json.loads(text)["samples"] or not target.with_suffix(".csv").is_file():
                return None
        else:
            parquet = require("pyarrow.parquet", extra="parquet", purpose="writing .parquet")
            text = (parquet.read_schema(str(target)).metadata or {})[_METADATA]
        values: dict[str, Any] = json.loads(text)
    except (OSError, LookupError, ValueError, TypeError, AttributeError):  # damaged, or somebody else's
        return None
    return values if isinstance(values, dict) else None
