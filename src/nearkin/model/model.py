"""What a training leaves: load it, embed with it, compare, save it elsewhere."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor
from torch.nn.functional import normalize
from torch.utils.data import DataLoader

from nearkin.atomic import write_json
from nearkin.data import Samples, SampleSet, Texts, TwoModalities
from nearkin.data.decoding import BrokenImageError
from nearkin.data.nested import move
from nearkin.data.pixels import is_image
from nearkin.data.two_modalities import NAMES
from nearkin.display import observer_for
from nearkin.evaluation import Threshold, choose_threshold
from nearkin.model.decision import Decision
from nearkin.model.files import describe, read_embedder, read_threshold, write_embedder, write_threshold
from nearkin.model.inputs import as_samples
from nearkin.networks import Embedder, TwoTowers, WrappedNetwork
from nearkin.networks.splitting import device_of
from nearkin.networks.two_towers import tower
from nearkin.networks.weights import add_weights

if TYPE_CHECKING:
    from nearkin.model.exporting import Export

Progress = Callable[[int, int], None]
_CHUNK = 2048  # samples, about, that are embedded at a time


@dataclass(frozen=True)
class Chunk:
    """Some of the samples that a model embeds, one after the other.

    Attributes:
        indices: Positions of the samples that could be read.
        embeddings: Theirs, ``(n, D)``.
        skipped: Files that could not be read, each with the reason.
    """

    indices: range | list[int]
    embeddings: Tensor
    skipped: list[tuple[str, str]]


class Model:
    """Samples of any kind to unit embeddings: one network, or several whose embeddings stand side by side.

    Args:
        embedders: The networks and how they see samples.
        about: What is known about how it was made: plain values.
        threshold: From which similarity on two samples are taken for the same.

    Attributes:
        embedders: The networks and how they see samples.
        about: What is known about how it was made.
        threshold: From which similarity on two samples are taken for the same, with its error rates. ``None``
            where training had no validation classes or too few, and for the networks of a cross-validation
            side by side: each class was learnt by all of them but one. :meth:`choose_threshold` chooses one.
        skipped: Files that the last ``embed(..., skip_bad=True)`` could not read, each with the reason.
    """

    def __init__(
        self,
        embedders: Sequence[Embedder],
        about: Mapping[str, Any] | None = None,
        threshold: Threshold | None = None,
    ) -> None:
        if not embedders:
            raise ValueError("a model needs at least one network")
        self.embedders = tuple(embedders)
        self.about = dict(about or {})
        self.threshold = threshold
        self.skipped: list[tuple[str, str]] = []

    @classmethod
    def read(cls, path: str | os.PathLike[str], **given: Any) -> Model:
        """The model in a folder that :meth:`save` wrote, or in the folder of a run."""
        folder = Path(path)
        parts = sorted(folder.glob("network-*")) or [folder]
        embedders = [read_embedder(part, **given) for part in parts]
        return cls(embedders, threshold=read_threshold(folder))

    @property
    def network(self) -> torch.nn.Module:
        """The network, where there is one.

        Raises:
            ValueError: There are several.
        """
        if len(self.embedders) > 1:
            raise ValueError(f"this model has {len(self.embedders)} networks: see model.embedders")
        return self.embedders[0].network

    @property
    def embedding_dim(self) -> int:
        """D, the size of an embedding; of two modalities, of an embedding of either."""
        return sum(one.network.embedding_dim for one in self.embedders) // (2 if self.has_two else 1)

    @property
    def has_two(self) -> bool:
        """Whether it has networks for two modalities, such as images and texts."""
        return isinstance(self.embedders[0].network.backbone, TwoTowers)

    def to(self, device: str | torch.device) -> Model:
        """Move all networks to a device."""
        for one in self.embedders:
            one.network.to(device)
        return self

    def modality(self, number: int | str) -> Model:
        """The model of one of two modalities, which embeds samples of that one into the common space.

        Args:
            number: 0 or ``"image"`` for the first, 1 or ``"text"`` for the second.

        Raises:
            ValueError: The model is of one modality.
        """
        place = NAMES.index(number) if number in NAMES else number
        return Model([tower(one, place) for one in self.embedders], self.about)  # type: ignore[arg-type]

    def _of_kind(self, samples: Samples) -> tuple[Embedder, ...]:
        """The networks that embed these samples: of two modalities, those that images or texts are for."""
        if not self.has_two:
            return self.embedders
        sees_images = self.embedders[0].network.preprocessing is not None
        if sees_images and isinstance(samples, Texts):
            return self.modality(1).embedders
        if sees_images and not isinstance(samples, TwoModalities) and is_image(samples[0]):
            return self.modality(0).embedders
        raise ValueError(
            f"this model has two networks, and it cannot be told which one {_kind(samples)} are for: say "
            "model.modality(0).embed(…) or model.modality(1).embed(…), one modality at a time"
        )

    def embed(
        self,
        inputs: Any,
        *,
        batch_size: int | None = None,
        progress: Progress | bool | None = None,
        skip_bad: bool = False,
        dim: int | None = None,
    ) -> Tensor:
        """Unit embeddings ``(N, D)``, float32 on the CPU, in the order of the inputs.

        Args:
            inputs: Paths, PIL images, arrays, tensors, texts, a folder, a sample set, or a ``DataLoader``
                whose batches are network inputs (or start with them). A model of images and texts takes
                either: strings are paths where there is such a file, or they end as image files do.
            batch_size: Samples at a time; the numbers do not depend on it beyond 1e-5.
            progress: Called with the samples done and the number of all; ``True`` shows it.
            skip_bad: Leave files out that cannot be read, and list them in :attr:`skipped`, instead of
                stopping.
            dim: How many of the first dimensions to keep, at length 1 again: for models that were trained
                with ``[loss.matryoshka]``, whose beginnings are embeddings by themselves. Several networks
                give equal parts of it.

        Raises:
            ValueError: An input cannot be read (the message names it), or is of an unknown kind; or ``dim``
                is more than the model has.
        """
        self._check_dim(dim)
        if isinstance(inputs, DataLoader):
            return self._embed_batches(inputs, dim)
        samples = self.samples(inputs)
        rows = torch.empty(len(samples), dim or self.embedding_dim)
        done, self.skipped = 0, []
        with _telling(progress, len(samples)) as told:
            for chunk in self.embed_in_chunks(
                samples, batch_size=batch_size, progress=told, skip_bad=skip_bad, dim=dim
            ):
                rows[done : done + len(chunk.embeddings)] = chunk.embeddings
                done += len(chunk.embeddings)
                self.skipped += chunk.skipped
        if not done:
            raise ValueError(f"none of {len(samples)} files can be read: {self.skipped[0][1]}")
        return rows if done == len(rows) else rows[:done].clone()

    def samples(self, inputs: Any) -> Samples:
        """Inputs of any kind that :meth:`embed` takes, as samples: nothing is read yet."""
        expected = self.embedders[0].network.preprocessing
        channels = None if expected is None else expected.channels
        takes_images = None if self.has_two else expected is not None
        return as_samples(inputs, takes_images=takes_images, channels=channels)

    def embed_in_chunks(
        self,
        samples: Samples,
        *,
        batch_size: int | None = None,
        progress: Progress | None = None,
        skip_bad: bool = False,
        chunk: int = _CHUNK,
        dim: int | None = None,
    ) -> Iterator[Chunk]:
        """Unit embeddings of any number of samples, some thousand at a time, so that memory stays flat.

        Args:
            samples: From :meth:`samples`.
            batch_size: Samples at a time through the network.
            progress: Called with the samples done and the number of all.
            skip_bad: Leave files out that cannot be read, instead of stopping.
            chunk: Samples per chunk, about: whole batches.
            dim: How many of the first dimensions to keep, as in :meth:`embed`.
        """
        size = batch_size or self.embedders[0].batch_size
        if size < 1:
            raise ValueError(f"batch_size={size} must be at least 1")
        step = max(chunk // size, 1) * size
        for start in range(0, len(samples), step):
            indices = range(start, min(start + step, len(samples)))
            yield self._chunk(samples, indices, size, progress, skip_bad=skip_bad, dim=dim)

    def _chunk(
        self,
        samples: Samples,
        indices: range,
        size: int,
        progress: Progress | None,
        *,
        skip_bad: bool,
        dim: int | None,
    ) -> Chunk:
        def told(done: int, _: int) -> None:
            if progress is not None:
                progress(indices.start + done, len(samples))

        part = samples.select(indices)
        try:
            return Chunk(indices, self._unit_rows(part, size, told, dim), [])
        except BrokenImageError:
            if not skip_bad:
                raise
        kept, skipped = _readable(part)
        rows = torch.empty(0, dim or self.embedding_dim)
        if kept:
            rows = self._unit_rows(part.select(kept), size, None, dim)
        told(len(indices), len(samples))
        return Chunk([indices.start + index for index in kept], rows, skipped)

    def _unit_rows(self, samples: Samples, size: int, progress: Progress | None, dim: int | None) -> Tensor:
        unlabelled = SampleSet(samples, [0] * len(samples))
        *others, last = (replace(one, trunk=None, batch_size=size) for one in self._of_kind(samples))
        try:
            parts = [one.embed(unlabelled) for one in others]
            parts.append(last.embed(unlabelled, progress=progress))
        except (RuntimeError, TypeError) as error:
            if not isinstance(last.network, WrappedNetwork):
                raise
            raise ValueError(
                f"the network {type(last.network.backbone).__name__} cannot take these samples "
                f"({_kind(samples)}): {type(error).__name__}: {' '.join(str(error).split())[:300]}"
            ) from error
        return self._together(parts, dim)

    def similarity(self, a: Any, b: Any) -> Tensor:
        """Cosines ``(N, M)`` of all inputs of ``a`` with all inputs of ``b``; none is a probability."""
        return self.embed(a) @ self.embed(b).T

    def same(self, a: Any, b: Any) -> Decision:
        """Whether two samples are of one class, by the model's threshold.

        Args:
            a: One input of any kind that :meth:`embed` takes.
            b: The other.

        Returns:
            The similarity, the threshold, and whether the one reaches the other; undecided (``None``) where
            the model has no threshold.

        Raises:
            ValueError: An input is several samples, or cannot be read.
        """
        similarity = self.similarity(a, b)
        if similarity.shape != (1, 1):
            raise ValueError(
                f"same compares one sample with one, not {len(similarity)} with {similarity.shape[1]}: "
                "use similarity"
            )
        return Decision(float(similarity), self.threshold)

    def choose_threshold(
        self,
        inputs: Any,
        labels: Sequence[Any] | Tensor | None = None,
        *,
        false_accept_rate: float = 0.01,
        progress: Progress | bool | None = None,
    ) -> Threshold:
        """Choose the model's threshold on labelled samples, and keep it in :attr:`threshold`.

        Args:
            inputs: Samples of classes that the network was not trained on, as for :meth:`embed`.
            labels: One per sample; those of a :class:`~nearkin.data.SampleSet` by default.
            false_accept_rate: Wanted share of the pairs of different classes that are taken for the same.
            progress: As for :meth:`embed`.

        Raises:
            ValueError: There are no labels, or too few classes or pairs.
        """
        if labels is None and not isinstance(inputs, SampleSet):
            raise ValueError("choosing a threshold needs labels: give one per sample, or a SampleSet")
        samples = self.samples(inputs)
        known = inputs if labels is None else SampleSet(samples, labels)
        self.threshold = choose_threshold(
            self.embed(samples, progress=progress),
            known.labels,
            false_accept_rate=false_accept_rate,
            class_names=known.class_names,
        )
        return self.threshold

    def fit(self, inputs: Any = None, labels: Any = None) -> Model:
        """Do nothing: a model is trained already. With :meth:`transform` it is a step of a pipeline."""
        return self

    def transform(self, inputs: Any) -> NDArray[np.float32]:
        """Unit embeddings ``(N, D)`` as a numpy array, for scikit-learn's pipelines."""
        rows: NDArray[np.float32] = self.embed(inputs).numpy()
        return rows

    def fit_transform(self, inputs: Any, labels: Any = None) -> NDArray[np.float32]:
        """The same as :meth:`transform`."""
        return self.transform(inputs)

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_clone__(self) -> Model:
        return self  # nothing in it is learnt by fit

    @property
    def fingerprint(self) -> str:
        """A hash that changes exactly when embeddings could: of weights, preprocessing and transform."""
        digest = hashlib.sha256()
        for one in self.embedders:
            told = describe(one)
            relevant = {key: told[key] for key in ("network", "preprocessing", "transform", "embedding_dim")}
            digest.update(json.dumps(relevant, sort_keys=True).encode())  # lists and tuples are alike
            add_weights(digest, one.network)
        return digest.hexdigest()

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the model into a folder, safetensors and JSON; it loads without the data and the loss."""
        path = Path(folder)
        if path.exists() and any(path.iterdir()) and not (path / "card.json").exists():
            raise ValueError(f"{path} holds other files: choose another folder")
        homes = [path]
        if len(self.embedders) > 1:
            homes = [path / f"network-{number:02d}" for number in range(len(self.embedders))]
        write_threshold(path, self.threshold)
        for home, one in zip(homes, self.embedders, strict=True):
            write_embedder(home, one)
        write_json(path / "card.json", {"fingerprint": self.fingerprint, "about": self.about})
        return path

    def export(
        self,
        output: str | os.PathLike[str],
        *,
        format: str = "onnx",  # noqa: A002  (what everybody calls it)
        int8: bool = False,
        preprocessing: Literal["inside", "beside"] | None = None,
        validation: SampleSet | None = None,
        samples: Any = None,
        calibration: Any = None,
        tolerance: float | None = None,
        recall_tolerance: float | None = None,
        most: int = 1000,
        opset: int = 18,
    ) -> list[Export]:
        """Write the model as a file for another runtime, unless its embeddings differ from the model's.

        The file takes batches of any size and gives unit embeddings. Beside it lies a manifest, under the
        same name with ``.json``: input, preprocessing, threshold, fingerprint, versions and the comparison.
        :func:`nearkin.export` does the same with a run, whose data it finds by itself.

        Args:
            output: The file, or a folder for ``model.onnx`` and the like.
            format: ``onnx``, ``openvino``, ``torchscript``, or ``folder`` for what :meth:`save` writes.
            int8: Whether to write a quantised file as well, ``….int8.onnx``.
            preprocessing: ``inside``: the file takes ``uint8`` RGB pixels ``(N, H, W, 3)`` of the network's
                input size and normalises them. ``beside``: it takes normalised float32 ``(N, 3, H, W)``. By
                default inside where the samples are images.
            validation: Samples of classes that the network was not trained on: outputs and Recall@1 of both
                are compared on them.
            samples: Other samples to compare outputs on, where there are no such classes.
            calibration: Training samples for int8; 200 of them, evenly over all, are used.
            tolerance: Largest difference between two numbers of unit embeddings; by default 1e-4, and 0.15
                for int8.
            recall_tolerance: Largest difference of Recall@1, by default 0.001, and 0.02 for int8; one query
                is always allowed.
            most: Compare on about so many samples, in whole classes.
            opset: Which version of ONNX's operators.

        Returns:
            What was written, with the comparison; the int8 file last.

        Raises:
            ExportError: This model has no such file, or the file would differ too much: then it is not
                written.
        """
        from nearkin.model.exporting import export  # noqa: PLC0415  (which imports this file)

        return export(
            self,
            output,
            format=format,
            int8=int8,
            preprocessing=preprocessing,
            validation=validation,
            samples=samples,
            calibration=calibration,
            tolerance=tolerance,
            recall_tolerance=recall_tolerance,
            most=most,
            opset=opset,
        )

    def __repr__(self) -> str:
        names = ", ".join(_name(one) for one in self.embedders)
        return f"Model({names}, embedding_dim={self.embedding_dim})"

    @torch.inference_mode()
    def _embed_batches(self, batches: Iterable[Any], dim: int | None = None) -> Tensor:
        if self.has_two:
            raise ValueError(
                "this model has two networks: say model.modality(0) or model.modality(1), which takes batches"
            )
        rows: list[list[Tensor]] = [[] for _ in self.embedders]
        for batch in batches:
            inputs = batch[0] if isinstance(batch, tuple | list) else batch
            for own, one in zip(rows, self.embedders, strict=True):
                network = one.network.eval()
                own.append(network(move(inputs, device_of(network))).float().cpu())
        if not rows[0]:
            raise ValueError("nothing to embed: the DataLoader has no batch")
        return self._together([torch.cat(own) for own in rows], dim)

    def _check_dim(self, dim: int | None) -> None:
        if dim is None:
            return
        smallest = min(one.network.embedding_dim for one in self.embedders) // (2 if self.has_two else 1)
        networks = len(self.embedders)
        if dim < 1 or dim % networks or dim // networks > smallest:
            parts = "" if networks == 1 else f", a multiple of its {networks} networks"
            raise ValueError(f"dim={dim} must lie between 1 and {networks * smallest}{parts}")

    def _together(self, parts: Sequence[Tensor], dim: int | None = None) -> Tensor:
        """The beginnings of each network's embeddings at length 1, side by side, at length 1."""
        kept = None if dim is None else dim // len(self.embedders)
        units = [normalize(part[:, :kept].clone(), dim=1) for part in parts]
        return units[0] if len(units) == 1 else normalize(torch.cat(units, dim=1), dim=1)


def _readable(images: Samples) -> tuple[list[int], list[tuple[str, str]]]:
    """Positions of the images that can be read, and the others, each with the reason."""
    kept, skipped = [], []
    for index in range(len(images)):
        try:
            images[index]
            kept.append(index)
        except BrokenImageError as error:  # noqa: PERF203
            skipped.append((images.name(index), str(error)))
    return kept, skipped


@contextmanager
def _telling(progress: Progress | bool | None, count: int) -> Iterator[Progress | None]:
    """Who is told how far it is: a function, a display on standard error, or nobody."""
    if progress is not True:
        yield progress or None
        return
    display = observer_for(True, on=Console(stderr=True, soft_wrap=True, highlight=False))
    display.stage(f"embedding {count:,} samples")
    try:
        yield display.progress
    finally:
        display.end()


def _kind(samples: Samples) -> str:
    return "pairs" if isinstance(samples, TwoModalities) else type(samples).__name__.lower()


def _name(embedder: Embedder) -> str:
    spec = embedder.network.spec or {}
    return str(spec.get("name") or spec.get("object") or type(embedder.network.backbone).__name__)
