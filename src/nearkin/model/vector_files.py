"""Embeddings of any number of samples in a file: written shard by shard, and gone on with after a kill.

Samples are known by a hash of their content, and go into shards in their order, each content once. A file is
hashed when its shard is made, just before it is embedded, so that its bytes are still in memory when they are
decoded. The vectors of every shard are written whole into a folder beside the file
(:mod:`nearkin.model.vector_parts`). When all are there, the file is put together and the folder goes.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shutil
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from nearkin.atomic import atomic_path, remove_unfinished, write_json
from nearkin.data import ImageFiles, Samples, Texts
from nearkin.data import as_samples as data_samples
from nearkin.data.class_folders import files_below, labels_below
from nearkin.data.content_hashes import content_hash
from nearkin.data.decoding import BrokenImageError
from nearkin.data.packed import SUFFIXES as PACKED
from nearkin.data.packed import PackedImages, packed_images
from nearkin.data.sample_hashes import fingerprint as content_of_samples
from nearkin.extras import require
from nearkin.model.embedding_workers import Embed, embedding_workers
from nearkin.model.model import Chunk, Model, Progress
from nearkin.model.vector_parts import Parts, Shard

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
        files: By what a change of a sample shows, per sample: a file, its size and its time of change.
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
        embedded: Samples whose vectors were made now; those of equal content share one.
        found: Samples whose content had been embedded before this call.
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
            labels += labels_below([name.as_posix() for name in below])
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
        parts = Parts(work.folder, work.fingerprint)
        with embedding_workers(
            model,
            processes=processes if work.unseen(parts) > work.step else None,
            ray=ray,
            batch_size=work.batch_size,
            skip_bad=skip_bad,
        ) as embed:
            found = work.embed(parts, embed, progress, skip_bad=skip_bad)
        written = work.put_together(parts, found)
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
    """What is to be embedded."""

    def __init__(self, model: Model, named: NamedSamples, target: Path, batch_size: int, chunk: int) -> None:
        self.model, self.named, self.target, self.batch_size = model, named, target, batch_size
        self.folder = target.with_name(f"{target.name}.parts")
        self.step = max(chunk // batch_size, 1) * batch_size
        self.fingerprint = model.fingerprint
        self.contents: dict[int, str] = {}

    def look_at(self, rows: Sequence[int], seen: Mapping[str, str]) -> None:
        """Hash the contents of rows, unless their files are as they were when they were last seen."""
        files, samples = self.named.files, self.named.samples
        self.contents |= {row: seen[files[row]] for row in rows if files[row] in seen}
        unseen = [row for row in rows if row not in self.contents]
        if isinstance(samples, ImageFiles):
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                self.contents |= zip(unseen, pool.map(self._content, unseen), strict=True)
        else:
            self.contents |= {row: self._content(row) for row in unseen}

    def _content(self, row: int) -> str:
        samples = self.named.samples
        try:
            if isinstance(samples, ImageFiles):
                return content_hash(samples.path(row))
            return content_of_samples(samples.select([row]))
        except (OSError, BrokenImageError):  # whoever embeds it meets the same, and tells it
            return f"unread {self.named.files[row]}"

    def key(self, about: Sequence[str]) -> str:
        """A hash of the model, of what samples are called, and of what is known about each."""
        digest = hashlib.sha256(self.fingerprint.encode())
        for name, known in zip(self.named.names, about, strict=True):
            digest.update(f"\0{name}\0{known}".encode())
        return digest.hexdigest()

    def unseen(self, parts: Parts) -> int:
        """How many files were not embedded as they are now, by their names, sizes and times of change."""
        return sum(file not in parts.seen for file in self.named.files)

    def shards(self, parts: Parts) -> Iterator[Shard]:
        """What is not in the parts yet, in the order of the inputs, each content once."""
        begun = parts.contents()
        for start in range(0, len(self.named.names), self.step):
            block = range(start, min(start + self.step, len(self.named.names)))
            self.look_at(block, parts.seen)
            first = {self.contents[row]: row for row in reversed(block) if self.contents[row] not in begun}
            begun |= first.keys()
            if first:
                yield Shard(
                    block,
                    sorted(first.values()),
                    [self.contents[row] for row in sorted(first.values())],
                    {self.named.files[row]: self.contents[row] for row in block},
                )

    def embed(self, parts: Parts, embed: Embed, progress: Progress | None, *, skip_bad: bool) -> int:
        """Embed what is not in the parts yet, by workers or here; how many samples were there before."""
        total = len(self.named.names)
        there, known = parts.contents(), total - self.unseen(parts)
        waiting: deque[Shard] = deque()

        def handed_out() -> Iterator[Samples]:
            for shard in self.shards(parts):
                waiting.append(shard)
                yield self.named.samples.select(shard.rows)

        def told(done: int, _: int = 0) -> None:
            if progress is not None:
                progress(max(known, done), total)

        told(0)
        for chunk in embed(handed_out()):
            shard = waiting.popleft()
            parts.add(shard, self._embedded(shard, told, skip_bad) if chunk is None else chunk)
            told(shard.block.stop)
        told(total)
        return sum(content in there for content in self.contents.values())

    def _embedded(self, shard: Shard, told: Progress, skip_bad: bool) -> Chunk:
        (found,) = self.model.embed_in_chunks(
            self.named.samples.select(shard.rows),
            batch_size=self.batch_size,
            progress=lambda done, _: told(shard.block.start + done, 0),
            skip_bad=skip_bad,
            chunk=self.step,
        )
        return found

    def put_together(self, parts: Parts, found: int) -> VectorFile:
        """Write the file from the parts."""
        contents = [self.contents[row] for row in range(len(self.named.names))]
        rows = [row for row, content in enumerate(contents) if content not in parts.unreadable]
        skipped = tuple(
            self._skipped(row, *parts.unreadable[content])
            for row, content in enumerate(contents)
            if content in parts.unreadable
        )
        if not rows:
            raise ValueError(f"none of {len(contents)} files can be read: {skipped[0][1]}")
        written = VectorFile(
            str(self.target),
            len(rows),
            self.model.embedding_dim,
            len(contents) - found,
            found,
            skipped,
            self.fingerprint,
        )
        about = {**written.to_dict(), "key": self.key(contents), "files": self.key(self.named.files)}
        whole = self.folder / "vectors.npy"
        with atomic_path(whole) as temporary:
            shape = (len(rows), self.model.embedding_dim)
            vectors = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.float32, shape=shape)
            parts.gather([contents[row] for row in rows], vectors)
            vectors.flush()
            del vectors
        write = self._write_parquet if self.target.suffix.lower() == ".parquet" else self._write_npy
        write(whole, rows, about)
        return written

    def _skipped(self, row: int, name: str, reason: str) -> tuple[str, str]:
        """A file that cannot be read; the reason may be that of another one of the same content."""
        own = self.named.samples.name(row)
        return own, reason.replace(name, own)

    def _has_labels(self) -> bool:
        return any(label is not None for label in self.named.labels)

    def _write_parquet(self, whole: Path, rows: Sequence[int], about: Mapping[str, Any]) -> None:
        arrow = require("pyarrow", extra="parquet", purpose="writing .parquet")
        parquet = require("pyarrow.parquet", extra="parquet", purpose="writing .parquet")
        size = self.model.embedding_dim
        fields = [("name", arrow.string())]
        fields += [("label", arrow.string())] if self._has_labels() else []
        fields += [("vector", arrow.list_(arrow.float32(), size))]
        schema = arrow.schema(fields, metadata={_METADATA: json.dumps(about)})
        vectors = np.load(whole, mmap_mode="r")
        table = self.folder / self.target.name
        with atomic_path(table) as temporary, parquet.ParquetWriter(str(temporary), schema) as file:
            for start in range(0, len(rows), self.step):
                some = rows[start : start + self.step]
                flat = arrow.array(vectors[start : start + self.step].ravel(), type=arrow.float32())
                columns = [arrow.array([self.named.names[row] for row in some], type=arrow.string())]
                if self._has_labels():
                    columns.append(arrow.array([self.named.labels[row] for row in some], type=arrow.string()))
                columns.append(arrow.FixedSizeListArray.from_arrays(flat, size))
                file.write_table(arrow.Table.from_arrays(columns, schema=schema))
        table.replace(self.target)

    def _write_npy(self, whole: Path, rows: Sequence[int], about: Mapping[str, Any]) -> None:
        columns = ["name", "label"] if self._has_labels() else ["name"]
        with (
            atomic_path(whole.with_suffix(".csv")) as table,
            table.open("w", newline="", encoding="utf-8") as lines,
        ):
            out = csv.writer(lines)
            out.writerow(columns)
            out.writerows(
                [self.named.names[row], self.named.labels[row] or ""][: len(columns)] for row in rows
            )
        # The vectors come last: what a kill leaves before them is no file of vectors, and is written again.
        self.target.unlink(missing_ok=True)
        whole.with_suffix(".csv").replace(self.target.with_suffix(".csv"))
        write_json(self.target.with_suffix(".json"), about)
        whole.replace(self.target)

    def finished(self) -> VectorFile | None:
        """What the file is, if it holds all of this already.

        Files that are as they were are not read for it; others are, to see whether their contents are.
        """
        about = _about(self.target)
        if about is None or about.get("fingerprint") != self.fingerprint:
            return None
        if about.get("files") != self.key(self.named.files):
            if about["samples"] + len(about["skipped"]) != len(self.named.names):
                return None
            self.look_at(range(len(self.named.names)), {})
            if about.get("key") != self.key([self.contents[row] for row in range(len(self.named.names))]):
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
