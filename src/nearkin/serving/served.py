"""An index that is being served: many requests, few calls of its network."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from PIL import Image
from torch import Tensor

from nearkin.serving.batching import Batcher
from nearkin.serving.errors import RequestError
from nearkin.serving.filters import bad_filter
from nearkin.serving.limits import Limits
from nearkin.serving.metrics import Metrics
from nearkin.serving.pictures import Crop, gone, read, thumbnail

if TYPE_CHECKING:
    from nearkin.index import Hit, Index, Item

R = TypeVar("R")
Where = Mapping[str, Any]
_KEPT_THUMBNAILS = 2_000
_PATIENCE = 2.0  # seconds that a long computation has when the server ends


@dataclass(frozen=True)
class _Question:
    vector: Tensor
    k: int
    where: str
    exclude: frozenset[int]


class ServedIndex:
    """One index behind the API.

    Args:
        name: What it is called in addresses.
        index: An opened index.
        limits: Of the server.
        metrics: Told the sizes of batches.
        pool: Where pictures are decoded and the index is asked.

    Attributes:
        name: What it is called in addresses.
        takes: What its model embeds: ``images``, ``texts`` or ``vectors``.
    """

    def __init__(self, name: str, index: Index, limits: Limits, metrics: Metrics, pool: Executor) -> None:
        self.name = name
        self.index = index
        self.model = index.model
        self.takes = _kind(self.model)
        self._limits = limits
        self._pool = pool
        self._studies: dict[str, tuple[int, Any]] = {}
        self._thumbnails: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._embedding: Batcher[Any, Tensor] = Batcher(
            self._embed,
            batch=limits.batch,
            waiting=limits.waiting,
            observe=lambda size: metrics.batches.observe(size, index=name),
        )
        self._studying: Batcher[Callable[[], Any], Any] = Batcher(
            lambda jobs: [job() for job in jobs], batch=1, waiting=limits.waiting
        )
        self._searching: Batcher[_Question, list[Hit]] = Batcher(
            self._answer, batch=limits.batch, waiting=limits.waiting
        )

    @property
    def waiting(self) -> int:
        """Inputs that wait for the network."""
        return len(self._embedding)

    @property
    def threshold(self) -> float | None:
        """The similarity from which two samples count as the same, if the model has one."""
        threshold = getattr(self.model, "threshold", None)
        return None if threshold is None else threshold.similarity

    def close(self) -> None:
        """Finish what waits, then close the index."""
        self._embedding.close()
        self._searching.close()
        self._studying.close(_PATIENCE)
        self.index.close()

    # What requests call: coroutines that wait for the threads.

    async def embed(self, value: Image.Image | str) -> Tensor:
        """The unit embedding ``(D,)`` of a picture or text.

        Raises:
            RequestError: The model does not take such a thing.
        """
        kind = "texts" if isinstance(value, str) else "images"
        if kind != self.takes:
            raise RequestError(
                422, "wrong_kind", f"the model of index {self.name} takes {self.takes}, not {kind}"
            )
        try:
            return await asyncio.wrap_future(self._embedding.submit(value))
        except ValueError as error:
            told = " ".join(str(error).split())[:300]
            raise RequestError(422, "cannot_embed", f"the model cannot embed it: {told}") from None

    async def search(
        self, vector: Tensor, k: int, where: Where | None, exclude: Collection[int] = ()
    ) -> list[Hit]:
        """The items nearest to a vector.

        Raises:
            RequestError: The filter is not one.
        """
        question = _Question(vector, k, json.dumps(where or {}, sort_keys=True), frozenset(exclude))
        try:
            return await asyncio.wrap_future(self._searching.submit(question))
        except ValueError as error:
            raise bad_filter(str(error)) from None
        except KeyError:  # an item was found and then removed, by another process
            return await asyncio.wrap_future(self._searching.submit(question))

    async def ask(self, question: Callable[[Index], R]) -> R:
        """Whatever else an index can answer quickly."""
        return await self._in_pool(lambda: question(self.index))

    async def item(self, number: int) -> Item:
        """An item by its number.

        Raises:
            RequestError: There is none.
        """
        try:
            return await self.ask(lambda index: index.item(number))
        except (KeyError, OverflowError):
            raise RequestError(404, "no_item", f"index {self.name} has no item {number}") from None

    async def picture(self, number: int, crop: Crop | None = None) -> Image.Image:
        """The picture of an item, or a part of it."""
        path = (await self.item(number)).path
        if path is None:
            raise gone()
        return await self._in_pool(lambda: read(path, pixels=self._limits.pixels, crop=crop))

    async def thumbnail(self, item: Item, side: int) -> bytes:
        """A small JPEG of an item's picture; those that were asked for lately are kept."""
        if item.path is None:
            raise gone()
        path, key = item.path, (item.content, side)
        if key in self._thumbnails:
            self._thumbnails.move_to_end(key)
            return self._thumbnails[key]
        made = await self._in_pool(lambda: thumbnail(path, side, pixels=4 * self._limits.pixels))
        self._thumbnails[key] = made
        while len(self._thumbnails) > _KEPT_THUMBNAILS:
            self._thumbnails.popitem(last=False)
        return made

    async def study(self, name: str, question: Callable[[Index], R]) -> R:
        """What takes long and stays the same until the index changes: computed once, then kept."""
        job = self._studying.submit(lambda: self._studied(name, question))
        found: R = await asyncio.shield(asyncio.wrap_future(job))  # what was begun is of use to the next
        return found

    async def _in_pool(self, work: Callable[[], R]) -> R:
        return await asyncio.wrap_future(self._pool.submit(work))

    # What the threads do.

    def _studied(self, name: str, question: Callable[[Index], R]) -> R:
        version = self.index.store.version()
        known = self._studies.get(name)
        if known is None or known[0] != version:
            known = self._studies[name] = (version, question(self.index))
        found: R = known[1]
        return found

    def _embed(self, values: list[Any]) -> Tensor:
        return self.model.embed(values)

    def _answer(self, questions: list[_Question]) -> list[list[Hit]]:
        """Questions with the same filter are one search."""
        groups: dict[str, list[int]] = defaultdict(list)
        for position, question in enumerate(questions):
            groups[question.where].append(position)
        answers: list[list[Hit]] = [[] for _ in questions]
        for where, positions in groups.items():
            asked = [questions[position] for position in positions]
            wanted = max(one.k + len(one.exclude) for one in asked)
            vectors = torch.stack([one.vector for one in asked])
            filters = json.loads(where) or None
            found = self.index.search_vectors(vectors, k=wanted, where=filters)
            for position, question, hits in zip(positions, asked, found, strict=True):
                kept = [hit for hit in hits if hit.item.id not in question.exclude]
                answers[position] = kept[: question.k]
        return answers


def _kind(model: Any) -> str:
    """What a model embeds, found by trying; the first input is slower than the others in any case."""
    if model.embedders[0].network.preprocessing is not None:
        with suppress(ValueError):  # some take images of one size only
            model.embed([Image.new("RGB", (64, 64), "grey")])
        return "images"
    try:
        model.embed(["a text"])
    except Exception:
        return "vectors"
    return "texts"
