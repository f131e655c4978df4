"""What a training leaves: load it, embed with it, compare, save it elsewhere."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.utils.data import DataLoader

from nearkin.atomic import write_json
from nearkin.data import ImageFiles, SampleSet, read_image
from nearkin.data.decoding import BrokenImageError
from nearkin.data.nested import move
from nearkin.model.files import describe, read_embedder, write_embedder
from nearkin.model.inputs import as_samples
from nearkin.networks import Embedder
from nearkin.networks.splitting import device_of
from nearkin.networks.weights import add_weights

Progress = Callable[[int, int], None]


class Model:
    """Samples of any kind to unit embeddings: one network, or several whose embeddings stand side by side.

    Args:
        embedders: The networks and how they see samples.
        about: What is known about how it was made: plain values.

    Attributes:
        embedders: The networks and how they see samples.
        about: What is known about how it was made.
        skipped: Files that the last ``embed(..., skip_bad=True)`` could not read, each with the reason.
    """

    def __init__(self, embedders: Sequence[Embedder], about: Mapping[str, Any] | None = None) -> None:
        if not embedders:
            raise ValueError("a model needs at least one network")
        self.embedders = tuple(embedders)
        self.about = dict(about or {})
        self.skipped: list[tuple[str, str]] = []

    @classmethod
    def read(cls, path: str | os.PathLike[str], **given: Any) -> Model:
        """The model in a folder that :meth:`save` wrote, or in the folder of a run."""
        folder = Path(path)
        parts = sorted(folder.glob("network-*"))
        if parts:
            return cls([read_embedder(part, **given) for part in parts])
        return cls([read_embedder(folder, **given)])

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
        """D, the size of an embedding."""
        return sum(one.network.embedding_dim for one in self.embedders)

    def to(self, device: str | torch.device) -> Model:
        """Move all networks to a device."""
        for one in self.embedders:
            one.network.to(device)
        return self

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
                whose batches are network inputs (or start with them).
            batch_size: Samples at a time; the numbers do not depend on it beyond 1e-5.
            progress: Called with the samples done and the number of all.
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
        first = self.embedders[0]
        expected = first.network.preprocessing
        channels = None if expected is None else expected.channels
        samples = as_samples(inputs, takes_images=expected is not None, channels=channels)
        if skip_bad and isinstance(samples, ImageFiles):
            samples = self._readable(samples)
        unlabelled = SampleSet(samples, [0] * len(samples))
        told = progress if callable(progress) else None
        return self._together(
            [_sized(one, batch_size).embed(unlabelled, progress=told) for one in self.embedders], dim
        )

    def similarity(self, a: Any, b: Any) -> Tensor:
        """Cosines ``(N, M)`` of all inputs of ``a`` with all inputs of ``b``; neither is a probability."""
        return self.embed(a) @ self.embed(b).T

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
        for home, one in zip(homes, self.embedders, strict=True):
            write_embedder(home, one)
        write_json(path / "card.json", {"fingerprint": self.fingerprint, "about": self.about})
        return path

    def __repr__(self) -> str:
        names = ", ".join(_name(one) for one in self.embedders)
        return f"Model({names}, embedding_dim={self.embedding_dim})"

    @torch.inference_mode()
    def _embed_batches(self, batches: Iterable[Any], dim: int | None = None) -> Tensor:
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
        smallest = min(one.network.embedding_dim for one in self.embedders)
        networks = len(self.embedders)
        if dim < 1 or dim % networks or dim // networks > smallest:
            parts = "" if networks == 1 else f", a multiple of its {networks} networks"
            raise ValueError(f"dim={dim} must lie between 1 and {networks * smallest}{parts}")

    def _together(self, parts: Sequence[Tensor], dim: int | None = None) -> Tensor:
        """The beginnings of each network's embeddings at length 1, side by side, at length 1."""
        kept = None if dim is None else dim // len(self.embedders)
        units = [normalize(part[:, :kept].clone(), dim=1) for part in parts]
        return units[0] if len(units) == 1 else normalize(torch.cat(units, dim=1), dim=1)

    def _readable(self, files: ImageFiles) -> ImageFiles:
        self.skipped = []
        kept = []
        for index in range(len(files)):
            try:
                read_image(files.path(index))
                kept.append(index)
            except BrokenImageError as error:  # noqa: PERF203
                self.skipped.append((files.name(index), str(error)))
        if not kept:
            raise ValueError(f"none of {len(files)} files can be read: {self.skipped[0][1]}")
        return files.select(kept)


def _sized(embedder: Embedder, batch_size: int | None) -> Embedder:
    return replace(embedder, trunk=None, batch_size=batch_size or embedder.batch_size)


def _name(embedder: Embedder) -> str:
    spec = embedder.network.spec or {}
    return str(spec.get("name") or spec.get("object") or type(embedder.network.backbone).__name__)
