"""Activations of a frozen trunk, computed once and kept on disk, so that training runs only what comes after.

A cache is a folder with two files: ``activations.npy``, float16 ``(N, V, …)`` with one or several views of
each sample (as in evaluation, mirrored, and random crops), and ``chunks.json``, the checksums of the chunks
that have been written. A chunk that is not listed, or does not match its checksum, is computed (again). So a
cache that was interrupted goes on where it stopped, and a damaged one is mended, by the same few lines.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from numpy.typing import NDArray
from torch import Tensor, nn

from nearkin.atomic import write_json
from nearkin.data.joining import join_samples
from nearkin.data.loading import loader
from nearkin.data.nested import move
from nearkin.data.sample_hashes import fingerprint
from nearkin.data.samples import Samples, SampleSet
from nearkin.data.transforms import Transform
from nearkin.networks.base import Network
from nearkin.networks.embedding import Progress, fitting_transform
from nearkin.networks.splitting import device_of
from nearkin.networks.weights import add_weights

_FORMAT = 1
_CHUNK = 64
_FLOAT16_MAX = 65504.0


class Activations:
    """Cached activations in place of samples, ``float16``; an :class:`~nearkin.data.Samples`.

    Args:
        folder: The cache.
        samples: What the activations were computed from, for the names.
        rows: Which row of the cache each sample is.
    """

    def __init__(
        self, folder: str | os.PathLike[str], samples: Samples, rows: Sequence[int] | None = None
    ) -> None:
        self.folder = Path(folder)
        self._samples = samples
        self._rows = np.arange(len(samples)) if rows is None else np.asarray(rows, dtype=np.int64)
        self._array: NDArray[np.float16] = _open(self.folder)

    def __getstate__(self) -> dict[str, Any]:
        """A worker process opens the file itself: pickled, a memory map would become gigabytes of bytes."""
        return {key: value for key, value in self.__dict__.items() if key != "_array"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._array = _open(self.folder)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Tensor:
        return self.batch([index])[0]

    @property
    def samples(self) -> Samples:
        """What the activations were computed from."""
        return self._samples

    @property
    def views(self) -> int:
        """V: how many views of each sample are here; the first is the one of evaluation."""
        return int(self._array.shape[1])

    @property
    def has_flips(self) -> bool:
        """Whether the activations of the mirrored images are here as well, and nothing else."""
        return self.views == 2

    def batch(self, indices: Sequence[int], views: Sequence[int] | None = None) -> Tensor:
        """Activations at ``indices``, of the given views or those of evaluation; ``float16`` ``(B, …)``."""
        chosen = np.zeros(len(indices), dtype=np.int64) if views is None else np.asarray(views, np.int64)
        return torch.from_numpy(self._array[self._rows[list(indices)], chosen])

    def select(self, indices: Sequence[int]) -> Activations:
        """The activations at ``indices``, in that order."""
        return Activations(self.folder, self._samples.select(indices), self._rows[list(indices)].tolist())

    def name(self, index: int) -> str:
        """The name of the sample that it was computed from."""
        return self._samples.name(index)

    def fingerprint(self) -> str:
        """That of the samples below: the cache follows from them and the trunk."""
        return fingerprint(self._samples)

    def joined(self, other: Activations) -> Activations:
        """These activations and then those of another part of the same cache."""
        if self.folder != other.folder:
            raise ValueError(f"activations of two caches cannot be joined: {self.folder}, {other.folder}")
        together = join_samples(self._samples, other._samples)
        return Activations(self.folder, together, [*self._rows.tolist(), *other._rows.tolist()])


def _open(folder: Path) -> NDArray[np.float16]:
    array: NDArray[np.float16] = np.load(folder / "activations.npy", mmap_mode="r")
    return array


class ActivationTransform:
    """Cached activations to network input: float32, of a view that is drawn at random in training.

    Args:
        flip: Probability of the mirror image, where the cache has both; 0 for evaluation.
        crops: How many random crops the cache has beside these; with any, all views are equally likely.
    """

    def __init__(self, flip: float = 0.0, crops: int = 0) -> None:
        self.flip, self.crops = flip, crops

    def __repr__(self) -> str:
        crops = f", crops={self.crops}" if self.crops else ""
        return f"ActivationTransform(flip={self.flip}{crops})"

    def __call__(self, samples: Samples, indices: Sequence[int], seeds: Sequence[int]) -> Tensor:
        """The activations at ``indices``, each with its own seed, as float32 ``(B, …)``."""
        if not isinstance(samples, Activations):
            raise TypeError(f"ActivationTransform takes cached activations, not {type(samples).__name__}")
        # A seed of the loader is uniform over 63 bits, so that its upper bits are a fair draw.
        if self.crops:
            return samples.batch(indices, [seed * samples.views >> 63 for seed in seeds]).float()
        if self.flip and not samples.has_flips:
            raise ValueError(
                f"flip={self.flip} but the cache has no mirrored images: build it with flips=True"
            )
        return samples.batch(indices, [seed < self.flip * 2**63 for seed in seeds]).float()


def cache_activations(
    network: Network,
    stage: str,
    sample_set: SampleSet,
    folder: str | os.PathLike[str],
    *,
    flips: bool = True,
    crops: int = 0,
    transform: Transform | None = None,
    training_transform: Transform | None = None,
    workers: int = 0,
    progress: Progress | None = None,
) -> tuple[SampleSet, Network]:
    """Compute what a network makes of samples up to a stage, once, and hand back what is left to train.

    The cache is kept in a subfolder of ``folder`` named after a hash of the trunk's weights, the transform
    and the samples, so it is found again when all of these are the same, and only then. It takes two bytes
    per number: 1.0 GB for the 11,788 images of CUB, with mirror images, after ``blocks.4`` of
    EfficientNet-Lite0.

    Args:
        network: Its part up to ``stage`` is taken as it is now, in evaluation mode.
        stage: See :meth:`Network.split`; ``pooling`` keeps features and leaves the head to train.
        sample_set: Whatever the network takes.
        folder: Where caches live.
        flips: Whether to keep the mirror images, too, for training.
        crops: How many random views of each sample to keep beside, for training.
        transform: By default resize and centre crop, or nothing where the network takes images as they are;
            nothing random makes sense here.
        training_transform: Makes the random views.
        workers: Processes that decode.
        progress: Called with the samples done and the number of all; samples already in the cache count.

    Returns:
        A sample set of :class:`Activations`, for :func:`nearkin.data.loader` and :func:`embed`
        with an :class:`ActivationTransform`; and the network that takes them, which shares its parameters
        with ``network``.
    """
    trunk, rest = network.split(stage)
    if transform is None:
        if network.preprocessing is None:
            raise ValueError("cache_activations needs transform=: this network does not say what it expects")
        transform = fitting_transform(network.preprocessing)
    if crops and training_transform is None:
        raise ValueError(f"crops={crops} needs training_transform=, which makes them")
    flips = flips and network.preprocessing is not None  # only images can be mirrored
    views = f"{flips}" if not crops else f"{flips} {crops} {training_transform!r}"
    own_folder = Path(folder) / _key(trunk, stage, transform, views, sample_set.samples)
    own_folder.mkdir(parents=True, exist_ok=True)
    with FileLock(own_folder / "lock"):  # of two runs that start at once, one computes and the other waits
        example = _output_shape(trunk, sample_set, transform, device_of(network))
        cache = _Cache(own_folder, shape=(len(sample_set), 1 + flips + crops, *example))
        missing = cache.missing_chunks()
        done = len(sample_set) - sum(len(chunk) for chunk in missing)
        sources = [loader(sample_set, transform, batch_sampler=missing, workers=workers)]
        for number in range(crops):  # the seed tells one random view of a sample from another
            assert training_transform is not None
            sources.append(
                loader(
                    sample_set, training_transform, batch_sampler=missing, workers=workers, seed=1 + number
                )
            )
        for chunk, *batches in zip(missing, *sources, strict=True):
            inputs = [move(batch.inputs, device_of(network)) for batch in batches]
            if flips:
                inputs.insert(1, inputs[0].flip(-1))
            cache.write(chunk, torch.stack([trunk(one) for one in inputs], dim=1))
            done += len(chunk)
            if progress is not None:
                progress(done, len(sample_set))
    activations = Activations(own_folder, sample_set.samples)
    seen = SampleSet(
        activations,
        sample_set.labels,
        sample_set.class_names,
        cameras=sample_set.cameras,
        pairs=sample_set.pairs,
    )
    return seen, rest


def _key(trunk: nn.Module, stage: str, transform: Transform, views: str, samples: Samples) -> str:
    digest = hashlib.sha256(f"{_FORMAT} {stage} {transform!r} {views} {fingerprint(samples)}".encode())
    add_weights(digest, trunk)
    return digest.hexdigest()[:32]


@torch.no_grad()
def _output_shape(
    trunk: nn.Module, sample_set: SampleSet, transform: Transform, device: torch.device
) -> torch.Size:
    output: Tensor = trunk(move(transform(sample_set.samples, [0], [0]), device))
    return output.shape[1:]


class _Cache:
    """The two files of a cache while it is being filled.

    Args:
        folder: Where they are.
        shape: ``(N, V, …)``.
    """

    def __init__(self, folder: Path, shape: tuple[int, ...]) -> None:
        self.folder = folder
        self._table = folder / "chunks.json"
        self._checksums: dict[str, int] = {}
        self._array = self._opened(folder / "activations.npy", shape)

    def _opened(self, path: Path, shape: tuple[int, ...]) -> NDArray[np.float16]:
        try:
            array: NDArray[np.float16] = np.lib.format.open_memmap(path, mode="r+")
            if array.shape == shape and array.dtype == np.float16:
                self._checksums = json.loads(self._table.read_text(encoding="utf-8"))
                return array
        except (OSError, ValueError):
            pass  # not there yet, or damaged: start afresh
        self._table.unlink(missing_ok=True)
        return np.lib.format.open_memmap(path, mode="w+", dtype=np.float16, shape=shape)

    def missing_chunks(self) -> list[range]:
        """Rows that are missing, or that are not what was written: they have to be computed."""
        rows = len(self._array)
        chunks = [range(start, min(start + _CHUNK, rows)) for start in range(0, rows, _CHUNK)]
        return [chunk for chunk in chunks if self._checksums.get(str(chunk.start)) != self._checksum(chunk)]

    def write(self, chunk: range, activations: Tensor) -> None:
        """Keep the activations of the samples in ``chunk``: the numbers first, and then their checksum."""
        if activations.abs().amax() > _FLOAT16_MAX or activations.isnan().any():
            raise ValueError(
                f"activations of samples {chunk.start} to {chunk.stop - 1} do not fit into float16 "
                f"(largest {float(activations.abs().amax()):.3g}): choose another stage"
            )
        self._array[chunk.start : chunk.stop] = activations.half().cpu().numpy()
        self._array.flush()  # type: ignore[attr-defined]
        self._checksums[str(chunk.start)] = self._checksum(chunk)
        write_json(self._table, self._checksums)

    def _checksum(self, chunk: range) -> int:
        return zlib.crc32(np.ascontiguousarray(self._array[chunk.start : chunk.stop]).data)
