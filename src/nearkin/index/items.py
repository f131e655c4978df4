"""What an index holds and what a search finds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nearkin.registry import shortened

Value = str | int | float | bool
"""What a key of the metadata may hold."""


@dataclass(frozen=True)
class NewItem:
    """A sample on its way into an index; one of the same name that is there already is replaced.

    Attributes:
        name: Of one item only: the path below the folder that was given, the text, or what the user says.
        content: A hash of what was embedded, in hexadecimal digits.
        label: Its class, where it is known.
        metadata: Anything else by which a search may be narrowed.
        path: The file, where it is one.
    """

    name: str
    content: str
    label: str | None = None
    metadata: Mapping[str, Value] = field(default_factory=dict)
    path: Path | None = None


@dataclass(frozen=True)
class Item:
    """A sample in an index.

    Attributes:
        id: Of this item for as long as the index lives; never given to another one.
        name: Of this item only.
        label: Its class, where it is known.
        metadata: Anything else that is known of it.
        path: The file, where it was one.
        content: A hash of what was embedded, in hexadecimal digits.
    """

    id: int
    name: str
    label: str | None
    metadata: Mapping[str, Value]
    path: Path | None
    content: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "id": self.id,
            "name": self.name,
            "label": self.label,
            "metadata": dict(self.metadata),
            "path": None if self.path is None else str(self.path),
            "content": self.content,
        }


@dataclass(frozen=True)
class Hit:
    """An item that a search found.

    Attributes:
        item: What was found.
        similarity: The cosine with the query; not a probability.
        same: Whether the cosine reaches the model's threshold; ``None`` where the model has none.
    """

    item: Item
    similarity: float
    same: bool | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {**self.item.to_dict(), "similarity": self.similarity, "same": self.same}


@dataclass(frozen=True)
class Added:
    """What became of the inputs.

    Attributes:
        new: Items that were not there before.
        known: Items that were there already with the same content; nothing was embedded for them.
        changed: Items that were there with another content, and have the new one now.
        skipped: Inputs that cannot be read, each with the reason.
    """

    new: int = 0
    known: int = 0
    changed: int = 0
    skipped: tuple[tuple[str, str], ...] = ()


def checked_metadata(given: Mapping[str, Any], name: str) -> dict[str, Value]:
    """Metadata that a store can hold.

    >>> checked_metadata({"price": 9.5, "new": True}, "a.jpg")
    {'price': 9.5, 'new': True}

    Raises:
        ValueError: A key is not a word, or a value is not a text, a number, or true or false.
    """
    for key, value in given.items():
        if not isinstance(key, str) or not key or '"' in key:
            raise ValueError(f"{name}: {shortened(key)} cannot be a key of the metadata: it must be a word")
        if not isinstance(value, str | int | float) or (
            isinstance(value, float) and not math.isfinite(value)
        ):
            raise ValueError(
                f"{name}: metadata {key}={shortened(value)} must be a text, a finite number, or true or false"
            )
    return dict(given)
