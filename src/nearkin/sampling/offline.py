"""Offline mining: which images of the whole training set are hard negatives for each of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nearkin.evaluation import nearest_neighbours

NO_IMAGE = -1
EXACT_UP_TO = 100_000
MINING = ("hard", "semi_hard")

_PROBED_CELLS = (
    32  # of 4 √N: the search looks at a few per cent of the images and finds nearly all neighbours
)


@torch.no_grad()
def hard_negatives(
    embeddings: Tensor,
    labels: Tensor,
    count: int,
    *,
    mining: str = "semi_hard",
    exact_up_to: int = EXACT_UP_TO,
) -> Tensor:
    """For every image, images of other classes that lie near it, the best to learn from first.

    The candidates are the negatives among the 2 · ``count`` nearest neighbours of an image (fewer where its
    own class has fewer images to skip). ``"hard"`` takes them from the nearest on. ``"semi_hard"`` takes
    first those less similar to the image than its own class is on average, again from the nearest on, and
    then the others from the farthest on: what is too hard comes last, the hardest at the very end.

    Args:
        embeddings: The embeddings of all images, ``(N, D)``.
        labels: The labels of all images, ``(N,)``.
        count: How many negatives to list per image.
        mining: ``"hard"`` or ``"semi_hard"``.
        exact_up_to: With more images than this, neighbours come from an approximate search by faiss.

    Returns:
        Indices ``(N, count)``; -1 where an image has fewer negatives among its neighbours.

    >>> angles = torch.tensor([0.0, 30.0, 20.0, 40.0]).deg2rad()
    >>> points, labels = torch.stack((angles.cos(), angles.sin()), dim=1), torch.tensor([0, 0, 1, 1])
    >>> hard_negatives(points, labels, count=2, mining="hard")[0]
    tensor([2, 3])
    >>> hard_negatives(points, labels, count=2, mining="semi_hard")[0]  # 30° is its own class's
    tensor([3, 2])
    """
    if mining not in MINING:
        raise ValueError(f"mining={mining!r} must be one of: {', '.join(MINING)}")
    if count < 1:
        raise ValueError(f"count={count} must be at least 1")
    labels = labels.to(embeddings.device)
    _, classes, sizes = labels.unique(return_inverse=True, return_counts=True)
    depth = min(count + min(count, int(sizes.max()) - 1), len(embeddings) - 1)
    if depth == 0:
        return torch.full((len(embeddings), count), NO_IMAGE, device=embeddings.device)

    similarities, neighbours = _search(embeddings, depth, exact_up_to)
    useful = (neighbours != NO_IMAGE) & (labels[neighbours] != labels.unsqueeze(1))
    preference = similarities
    if mining == "semi_hard":
        own = _similarity_to_own_class(embeddings, classes, sizes).unsqueeze(1)
        # Cosines are at most 1, so 3 below the mirrored similarity is below every semi-hard one.
        preference = torch.where(similarities < own, similarities, -similarities - 3)
    preference = preference.masked_fill(~useful, -torch.inf)
    best, order = preference.topk(min(count, depth), dim=1)
    chosen = neighbours.gather(1, order).masked_fill(best == -torch.inf, NO_IMAGE)
    return torch.nn.functional.pad(chosen, (0, count - chosen.shape[1]), value=NO_IMAGE)


def _similarity_to_own_class(embeddings: Tensor, classes: Tensor, sizes: Tensor) -> Tensor:
    """The mean cosine of every image with the others of its class, ``(N,)``; +∞ for one without any."""
    unit = torch.nn.functional.normalize(embeddings.float(), dim=1)
    sums = unit.new_zeros(len(sizes), unit.shape[1]).index_add_(0, classes, unit)
    others = sizes[classes] - 1
    mean = (unit * (sums[classes] - unit)).sum(dim=1) / others
    return torch.where(others > 0, mean, torch.inf)


def _search(embeddings: Tensor, k: int, exact_up_to: int) -> tuple[Tensor, Tensor]:
    """Cosines and indices of the ``k`` nearest other images, ``(N, k)`` each."""
    if len(embeddings) <= exact_up_to:
        return nearest_neighbours(embeddings.float(), k)
    return _search_with_faiss(embeddings, k)


def _search_with_faiss(embeddings: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The same, approximately, with an inverted file; where it finds fewer than ``k``, the index is -1."""
    faiss = _import_faiss(len(embeddings))
    unit = torch.nn.functional.normalize(embeddings.float(), dim=1).cpu().contiguous().numpy()
    cells = max(1, round(4 * len(unit) ** 0.5))
    quantizer = faiss.IndexFlatIP(unit.shape[1])
    index = faiss.IndexIVFFlat(quantizer, unit.shape[1], cells, faiss.METRIC_INNER_PRODUCT)
    index.train(unit)
    index.add(unit)
    index.nprobe = _PROBED_CELLS
    similarities, neighbours = (torch.from_numpy(found) for found in index.search(unit, k + 1))
    # Every image usually finds itself: move it to the end by its index, and cut one column off.
    is_self = neighbours == torch.arange(len(unit)).unsqueeze(1)
    order = is_self.int().argsort(dim=1, stable=True)[:, :k]
    return (
        similarities.gather(1, order).to(embeddings.device),
        neighbours.gather(1, order).to(embeddings.device),
    )


def _import_faiss(images: int) -> Any:
    try:
        import faiss  # noqa: PLC0415 - optional, and only needed for large data sets
    except ImportError as error:
        raise ImportError(
            f"neighbours among {images:,} images are searched with faiss, which is not installed: "
            "install faiss-cpu, or raise exact_up_to for a slower, exact search"
        ) from error
    return faiss
