"""What stores on servers have in common, whatever the server speaks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from nearkin.index.address import Address, as_address
from nearkin.index.model_files import Part, fetched

FORMAT = 1
"""Of the tables and collections; another one is refused."""
CONNECTIVITY, EXPANSION_ADD, EXPANSION_SEARCH = 16, 128, 100
"""Of HNSW graphs."""


class Server(Protocol):
    """A connection that outlives failures.

    Attributes:
        patient: Whether to wait for a server that is gone: not before it has answered once.
    """

    patient: bool

    def close(self) -> None:
        """Close the connection."""


S = TypeVar("S", bound=Server)


class ServerStore(ABC, Generic[S]):
    """A store whose items, vectors and model lie on a server.

    Attributes:
        address: Of the index.
        name: Of the index, and of its table or collection.
        place: The address as a text, without any secret.
    """

    def __init__(self, address: str | Address, connect: Callable[[Address], S]) -> None:
        self.address = as_address(address)
        self.name = self.address.name
        self.place = str(self.address)
        self._server = connect(self.address)
        try:
            self._about = self._checked(self._read_about())
            self._server.patient = True
            self._make_ready()
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def _read_about(self) -> dict[str, Any] | None:
        """What the server tells of the index; ``None`` where it has none of this name."""

    @abstractmethod
    def _model_parts(self) -> Iterator[Part]:
        """The files of the model, ``card.json`` last."""

    @abstractmethod
    def _vectors_of(self, ids: Sequence[int]) -> dict[int, Tensor]:
        """The unit vectors of those of the ids that are there."""

    def _make_ready(self) -> None:
        """What has to be done before the first call."""

    def _checked(self, about: dict[str, Any] | None) -> dict[str, Any]:
        if about is None:
            raise ValueError(f"{self.address.server} holds no index {self.name}")
        if about.get("format") != FORMAT:
            raise ValueError(
                f"{self.place} is an index of format {about.get('format')}, and this nearkin reads format "
                f"{FORMAT}: use a newer nearkin, or build the index again"
            )
        return about

    @property
    def about(self) -> Mapping[str, Any]:
        """What the store was told when it was made, and format, dimension and precision."""
        return self._about

    @property
    def dimension(self) -> int:
        """D, the size of a vector."""
        return int(self._about["dimension"])

    def model_folder(self) -> Path:
        """A folder with the model, fetched from the server unless the cache has it."""
        return fetched(str(self._about["fingerprint"]), self._model_parts)

    def vectors(self, ids: Sequence[int] | Tensor) -> Tensor:
        """Unit rows ``(n, D)``, float32, of the items of these ids."""
        wanted = ids.tolist() if isinstance(ids, Tensor) else [int(one) for one in ids]
        found = self._vectors_of(wanted)
        for one in wanted:
            if one not in found:
                raise KeyError(f"there is no item {one} in this index")
        return torch.stack([found[one] for one in wanted]) if wanted else torch.empty(0, self.dimension)

    def close(self) -> None:
        """Let go of all connections."""
        self._server.close()


T = TypeVar("T")


def batches(values: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Values, some at a time.

    >>> list(batches([1, 2, 3], 2))
    [[1, 2], [3]]
    """
    for start in range(0, len(values), size):
        yield values[start : start + size]


def unreachable(kind: str, address: Address, error: Exception | None, *, waited: bool) -> ConnectionError:
    """The error that tells that a server cannot be reached.

    Args:
        kind: What the server is called.
        address: Where it should be.
        error: What its package said at last.
        waited: Whether it was waited for, as long as the address's patience.
    """
    how_long = f" for {address.patience:g} s" if waited else ""
    return ConnectionError(f"{kind} at {address.server} cannot be reached{how_long}: {first_line(error)}")


def first_line(error: Exception | None) -> str:
    r"""What an error says, in one line.

    >>> first_line(ValueError("no room\nand more"))
    'no room'
    """
    message = getattr(error, "message", None) or str(error)
    lines = str(message).strip().splitlines()
    return lines[0].strip()[:300] if lines else type(error).__name__
