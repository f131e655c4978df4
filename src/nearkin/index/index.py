"""A model and many samples: search by similarity, and look at what is there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import repeat
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from nearkin.data.decoding import BrokenImageError
from nearkin.data.samples import Samples
from nearkin.index import groups
from nearkin.index.ahead import embedded_ahead, shards_by_content
from nearkin.index.embedded import EmbeddedStore
from nearkin.index.evaluating import IndexEvaluation, evaluate
from nearkin.index.filters import Where
from nearkin.index.groups import Group
from nearkin.index.items import Added, Hit, Item, NewItem
from nearkin.index.layout import layout
from nearkin.index.reranking import Rerank, search_reranked
from nearkin.index.sources import Labels, Metadata, Progress, Sources, gather, without_repeats
from nearkin.index.store import Nearest, Store
from nearkin.index.stores import create_store, name_of, open_store
from nearkin.index.watching import watch
from nearkin.model import Model
from nearkin.model.embedding_workers import Embed, embedding_workers
from nearkin.tensor_files import DamagedFileError, read_tensors, write_tensors

_LAYOUT = "layout.safetensors"
_AT_A_TIME: int | None = None
"""Samples that are embedded, and then added for good, at a time; by default as the store likes it."""
DUPLICATE = 0.98
"""The cosine from which on two items count as duplicates."""

Path_ = str | os.PathLike[str]
Precision = Literal["float32", "int8", "float16"]


class Index:
    """Samples of any kind that can be searched by similarity; a folder that holds all it needs, or a server.

    Make one with :meth:`build`, open it with :meth:`open`.

    Attributes:
        path: The folder, or the address on a server, ``postgresql://host/database/name`` or
            ``milvus://host/name``.
        store: Where items and vectors live.

    Example::

        index = nearkin.Index.build(nearkin.load("runs/birds"), "birds", "birds.index")
        index.search("new.jpg", k=3)[0].item.label
    """

    def __init__(self, store: Store, model: Model | None = None) -> None:
        self.path: Path | str = store.place
        self.store = store
        if model is not None:
            _refuse_another(model, store)
            self.model = model

    # Making.

    @classmethod
    def build(
        cls,
        model: Model,
        inputs: Any,
        path: Path_,
        *,
        labels: Labels | None = None,
        metadata: Metadata | None = None,
        names: Sequence[str] | None = None,
        precision: Precision = "float32",
        progress: Progress | bool | None = None,
        processes: int | None = None,
        ray: str | None = None,
    ) -> Index:
        """Embed samples and keep them; killed at any moment, the same call goes on.

        Args:
            model: What embeds; a copy of it is kept in the index.
            inputs: As :meth:`add` takes them.
            path: The folder of the index, or its address on a server. If it is there already, and was built
                with this model, what is new is added.
            labels: As in :meth:`add`.
            metadata: As in :meth:`add`.
            names: As in :meth:`add`.
            precision: What an exact search reads: ``float32``; in a folder also ``int8``, a quarter of that,
                in PostgreSQL also ``float16``, half of it.
            progress: As in :meth:`add`.
            processes: As in :meth:`add`.
            ray: As in :meth:`add`.

        Raises:
            ValueError: The folder holds something else, or an index of another model.
            ConnectionError: The server cannot be reached.
        """
        index = cls.create(model, path, precision=precision)
        try:
            index.add(
                inputs,
                labels=labels,
                metadata=metadata,
                names=names,
                progress=progress,
                processes=processes,
                ray=ray,
            )
        except BaseException:
            index.close()
            raise
        return index

    @classmethod
    def create(cls, model: Model, path: Path_, *, precision: Precision = "float32") -> Index:
        """An empty index, or the one that is there, if it was built with this model."""
        store = create_store(path, model, precision=precision)
        if store.precision != precision:
            store.close()
            raise ValueError(
                f"{store.place} is searched in {store.precision}, not in {precision}: build another index"
            )
        return cls(store, model)

    @classmethod
    def open(cls, path: Path_, *, model: Model | None = None) -> Index:
        """Open an index.

        Args:
            path: Its folder, or its address on a server.
            model: The model that it was built with, where that is in memory already or cannot be read from a
                file; by default the copy in the index, which is read when it is needed.

        Raises:
            ValueError: There is no index, a damaged one, one of a newer format, or one of another model.
        """
        return cls(open_store(path), model)

    def close(self) -> None:
        """Let go of its files or connections."""
        self.store.close()

    def __enter__(self) -> Index:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return self.store.count()

    def __repr__(self) -> str:
        return f"Index({str(self.path)!r}, {len(self):,} items, {self.store.about['model']})"

    @cached_property
    def model(self) -> Model:
        """The model that embeds: the one given, or the copy in the index."""
        folder = self.store.model_folder()
        try:
            model = Model.read(folder)
        except ValueError as error:
            raise ValueError(
                f"the model of {self.path} cannot be read: {error}; pass it, Index.open(path, model=model)"
            ) from None
        if model.fingerprint != self.fingerprint:
            raise ValueError(
                f"{folder} is not the model that {self.path} was built with: it is damaged or was replaced"
            )
        return model

    @property
    def name(self) -> str:
        """What the index is called: its folder's name, or its name in the address."""
        return self.path.name if isinstance(self.path, Path) else name_of(self.path)

    @property
    def fingerprint(self) -> str:
        """That of the model."""
        return str(self.store.about["fingerprint"])

    @property
    def precision(self) -> Precision:
        """What an exact search reads: ``float32``, ``int8`` or ``float16``."""
        return cast(Precision, self.store.precision)

    # What is there.

    def item(self, id: int) -> Item:  # noqa: A002
        """The item of an id.

        Raises:
            KeyError: There is none.
        """
        found = self.store.by_id([id])
        if id not in found:
            raise KeyError(f"there is no item {id} in this index")
        return found[id]

    def items(self, where: Where | None = None, offset: int = 0, limit: int | None = None) -> list[Item]:
        """Items in the order in which they came.

        Args:
            where: Only those that fit: ``{"label": "cat", "price": {"<": 10}, "colour": ["red", "blue"]}``.
            offset: Leave out so many.
            limit: No more than so many.
        """
        return self.store.items(where, offset=offset, limit=limit)

    def labels(self) -> dict[str, int]:
        """Every label and how many items have it."""
        return self.store.labels()

    def vectors(self, ids: Sequence[int] | Tensor) -> Tensor:
        """Unit embeddings ``(n, D)``, float32, of the items of these ids."""
        return self.store.vectors(ids)

    # Adding and removing.

    def add(
        self,
        inputs: Any,
        *,
        labels: Labels | None = None,
        metadata: Metadata | None = None,
        names: Sequence[str] | None = None,
        prefix: str = "",
        progress: Progress | bool | None = None,
        processes: int | None = None,
        ray: str | None = None,
    ) -> Added:
        """Embed what is new and keep it. What has been embedded is never embedded again.

        Args:
            inputs: Anything that :meth:`nearkin.Model.embed` takes. The files of a folder are called by their
                paths below it, and labelled by the folders that they lie in. Also WebDataset's tar files and
                Parquet tables of images.
            labels: One per input, or by name.
            metadata: A mapping to texts, numbers or truth values per input, or by name.
            names: One per input, of one item only: an item that is there already is replaced if its content
                has changed. By default paths, texts or, for pictures and arrays, a hash of the content.
            prefix: Put before every name, to tell files of several folders apart.
            progress: Called with the inputs done, for good, and the number of all.
            processes: That embed beside each other, while this one adds what they have embedded, in the order
                of the inputs: the index is the one that a single process makes. On a cluster: how many shards
                are handed over at a time.
            ray: The address of a Ray cluster to embed on: see
                :func:`~nearkin.model.embedding_workers.embedding_workers`.

        Returns:
            How many were new, known, changed, and which files could not be read.

        Raises:
            ValueError: Two inputs of one name differ, or workers cannot read the model.
            RuntimeError: A shard was lost with its worker again and again.
        """
        sources, repeats = without_repeats(
            gather(inputs, self.model, labels=labels, metadata=metadata, names=names, prefix=prefix)
        )
        told = progress if callable(progress) else lambda _done, _total: None
        total = len(sources.items) + repeats + len(sources.unreadable)
        skipped = list(sources.unreadable)
        counts = {"new": 0, "known": repeats, "changed": 0}
        given = {key for key, value in (("label", labels), ("metadata", metadata)) if value is not None}
        step = _AT_A_TIME or self.store.at_a_time
        starts = range(0, len(sources.items), step)
        steps = [range(start, min(start + step, len(sources.items))) for start in starts]
        with embedding_workers(self.model, processes=processes, ray=ray, skip_bad=True) as embed:
            alone = ray is None and processes in (None, 1)
            ahead: Iterator[dict[int, Tensor]] = repeat({}) if alone else self._ahead(sources, steps, embed)
            for places, ready in zip(steps, ahead, strict=False):
                known = self._add_some(sources, places, ready, counts, skipped)
                self._update(known, {"path", *given})
                told(sum(counts.values()) + len(skipped), total)
        return Added(counts["new"], counts["known"], counts["changed"], tuple(skipped))

    def _ahead(
        self, sources: Sources, steps: Sequence[Sequence[int]], embed: Embed
    ) -> Iterator[dict[int, Tensor]]:
        """For every step the vectors that workers have embedded; what is missing this process embeds."""
        there = self.store.by_content(sorted({item.content for item in sources.items}))
        return embedded_ahead(sources.samples, shards_by_content(sources.items, steps, there), embed)

    def _add_some(
        self,
        sources: Sources,
        places: Sequence[int],
        ready: Mapping[int, Tensor],
        counts: dict[str, int],
        skipped: list[tuple[str, str]],
    ) -> list[tuple[Item, NewItem]]:
        """Add the inputs at ``places``, some of them embedded already; those that are there come back."""
        items = [sources.items[place] for place in places]
        there = self.store.by_name([item.name for item in items])
        known = [
            (there[item.name], item)
            for item in items
            if item.name in there and there[item.name].content == item.content
        ]
        _refuse_namesakes(items, there)
        counts["known"] += len(known)
        names = {item.name for _, item in known}
        places = [place for place in places if sources.items[place].name not in names]
        items, vectors = self._embedded(sources, places, ready, skipped)
        for change in self.store.add(items, vectors):
            counts[change] += 1
        return known

    def _embedded(
        self,
        sources: Sources,
        places: Sequence[int],
        ready: Mapping[int, Tensor],
        skipped: list[tuple[str, str]],
    ) -> tuple[list[NewItem], Tensor]:
        """Items at ``places`` with vectors: of equal content that is there, by workers, or embedded now."""
        items = {place: sources.items[place] for place in places}
        holders = self.store.by_content(sorted({item.content for item in items.values()}))
        first = {
            item.content: place for place, item in reversed(items.items()) if item.content not in holders
        }
        vectors: dict[str, Tensor] = {}
        if holders:
            vectors |= dict(zip(holders, self.store.vectors(list(holders.values())), strict=True))
        vectors |= {items[place].content: ready[place] for place in first.values() if place in ready}
        wanted = sorted(place for place in first.values() if place not in ready)
        for place, vector in self._embed_readable(sources.samples, wanted, items, skipped):
            vectors[items[place].content] = vector
        kept = [item for item in items.values() if item.content in vectors]
        if not kept:
            return [], torch.empty(0, self.store.dimension)
        return kept, torch.stack([vectors[item.content] for item in kept])

    def _embed_readable(
        self,
        samples: Samples,
        places: Sequence[int],
        items: dict[int, NewItem],
        skipped: list[tuple[str, str]],
    ) -> Iterator[tuple[int, Tensor]]:
        """Embed together; where a file cannot be read, one by one, and list those that cannot."""
        if not places:
            return
        try:
            yield from zip(places, self.model.embed(samples.select(places)), strict=True)
        except (BrokenImageError, OSError) as error:
            if len(places) > 1:
                for place in places:
                    yield from self._embed_readable(samples, [place], items, skipped)
                return
            skipped += [
                (item.name, str(error)) for item in items.values() if item.content == items[places[0]].content
            ]

    def _update(self, known: Iterable[tuple[Item, NewItem]], what: Collection[str]) -> None:
        """Items that were there already take over what is given anew: places, labels, metadata."""
        items = [(old, replace(old, **{key: getattr(new, key) for key in what})) for old, new in known]
        self.store.update([item for old, item in items if item != old])

    def remove(self, ids: Iterable[int | Path_] | int | Path_) -> int:
        """Remove items by their ids or names; a path stands for the name that :meth:`add` gives it.

        Returns:
            How many were removed.

        Raises:
            KeyError: There is no item of such an id or name; nothing is removed then.
        """
        several = [ids] if isinstance(ids, int | str | os.PathLike) else list(ids)
        wanted = [Path(one).as_posix() if isinstance(one, os.PathLike) else one for one in several]
        named = [one for one in wanted if isinstance(one, str)]
        found = self.store.by_name(named)
        numbers = [one for one in wanted if not isinstance(one, str)]
        there = {*found, *self.store.by_id(numbers)}
        for one in wanted:
            if one not in there:
                raise KeyError(f"there is no item {one!r} in this index")
        return self.store.remove({*numbers, *(item.id for item in found.values())})

    def missing(self) -> list[Item]:
        """Items whose files are gone; :meth:`remove` removes them."""
        return [item for item in self.items() if item.path is not None and not item.path.exists()]

    def watch(self, folder: Path_, *, every: float = 2.0, prefix: str = "") -> Iterator[Added]:
        """Add what appears or changes in a folder, for as long as the caller goes on.

        Args:
            folder: Its files are called and labelled as :meth:`add` does it.
            every: Seconds between two looks; a file is taken when it has not changed in between.
            prefix: As in :meth:`add`.

        Yields:
            What became of the files, whenever there were some.
        """
        return watch(self, Path(folder), every=every, prefix=prefix)

    def damaged(self) -> list[str]:
        """The names of items whose vectors are not what was written, by their checksums."""
        return self.store.damaged()

    # Searching.

    def search(
        self,
        query: Any,
        k: int = 10,
        where: Where | None = None,
        exclude: Collection[int] = (),
        *,
        approximate: bool = False,
        rerank: Rerank | None = None,
    ) -> Any:
        """The ``k`` most similar items, nearest first.

        Args:
            query: Anything that :meth:`nearkin.Model.embed` takes: a path, a picture, a text, an array, or a
                list of them.
            k: How many.
            where: Only among these, as in :meth:`items`.
            exclude: Ids of items that are not to be found.
            approximate: Whether some of the nearest may be missed (HNSW, which is made the first time):
                worth it among hundreds of thousands of items; :meth:`evaluate` says what it misses.
            rerank: Another order, which may be a better one: ``k_reciprocal`` counts common neighbours,
                ``query_expansion`` searches again with the query moved towards its nearest. The similarities
                stay cosines with the query, and so need not fall from hit to hit.

        Returns:
            Hits of one input, or a list of them per input where there are several: a list, a folder, a batch.
        """
        vectors = self.model.embed(query)
        found = self.search_vectors(vectors, k, where, exclude, approximate=approximate, rerank=rerank)
        return found[0] if _is_one(query, len(found)) else found

    def make_graph(self, progress: Progress | None = None) -> None:
        """Make what approximate search needs beforehand: minutes for a million items. Servers have it.

        Args:
            progress: Called with the items done and the number of all, where any are new.
        """
        if isinstance(self.store, EmbeddedStore):
            self.store.make_graph(progress)

    def search_vectors(
        self,
        vectors: Tensor,
        k: int = 10,
        where: Where | None = None,
        exclude: Collection[int] = (),
        *,
        approximate: bool = False,
        rerank: Rerank | None = None,
    ) -> list[list[Hit]]:
        """The ``k`` most similar items for each embedding ``(n, D)``, as in :meth:`search`."""
        rows = torch.nn.functional.normalize(torch.as_tensor(vectors, dtype=torch.float32), dim=1)
        search = partial(self.store.search, where=where, exclude=exclude, approximate=approximate)
        if rerank is None:
            return self._hits(search(rows, k))
        try:
            return self._hits(search_reranked(search, self.store.vectors, rows, k, rerank))
        except KeyError:  # another process removed one of the candidates just now
            return self._hits(search_reranked(search, self.store.vectors, rows, k, rerank))

    def _hits(self, nearest: Nearest) -> list[list[Hit]]:
        # Another process may have removed some of them since: these are left out.
        items = self.store.by_id(sorted({*nearest.ids.flatten().tolist()} - {-1}))
        threshold = self.model.threshold
        return [
            [
                Hit(items[one], similarity, None if threshold is None else similarity >= threshold.similarity)
                for one, similarity in zip(ids, similarities, strict=True)
                if one in items
            ]
            for ids, similarities in zip(nearest.ids.tolist(), nearest.similarities.tolist(), strict=True)
        ]

    def evaluate(
        self, *, queries: int = 1000, k: int = 10, approximate: bool = True, seed: int = 0
    ) -> IndexEvaluation:
        """Queries per second, and what int8 and approximate search miss of exact float32 search.

        A graph that is not made yet is made silently: :meth:`make_graph` shows how far it is.

        Args:
            queries: So many items, drawn at random, are searched for among all others.
            k: Hits per query.
            approximate: Whether to measure approximate search, too, for which a graph is made if need be.
            seed: Draws the items.
        """
        return evaluate(self, queries=queries, k=k, approximate=approximate, seed=seed)

    # Looking at all of it.

    def duplicates(
        self,
        threshold: float | None = None,
        *,
        where: Where | None = None,
        progress: Progress | bool | None = None,
    ) -> list[Group]:
        """Items that are nearly the same, the largest groups first.

        Args:
            threshold: The cosine from which on two items are duplicates; 0.98 by default, which copies that
                were resized or saved again reach. Items hang together through others.
            where: Only among these, as in :meth:`items`.
            progress: Called with the items done and the number of all.
        """
        items, vectors = self._all(where)
        told = progress if callable(progress) else None
        cosine = DUPLICATE if threshold is None else _checked_cosine(threshold)
        return groups.as_groups(items, vectors, groups.linked(vectors, cosine, told), least=2)

    def clusters(
        self,
        number: int | None = None,
        *,
        threshold: float | None = None,
        neighbours: int = 10,
        least: int = 2,
        where: Where | None = None,
        seed: int = 0,
    ) -> list[Group]:
        """Items in groups, the largest first.

        Args:
            number: So many clusters, by k-means, which puts every item into one.
            threshold: Without a number, items whose cosine reaches this, and which are among each other's
                nearest ``neighbours``, hang together; by default the model's threshold. Where the model has
                none, there are as many clusters as labels or, without labels, √(N/2).
            neighbours: See ``threshold``.
            least: Leave out clusters of fewer items.
            where: Only these, as in :meth:`items`.
            seed: Of k-means.
        """
        items, vectors = self._all(where)
        if number is None and threshold is None:
            own = self.model.threshold
            threshold = None if own is None else own.similarity
            number = _fitting_number(items) if own is None else None
        if not items:
            return []
        if number is not None:
            numbers = groups.by_kmeans(vectors, min(number, len(items)), seed)
        elif len(items) == 1:
            numbers = np.zeros(1, dtype=np.int32)
        else:
            assert threshold is not None
            numbers = groups.mutually_linked(vectors, _checked_cosine(threshold), neighbours)
        return groups.as_groups(items, vectors, numbers, least)

    def outliers(
        self, most: int = 20, *, neighbours: int = 10, where: Where | None = None
    ) -> list[groups.Outlier]:
        """Items that are unlike all others: those with the lowest mean cosine with their neighbours."""
        items, vectors = self._all(where)
        return groups.outliers(items, vectors, neighbours, most) if len(items) > 1 else []

    def label_errors(
        self, most: int = 20, *, neighbours: int = 10, where: Where | None = None
    ) -> list[groups.LabelError]:
        """Items whose labels are probably wrong: no neighbour has the same; the most doubtful first."""
        items = [item for item in self.store.items(where) if item.label is not None]
        if len(items) < 2:
            return []
        vectors = self.store.vectors([item.id for item in items])
        return groups.label_errors(items, vectors, neighbours, most)

    def representatives(self, k: int = 10, *, where: Where | None = None, seed: int = 0) -> list[Item]:
        """``k`` items that stand for all: one from the middle of each of k clusters, large ones first."""
        if k < 1:
            raise ValueError(f"k={k} must be at least 1")
        items, vectors = self._all(where)
        if not items:
            return []
        chosen = groups.representatives(vectors, min(k, len(items)), seed)
        return [items[place] for place in chosen]

    def layout(self) -> Tensor:
        """A map: two coordinates ``(N, 2)`` within −1 and 1 for each of :meth:`items`, in that order.

        It is kept in the folder, where there is one, and made again when items have changed.
        """
        if not isinstance(self.path, Path):
            return layout(self._all(None)[1])
        version, file = self.store.version(), self.path / _LAYOUT
        with contextlib.suppress(DamagedFileError):
            kept = read_tensors(file)
            if kept.state == {"version": version}:
                return kept.tensors["layout"]
        made = layout(self._all(None)[1])
        with contextlib.suppress(OSError):  # a folder that cannot be written to, or a full disk
            write_tensors(file, {"layout": made}, {"version": version})
        return made

    def _all(self, where: Where | None) -> tuple[list[Item], Tensor]:
        items = self.store.items(where)
        return items, self.store.vectors([item.id for item in items])


