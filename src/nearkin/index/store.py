"""The contract of stores: where items and their vectors live, whatever that is.

An index is a model and a store. :class:`~nearkin.index.embedded.EmbeddedStore` keeps everything in a folder,
:class:`~nearkin.index.postgres.PostgresStore` and :class:`~nearkin.index.milvus.MilvusStore` on a server.
Another store need only have these methods, and passes the same tests (``tests/index/test_stores.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from torch import Tensor

from nearkin.index.filters import Where
from nearkin.index.items import Item, NewItem

Change = Literal["new", "changed", "known"]
"""What became of an item that was added: see :class:`~nearkin.index.items.Added`."""


class Nearest(NamedTuple):
    """What a search found, nearest first.

    Attributes:
        ids: int64 ``(n, k)``; −1 where there are fewer than k items.
        similarities: float32 ``(n, k)``, cosines; −inf there.
    """

    ids: Tensor
    similarities: Tensor


class Store(Protocol):
    """Items with unit vectors. Every method may be called from several threads and processes at once."""

    at_a_time: int
    """Samples that are best embedded, and then added, at a time."""

    @property
    def place(self) -> Path | str:
        """The folder, or the address without any secret."""
        ...

    @property
    def precision(self) -> str:
        """What an exact search reads: ``float32`` or something smaller."""
        ...

    @property
    def about(self) -> Mapping[str, Any]:
        """What was told to whoever created the store: the model's fingerprint, and so on."""
        ...

    @property
    def dimension(self) -> int:
        """D, the size of a vector."""
        ...

    def add(self, items: Sequence[NewItem], vectors: Tensor) -> list[Change]:
        """Add items with unit vectors ``(n, D)``; when it returns they are there for good, all or none.

        An item whose name is there keeps its id: with the same content it is left alone (``known``), with
        another one it is replaced (``changed``).
        """
        ...

    def update(self, items: Sequence[Item]) -> None:
        """Change label, metadata and path of items, which are found by their ids."""
        ...

    def remove(self, ids: Collection[int]) -> int:
        """Remove items; how many of them were there."""
        ...

    def search(
        self,
        vectors: Tensor,
        k: int,
        *,
        where: Where | None = None,
        exclude: Collection[int] = (),
        approximate: bool = False,
    ) -> Nearest:
        """The ``k`` most similar items for every row of ``vectors`` ``(n, D)``.

        Exactly, or ``approximate``: faster among very many items, with some of the nearest missing.
        """
        ...

    def count(self, where: Where | None = None) -> int:
        """How many items there are."""
        ...

    def labels(self) -> dict[str, int]:
        """Every label and how many items have it, in the order of the labels."""
        ...

    def items(self, where: Where | None = None, *, offset: int = 0, limit: int | None = None) -> list[Item]:
        """Items in the order of their ids."""
        ...

    def ids(self, where: Where | None = None) -> Tensor:
        """The ids of :meth:`items`, int64 ``(n,)``, without the rest."""
        ...

    def by_id(self, ids: Sequence[int]) -> dict[int, Item]:
        """Those of the ids that are there, with their items."""
        ...

    def by_name(self, names: Sequence[str]) -> dict[str, Item]:
        """Those of the names that are there, with their items."""
        ...

    def by_content(self, contents: Sequence[str]) -> dict[str, int]:
        """Those of the contents that are there, with the id of an item that has it."""
        ...

    def vectors(self, ids: Sequence[int] | Tensor) -> Tensor:
        """Unit rows ``(n, D)``, float32, of the items of these ids.

        Raises:
            KeyError: There is none of that id.
        """
        ...

    def damaged(self) -> list[str]:
        """The names of items whose vectors are not what was written, by their checksums."""
        ...

    def model_folder(self) -> Path:
        """A folder that holds the model, as :meth:`nearkin.Model.save` writes it."""
        ...

    def version(self) -> int:
        """A number that changes whenever items do."""
        ...

    def close(self) -> None:
        """Let go of files and connections."""
        ...
