"""What lies in an index: duplicates, clusters, what is unlike everything, what is probably mislabelled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from nearkin.evaluation.diagnostics import label_doubts
from nearkin.evaluation.kmeans import kmeans
from nearkin.evaluation.neighbours import nearest_neighbours
from nearkin.evaluation.similarity import row_chunks
from nearkin.index.items import Item

Progress = Callable[[int, int], None]
_TILE = 2**22  # entries of the similarity matrix at a time


@dataclass(frozen=True)
class Group:
    """Items that belong together; going through it gives the items.

    Attributes:
        items: The most typical first.
        similarity: The mean cosine of the items with their centre.
        labels: How many of the items have which label, the most frequent first.
    """

    items: tuple[Item, ...]
    similarity: float
    labels: dict[str, int]

    def __iter__(self) -> Iterator[Item]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "items": [item.to_dict() for item in self.items],
            "similarity": self.similarity,
            "labels": self.labels,
        }


@dataclass(frozen=True)
class Outlier:
    """An item and the mean cosine with its nearest neighbours."""

    item: Item
    similarity: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {**self.item.to_dict(), "similarity": self.similarity}


@dataclass(frozen=True)
class LabelError:
    """An item none of whose neighbours has its label.

    Attributes:
        item: With its label.
        suggested: The most frequent label among its neighbours.
        agreement: Share of the neighbours that have it; near one, the item's label is doubtful.
    """

    item: Item
    suggested: str
    agreement: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {**self.item.to_dict(), "suggested": self.suggested, "agreement": self.agreement}


def linked(vectors: Tensor, threshold: float, progress: Progress | None = None) -> NDArray[np.int32]:
    """A number per row such that rows whose cosine reaches the threshold, in one step or several, share it.

    Args:
        vectors: Unit rows ``(N, D)``.
        threshold: A cosine.
        progress: Called with the rows done and the number of all.

    >>> linked(torch.eye(3)[[0, 1, 0]], 0.9).tolist()
    [0, 1, 0]
    """
    numbers = np.arange(len(vectors), dtype=np.int32)
    for rows in row_chunks(len(vectors), len(vectors), _TILE):
        near = (vectors[rows] @ vectors[rows.start :].T >= threshold).nonzero()
        one, other = (near + rows.start).numpy().T
        # Rows that are together already hang together by the first of them.
        one, other = np.append(one, np.arange(len(numbers))), np.append(other, _first_of_each(numbers))
        edges = coo_array((np.ones(len(one), dtype=bool), (one, other)), shape=(len(numbers),) * 2)
        numbers = connected_components(edges, directed=False)[1]
        if progress is not None:
            progress(rows.stop, len(vectors))
    return numbers


def _first_of_each(numbers: NDArray[np.int32]) -> NDArray[np.int64]:
    _, first, inverse = np.unique(numbers, return_index=True, return_inverse=True)
    found: NDArray[np.int64] = first[inverse]
    return found


def mutually_linked(vectors: Tensor, threshold: float, neighbours: int) -> NDArray[np.int32]:
    """The same, but only rows that are among each other's nearest are linked: no chains through crowds."""
    similarities, found = nearest_neighbours(vectors, min(neighbours, len(vectors) - 1))
    one = torch.arange(len(vectors))[:, None].expand_as(found)[similarities >= threshold].numpy()
    other = found[similarities >= threshold].numpy()
    one_way = coo_array((np.ones(len(one)), (one, other)), shape=(len(vectors),) * 2).tocsr()
    numbers: NDArray[np.int32] = connected_components(one_way.multiply(one_way.T), directed=False)[1]
    return numbers


def by_kmeans(vectors: Tensor, number: int, seed: int) -> NDArray[np.int32]:
    """A number per row by k-means."""
    return kmeans(vectors, number, seed=seed).assignment.numpy().astype(np.int32)


def as_groups(items: Sequence[Item], vectors: Tensor, numbers: NDArray[np.int32], least: int) -> list[Group]:
    """Groups of at least so many items, the largest first."""
    order = np.argsort(numbers, kind="stable")
    starts = np.flatnonzero(np.diff(numbers[order], prepend=-1))
    groups = []
    for places in np.split(order, starts[1:]):
        if len(places) < least:
            continue
        own = vectors[torch.from_numpy(places)]
        centre = torch.nn.functional.normalize(own.mean(dim=0), dim=0)
        similarities, typical = (own @ centre).sort(descending=True, stable=True)
        members = tuple(items[places[place]] for place in typical.tolist())
        labels = Counter(item.label for item in members if item.label is not None)
        groups.append(Group(members, float(similarities.mean()), dict(labels.most_common())))
    return sorted(groups, key=lambda group: (-len(group), -group.similarity))


def outliers(items: Sequence[Item], vectors: Tensor, neighbours: int, most: int) -> list[Outlier]:
    """Items whose nearest neighbours are farthest."""
    similarities, _ = nearest_neighbours(vectors, min(neighbours, len(vectors) - 1))
    means, places = similarities.mean(dim=1).sort(stable=True)
    return [
        Outlier(items[place], mean)
        for place, mean in zip(places[:most].tolist(), means[:most].tolist(), strict=True)
    ]


def label_errors(items: Sequence[Item], vectors: Tensor, neighbours: int, most: int) -> list[LabelError]:
    """Labelled items none of whose neighbours has their label, the most doubtful first."""
    names = sorted({item.label for item in items if item.label is not None})
    numbers = {name: number for number, name in enumerate(names)}
    labels = torch.tensor([numbers[item.label or ""] for item in items])
    _, found = nearest_neighbours(vectors, min(neighbours, len(vectors) - 1))
    return [
        LabelError(items[doubt.index], names[doubt.suggested], doubt.agreement)
        for doubt in label_doubts(found, labels)[:most]
    ]


def representatives(vectors: Tensor, number: int, seed: int) -> list[int]:
    """The row nearest to the centre of each of so many clusters; those of large clusters first."""
    clusters = kmeans(vectors, number, seed=seed)
    found = []
    sizes = clusters.assignment.bincount(minlength=number)
    for one in sizes.argsort(descending=True, stable=True).tolist():
        members = (clusters.assignment == one).nonzero().squeeze(1)
        if len(members):
            distances = (vectors[members] - clusters.centres[one]).square().sum(dim=1)
            found.append(int(members[distances.argmin()]))
    return found
