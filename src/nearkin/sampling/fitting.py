"""Which batch sizes a set of labels allows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def fitting(
    labels: Tensor | Sequence[int], batch_size: int, images_per_class: int, *, world_size: int = 1
) -> tuple[int, int]:
    """The batch size and images per class nearest to those asked for that these labels can fill.

    ``balanced`` and its relatives need ``batch_size / images_per_class`` different classes. What was asked
    for comes back where there are as many. Otherwise:

    - ``images_per_class`` falls to the size of the typical class (the lower median, at least 2) where classes
      are smaller, and to half of the batch, so that there are negatives;
    - with too few classes for the batch, each batch holds all of them, and ``images_per_class`` rises, up to
      the size of the typical class, to keep the batch as large as it can be;
    - the batch becomes a multiple of ``images_per_class`` and of ``world_size``, never larger than asked.

    Args:
        labels: The class of every image, integers, ``(N,)``.
        batch_size: The largest batch, over all ranks.
        images_per_class: The images of one class in a batch that are asked for.
        world_size: Into how many slices a batch is cut.

    Returns:
        ``batch_size`` and ``images_per_class`` for :func:`nearkin.sampling.build`.

    >>> fitting([0, 1, 2, 3] * 50, batch_size=180, images_per_class=5)
    (180, 45)
    >>> fitting([0, 1, 2, 3] * 5, batch_size=180, images_per_class=5)
    (20, 5)
    >>> fitting(list(range(100)) * 5, batch_size=180, images_per_class=5)
    (180, 5)
    """
    for name, value in (
        ("batch_size", batch_size),
        ("images_per_class", images_per_class),
        ("world_size", world_size),
    ):
        if value < 1:
            raise ValueError(f"{name}={value} must be at least 1")
    sizes = torch.as_tensor(labels).unique(return_counts=True)[1]
    if len(sizes) == 0:
        raise ValueError("labels are empty: there is no batch to make")
    classes, typical = len(sizes), int(sizes.median())
    most = batch_size if classes == 1 else max(batch_size // 2, 1)
    images = max(1, min(images_per_class, max(typical, 2), most))
    if classes < batch_size // images:
        images = max(images, min(batch_size // classes, typical))
    for fewer in range(images, 0, -1):
        for present in range(min(classes, batch_size // fewer), 0, -1):
            if present * fewer % world_size == 0:
                return present * fewer, fewer
    raise ValueError(
        f"batch_size={batch_size} cannot be divided among world_size={world_size} processes with "
        f"{classes} classes of typically {typical} images: use fewer processes"
    )
