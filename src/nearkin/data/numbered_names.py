"""Names of very many classes, of which none is held as a string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import torch
from torch import Tensor


class NumberedNames(Sequence[str]):
    """Class names that are made of numbers when somebody asks for one.

    Args:
        numbers: int64 ``(C,)``, different; or how many, for 0, 1, ….
        pattern: What a number becomes; ``{}`` stands for it.

    >>> names = NumberedNames(1_000_000, "person {}")
    >>> len(names), names[41]
    (1000000, 'person 41')
    """

    def __init__(self, numbers: Tensor | int, pattern: str = "{}") -> None:
        self.numbers = torch.arange(numbers) if isinstance(numbers, int) else numbers
        self.pattern = pattern

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> NumberedNames: ...

    def __getitem__(self, index: int | slice) -> str | NumberedNames:
        """A name, or some of them."""
        chosen = self.numbers[index]
        return NumberedNames(chosen, self.pattern) if isinstance(index, slice) else self._name(int(chosen))

    def _name(self, number: int) -> str:
        return self.pattern.format(number)

    def select(self, indices: Tensor) -> NumberedNames:
        """The names at ``indices``, in that order."""
        return NumberedNames(self.numbers[indices], self.pattern)

    def first_common(self, other: NumberedNames) -> str | None:
        """A name that is in both, if there is one; the patterns must be the same."""
        common = self.numbers[torch.isin(self.numbers, other.numbers)]
        return self._name(int(common[0])) if len(common) else None

    def __eq__(self, other: object) -> bool:
        if isinstance(other, NumberedNames) and other.pattern == self.pattern:
            return torch.equal(self.numbers, other.numbers)
        return isinstance(other, Sequence) and len(other) == len(self) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash((self.pattern, len(self)))

    def __repr__(self) -> str:
        return f"NumberedNames({len(self):,} × {self.pattern!r})"