def _checked_cosine(threshold: float) -> float:
    if not -1 <= threshold <= 1:
        raise ValueError(f"threshold={threshold} must be a cosine, between -1 and 1")
    return threshold


def _fitting_number(items: Sequence[Item]) -> int:
    labels = {item.label for item in items} - {None}
    return len(labels) or max(1, round((len(items) / 2) ** 0.5))


def _is_one(query: Any, rows: int) -> bool:
    """Whether a query is one input, and not a batch, a list or a folder that happens to hold one."""
    if isinstance(query, str | os.PathLike):
        return not Path(query).is_dir()
    if isinstance(query, Tensor | np.ndarray):
        batched = 4 if query.dtype in (torch.uint8, np.uint8) else 2
        return rows == 1 and query.ndim < batched
    return hasattr(query, "convert") and hasattr(query, "getbands")


def _refuse_another(model: Model, store: Store) -> None:
    found, expected = model.fingerprint, str(store.about["fingerprint"])
    if found != expected:
        store.close()
        raise ValueError(
            f"{store.place} was built with {store.about['model']} of fingerprint {expected[:12]}, and this "
            f"is {model!r} of fingerprint {found[:12]}: embeddings of two models cannot be compared; build "
            "another index"
        )


def _refuse_namesakes(items: Iterable[NewItem], there: dict[str, Item]) -> None:
    """Two files of one name in two folders are not two states of one file."""
    for item in items:
        old = there.get(item.name)
        if old is None or old.path is None or item.path is None or old.content == item.content:
            continue
        if old.path != item.path and old.path.exists():
            raise ValueError(
                f"{item.name!r} is in the index already, from {old.path}, and {item.path} is another file: "
                "add it with a prefix for its name"
            )
