"""What is exported: one module from a batch of inputs to unit embeddings, and what its input is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from nearkin.data import Preprocessing, Samples
from nearkin.model.exporting.errors import ExportError
from nearkin.model.files import describe
from nearkin.model.model import Model
from nearkin.networks import Embedder
from nearkin.networks.splitting import device_of

Place = Literal["inside", "beside"]
"""Where pixels are normalised: by the exported file, or by whoever calls it."""


@runtime_checkable
class _CutsPixels(Protocol):
    """A transform of images that normalises last."""

    preprocessing: Preprocessing

    def pixels(self, images: Samples, index: int, seed: int) -> Tensor: ...


@dataclass(frozen=True)
class GraphInput:
    """What an exported file takes.

    Attributes:
        name: ``pixels``, or ``inputs`` for what is normalised already or no image.
        dtype: ``uint8`` or ``float32``.
        shape: Of one sample, without the batch.
        embedder: How the model sees samples.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    embedder: Embedder = field(repr=False)

    @property
    def preprocessing(self) -> Preprocessing | None:
        """What the network expects of an image; ``None`` where samples are no images."""
        return self.embedder.network.preprocessing

    def read(self, samples: Samples, indices: Sequence[int]) -> Tensor:
        """The samples at ``indices`` as the file takes them, ``(B, *shape)``."""
        transform = self.embedder.evaluation_transform
        if self.name != "pixels":
            batch: Tensor = transform(samples, indices, [0] * len(indices))
            return batch
        assert isinstance(transform, _CutsPixels)
        pixels = [transform.pixels(samples, index, 0) for index in indices]
        return torch.stack(pixels).permute(0, 2, 3, 1).contiguous()

    def example(self, count: int = 2, seed: int = 0) -> Tensor:
        """Random inputs ``(count, *shape)``."""
        generator = torch.Generator().manual_seed(seed)
        if self.dtype == "uint8":
            return torch.randint(0, 256, (count, *self.shape), generator=generator, dtype=torch.uint8)
        return torch.randn(count, *self.shape, generator=generator)


class UnitEmbeddings(nn.Module):
    """Inputs to unit embeddings ``(B, D)``: what :meth:`nearkin.Model.embed` does after the transform.

    Args:
        model: Its networks are shared, not copied.
        pixels: Whether inputs are ``uint8`` RGB ``(B, H, W, C)``, which are normalised here.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, model: Model, *, pixels: bool) -> None:
        super().__init__()
        self.networks = nn.ModuleList(one.network for one in model.embedders)
        self.pixels = pixels
        self.swaps_channels = False
        expected = model.embedders[0].network.preprocessing
        if pixels:
            assert expected is not None
            self.swaps_channels = expected.channel_order == "bgr"
            scale, shift = expected.scale_and_shift
            self.register_buffer("scale", scale.clone())
            self.register_buffer("shift", shift.clone())
        self.eval()

    def forward(self, inputs: Tensor) -> Tensor:
        """A batch of inputs to unit embeddings ``(B, D)``."""
        if self.pixels:
            inputs = inputs.permute(0, 3, 1, 2).float()
            if self.swaps_channels:
                inputs = inputs.flip(1)
            inputs = inputs * self.scale - self.shift
        units = [normalize(network(inputs), dim=1) for network in self.networks]
        return units[0] if len(units) == 1 else normalize(torch.cat(units, dim=1), dim=1)


def graph_input(model: Model, place: Place | None = None, samples: Samples | None = None) -> GraphInput:
    """What a model's exported file takes.

    Args:
        model: All of its networks see samples in the same way.
        place: Whether pixels are normalised inside the file or beside it; by default inside where the model
            takes images as they are cropped by one of our transforms, else beside.
        samples: Some samples, which show what the input is where the network does not say it.

    Raises:
        ExportError: There is no such file for this model; the message says why.
    """
    first = model.embedders[0]
    if len({_view(one) for one in model.embedders}) > 1:
        raise ExportError("the networks of this model see samples in different ways: export them one by one")
    transform, expected = first.evaluation_transform, first.network.preprocessing
    if expected is not None and isinstance(transform, _CutsPixels):
        size, channels = expected.size, expected.channels
        if place == "beside":
            return GraphInput("inputs", "float32", (channels, size, size), first)
        return GraphInput("pixels", "uint8", (size, size, channels), first)
    if place == "inside":
        raise ExportError(
            f"preprocessing cannot be put inside the file: samples go through {transform!r}, which is "
            "Python. Put it beside the file (--preprocessing beside)"
        )
    return GraphInput("inputs", "float32", _shape_of_one(first, samples), first)


def _view(embedder: Embedder) -> str:
    told = describe(embedder)
    return repr((told["preprocessing"], told["transform"]))


def _shape_of_one(embedder: Embedder, samples: Samples | None) -> tuple[int, ...]:
    """The shape of an input that only samples can show."""
    transform = embedder.evaluation_transform
    if samples is None or len(samples) == 0:
        raise ExportError(
            f"the network does not say what it takes (its samples go through {transform!r}), and there is no "
            "sample to look at: give some with --samples FOLDER (samples= in Python), or choose "
            "--format folder"
        )
    batch: Any = transform(samples, [0], [0])
    if not isinstance(batch, Tensor) or not batch.is_floating_point():
        raise ExportError(
            f"only networks of images and of float vectors can be exported to other runtimes, and this one "
            f"takes {_described(batch)}: choose --format folder, which nearkin.load reads"
        )
    return tuple(batch.shape[1:])


def _described(batch: Any) -> str:
    if isinstance(batch, Tensor):
        return f"tensors of {str(batch.dtype).removeprefix('torch.')}"
    if isinstance(batch, list | tuple) and batch and isinstance(batch[0], str):
        return "texts"
    return f"batches of the type {type(batch).__name__}"


def on_cpu(model: Model) -> None:
    """Refuse a model on another device: files are made for the processor."""
    devices = {str(device_of(one.network)) for one in model.embedders} - {"cpu"}
    if devices:
        raise ExportError(
            f"the model is on {', '.join(sorted(devices))}: model.to('cpu') before it is exported"
        )
