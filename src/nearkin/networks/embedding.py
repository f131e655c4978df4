"""A whole sample set through a network: embeddings, features, and a head that starts as their PCA."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nearkin.allocation import keep_freed_memory
from nearkin.data.loading import loader
from nearkin.data.nested import move
from nearkin.data.preprocessing import Preprocessing
from nearkin.data.samples import SampleSet
from nearkin.data.transforms import Transform, evaluation_transform
from nearkin.networks.base import Network
from nearkin.networks.freezing import evaluation_mode
from nearkin.networks.splitting import device_of

_NUMBERS_AT_A_TIME = 6_000_000  # of a processor's inputs: 30 images of 256 pixels in colour
_FEWEST_AT_A_TIME = 8
Progress = Callable[[int, int], None]
"""Called with the number of samples done and the number of all."""


def fitting_transform(preprocessing: Preprocessing) -> Transform:
    """Resize and centre crop where the network's preprocessing says so, else take images as they are."""
    return evaluation_transform(preprocessing, "none" if preprocessing.resize is None else "resized_crop")


@torch.inference_mode()
def embed(
    network: Network,
    sample_set: SampleSet,
    *,
    what: Literal["embeddings", "features"] = "embeddings",
    transform: Transform | None = None,
    batch_size: int = 64,
    workers: int = 0,
    progress: Progress | None = None,
) -> Tensor:
    """All samples of a set through a network in evaluation mode, in order, as float32 on the CPU.

    Args:
        network: On whichever device it is.
        sample_set: The samples.
        what: ``embeddings`` ``(N, D)``, or the pooled ``features`` ``(N, F)`` below the head.
        transform: By default resize and centre crop, or nothing where the network takes images as they are.
        batch_size: Samples at a time.
        workers: Processes that read samples.
        progress: Called after every batch with the samples done and the number of all.

    >>> from nearkin import data, networks
    >>> pixels = torch.zeros(5, 1, 28, 28, dtype=torch.uint8)
    >>> digits = data.SampleSet(data.ImageArray(pixels), [0, 0, 1, 1, 1])
    >>> embed(networks.build("lenet", embedding_dim=4, size=28), digits).shape
    torch.Size([5, 4])
    """
    if transform is None:
        if network.preprocessing is None:
            raise ValueError("embed needs transform=: this network does not say what it expects")
        transform = fitting_transform(network.preprocessing)
    function = network if what == "embeddings" else network.features
    device = device_of(network)
    if device.type == "cpu":
        keep_freed_memory()
    size = network.embedding_dim if what == "embeddings" else network.num_features
    outputs = torch.empty(len(sample_set), size)
    with evaluation_mode(network):
        done = 0
        for batch in loader(sample_set, transform, batch_size=batch_size, workers=workers):
            for part in _parts(batch.inputs, device):
                rows = function(move(part, device)).float().cpu()
                outputs[done : done + len(rows)] = rows
                done += len(rows)
            if progress is not None:
                progress(done, len(sample_set))
    return outputs


def _parts(inputs: Any, device: torch.device) -> Sequence[Any]:
    """A batch as a network takes it: on a processor, a few large images at a time.

    Every layer writes its whole batch to memory before the next one reads it. 400 images of 256 pixels take
    10 GB on their way through EfficientNet-Lite0, and longer than 30 at a time, whose memory stays warm.
    """
    if device.type != "cpu" or not isinstance(inputs, Tensor) or not len(inputs):
        return [inputs]
    return torch.split(inputs, max(_NUMBERS_AT_A_TIME // inputs[0].numel(), _FEWEST_AT_A_TIME))


@torch.no_grad()
def initialise_head_with_pca(network: Network, features: Tensor) -> float:
    """Let the head start as the principal components of features: W = top components, b = −W mean.

    Where the head is small, this keeps what the backbone knows far better than a random projection. Fewer
    samples than dimensions do not vary along all of them: the rest are any directions at right angles.

    Args:
        network: Its head is overwritten.
        features: ``(N, F)`` of the training samples, from ``embed(network, train, what="features")``.

    Returns:
        The share of the variance that the components keep.

    Raises:
        ValueError: There are fewer features than the embedding has dimensions.
    """
    if not isinstance(network.head, nn.Linear):
        raise ValueError("network.pca_head=true needs a network with a linear head: give embedding_dim")
    if features.ndim != 2 or features.shape[1] != network.num_features:
        raise ValueError(
            f"features have shape {tuple(features.shape)} and the head takes (N, {network.num_features})"
        )
    if network.embedding_dim > network.num_features:
        raise ValueError(
            f"embedding_dim={network.embedding_dim}: {network.num_features} features have no more than "
            f"{network.num_features} principal components"
        )
    features = network.get_submodule("norm")(features.to(device_of(network))).double()
    mean = features.mean(dim=0)
    centred = features - mean
    variances, components = torch.linalg.eigh(centred.T @ centred)
    top = components.flip(1)[:, : network.embedding_dim].T
    # An eigenvector's sign is arbitrary: the largest entry is positive, on every machine.
    signs = top.gather(1, top.abs().argmax(dim=1, keepdim=True)).sign()
    weight = top * signs
    network.head.weight.copy_(weight)
    network.head.bias.copy_(-weight @ mean)
    return float(variances[-network.embedding_dim :].sum() / variances.sum())
