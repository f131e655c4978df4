"""Images to embeddings, in their order."""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.data import ImageSet, evaluation_transform, loader
from nearkin.data.transforms import Scheme
from nearkin.networks import EmbeddingNetwork


@torch.no_grad()
def embed(
    network: EmbeddingNetwork,
    images: ImageSet,
    *,
    transform: Scheme = "resized_crop",
    batch_size: int = 64,
    workers: int = 0,
) -> Tensor:
    """Raw embeddings ``(N, D)`` of all images in float32, on the network's device.

    Args:
        network: Any network; it runs in evaluation mode and is left in the mode it had.
        images: What to embed.
        transform: The scheme the network was trained with; ``none`` for images that have the right size.
        batch_size: Images per batch.
        workers: Processes that decode.
    """
    device = next(network.parameters()).device
    batches = loader(
        images,
        evaluation_transform(network.preprocessing, transform),
        batch_size=batch_size,
        workers=workers,
    )
    was_training = network.training
    network.eval()
    try:
        return torch.cat([network(batch.images.to(device)).float() for batch in batches])
    finally:
        network.train(was_training)
