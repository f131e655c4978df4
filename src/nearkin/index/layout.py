"""A map of an index: neighbours in the embedding are neighbours on paper, as far as two axes allow."""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.evaluation.neighbours import nearest_neighbours

MOST_LAID_OUT = 3000
"""So many rows are laid out together; the others go between their nearest neighbours among these."""
_BETWEEN = 5
_PERPLEXITY = 30


def layout(vectors: Tensor, *, seed: int = 0) -> Tensor:
    """Two coordinates per row, ``(N, 2)`` float32, within −1 and 1.

    t-SNE (van der Maaten and Hinton, 2008, JMLR) that starts from the first two principal components.

    Args:
        vectors: Unit rows ``(N, D)``.
        seed: Chooses the rows that are laid out together, where there are very many.
    """
    if not len(vectors):
        return torch.empty(0, 2)
    if len(vectors) <= MOST_LAID_OUT:
        return _scaled(_together(vectors, seed))
    chosen = torch.randperm(len(vectors), generator=torch.Generator().manual_seed(seed))[:MOST_LAID_OUT]
    places = _together(vectors[chosen], seed)
    similarities, found = nearest_neighbours(vectors, _BETWEEN, gallery=vectors[chosen])
    weights = (similarities.clamp(min=0) ** 8 + 1e-6).unsqueeze(2)
    between = (places[found] * weights).sum(dim=1) / weights.sum(dim=1)
    between[chosen] = places
    return _scaled(between)


def _together(vectors: Tensor, seed: int) -> Tensor:
    perplexity = min(_PERPLEXITY, (len(vectors) - 1) / 3)
    centred = vectors - vectors.mean(dim=0)
    if perplexity < 2 or min(centred.shape) < 2:  # too few for neighbourhoods
        axes = torch.linalg.svd(centred, full_matrices=False).Vh[:2] if len(vectors) > 1 else centred[:0]
        flat = torch.zeros(len(vectors), 2)
        flat[:, : len(axes)] = centred @ axes.T
        return flat
    from sklearn.manifold import TSNE  # noqa: PLC0415  (slow to import)

    found = TSNE(init="pca", perplexity=perplexity, random_state=seed).fit_transform(vectors.numpy())
    return torch.from_numpy(found).float()


def _scaled(places: Tensor) -> Tensor:
    centred = places - (places.amax(dim=0) + places.amin(dim=0)) / 2
    return centred / centred.abs().amax().clamp(min=1e-12)
