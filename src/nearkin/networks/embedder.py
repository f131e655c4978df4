"""A network together with how it sees samples: transforms, and a frozen trunk whose outputs are cached."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from platformdirs import user_cache_dir
from torch import Tensor

from nearkin.data.loading import Loader, loader
from nearkin.data.samples import SampleSet
from nearkin.data.transforms import Transform
from nearkin.data.two_modalities import EachModality, TwoModalities
from nearkin.networks.activations import Activations, ActivationTransform, cache_activations
from nearkin.networks.base import Network
from nearkin.networks.embedding import Progress, embed

_FLIP = 0.5


def default_trunk_cache() -> Path:
    """Where what a trunk makes of samples is kept, unless somebody says another folder."""
    return Path(user_cache_dir("nearkin")) / "activations"


@dataclass(frozen=True)
class Embedder:
    """Samples to embeddings, in training and in evaluation.

    Attributes:
        network: The whole network.
        training_transform: What training makes of samples.
        evaluation_transform: What evaluation and search make of them.
        trunk: A stage of the network. Up to there nothing is trained, and what it makes of every sample is
            computed once and kept on disk; only what comes after it runs in training.
        trunk_cache: The folder for that; by default in the user's cache.
        trunk_crops: Random views of every training sample that are kept beside the one of evaluation.
        batch_size: Samples at a time in evaluation.
        workers: Processes that read samples; the batches are the same with any number.
        transform_spec: How to make ``evaluation_transform`` again, in plain values; ``None`` where it was
            given in Python.
    """

    network: Network
    training_transform: Transform
    evaluation_transform: Transform
    trunk: str | None = None
    trunk_cache: Path | None = None
    trunk_crops: int = 0
    batch_size: int = 500
    workers: int = 0
    transform_spec: dict[str, Any] | None = None

    def copy(self) -> Embedder:
        """The same with a network of its own, to train."""
        return replace(self, network=copy.deepcopy(self.network))

    def trained_part(self) -> Network:
        """The part of the network that is trained; it shares its parameters with the whole."""
        return self.network if self.trunk is None else self.network.split(self.trunk)[1]

    def prepared(
        self, samples: SampleSet, *, flips: bool = False, progress: Progress | None = None
    ) -> SampleSet:
        """Samples as the trained part takes them: the trunk's activations, or the samples without a trunk.

        Args:
            samples: Samples, or activations, which come back as they are.
            flips: Whether to keep the mirror images and random crops as well, to train on.
            progress: Called with the samples done and the number of all.
        """
        if self.trunk is None or isinstance(samples.samples, Activations):
            return samples
        if isinstance(samples.samples, TwoModalities):
            from nearkin.networks.two_towers import prepared_pairs  # noqa: PLC0415  (which imports this file)

            return prepared_pairs(self, samples, progress=progress)
        activations, _ = cache_activations(
            self.network,
            self.trunk,
            samples,
            self.trunk_cache or default_trunk_cache(),
            flips=flips and self._mirrored > 0,
            crops=self.trunk_crops if flips else 0,
            transform=self.evaluation_transform,
            training_transform=self.training_transform,
            workers=self.workers,
            progress=progress,
        )
        return activations

    def training_loader(
        self, samples: SampleSet, batches: Iterable[Sequence[int]], *, seed: int, views: int = 1
    ) -> Loader:
        """Batches to train on; ``samples`` are prepared."""
        transform = self.training_transform
        if self.trunk is not None and isinstance(samples.samples, TwoModalities):
            transform = _of_cached(samples)
        elif isinstance(samples.samples, Activations):
            transform = ActivationTransform(
                self._mirrored if samples.samples.views > 1 else 0.0, self.trunk_crops
            )
        return loader(samples, transform, batch_sampler=batches, seed=seed, workers=self.workers, views=views)

    @property
    def _mirrored(self) -> float:
        """The probability of mirroring behind a trunk: that of the training transform, where it says one."""
        view_of = getattr(self.training_transform, "view_of", None)
        return float(getattr(view_of, "flip", _FLIP))

    def training_view(self) -> str:
        """What training makes of samples, in words."""
        if self.trunk is None:
            return repr(self.training_transform)
        if isinstance(self.training_transform, EachModality):
            return "as in evaluation"
        crops = f", {self.trunk_crops} of {self.training_transform!r}" if self.trunk_crops else ""
        return f"as in evaluation, {ActivationTransform(self._mirrored, self.trunk_crops)!r}{crops}"

    def embed(
        self,
        samples: SampleSet,
        *,
        what: Literal["embeddings", "features"] = "embeddings",
        progress: Progress | None = None,
    ) -> Tensor:
        """Embeddings ``(N, D)`` or features ``(N, F)`` of samples, as float32 on the CPU.

        Args:
            samples: Samples, or what the trunk made of them.
            what: Which of the two.
            progress: Called with the samples done and the number of all.
        """
        network, transform = self.network, self.evaluation_transform
        if self.trunk is not None:
            samples = self.prepared(samples, progress=progress)
            network, transform = self.trained_part(), _of_cached(samples)
        return embed(
            network,
            samples,
            what=what,
            transform=transform,
            batch_size=self.batch_size,
            workers=self.workers,
            progress=progress,
        )


def _of_cached(samples: SampleSet) -> Transform:
    """What becomes of a trunk's activations in evaluation."""
    if isinstance(samples.samples, TwoModalities):
        return EachModality(ActivationTransform(), ActivationTransform())
    return ActivationTransform()
