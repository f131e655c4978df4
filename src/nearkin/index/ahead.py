"""What workers embed while an index adds what they have embedded before."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from torch import Tensor

from nearkin.data.samples import Samples
from nearkin.index.items import NewItem
from nearkin.model.embedding_workers import Embed


def shards_by_content(
    items: Sequence[NewItem], steps: Sequence[Sequence[int]], there: Collection[str]
) -> list[list[int]]:
    """For every step of an index the places of what it has to embed: each content once.

    A shard holds what a single process would embed in that step, and so the vectors are the same.

    Args:
        items: With the hashes of their contents.
        steps: Places of items that are added together.
        there: Contents that are in the index.

    >>> items = [NewItem(name, content) for name, content in zip("abcde", "xyxzw")]
    >>> shards_by_content(items, [[0, 1], [2, 3, 4]], {"w"})
    [[0, 1], [3]]
    """
    seen = set(there)
    shards: list[list[int]] = []
    for places in steps:
        first = {
            items[place].content: place for place in reversed(places) if items[place].content not in seen
        }
        seen |= first.keys()
        shards.append(sorted(first.values()))
    return shards


def embedded_ahead(
    samples: Samples, shards: Sequence[Sequence[int]], embed: Embed
) -> Iterator[dict[int, Tensor]]:
    """For every shard the vectors by place; those of files that workers cannot read are left out."""
    chunks = embed(samples.select(places) for places in shards if places)
    for places in shards:
        chunk = next(chunks) if places else None
        if chunk is None:
            yield {}
        else:
            rows = zip(chunk.indices, chunk.embeddings, strict=True)
            yield {places[index]: row for index, row in rows}
