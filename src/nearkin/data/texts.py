"""Texts as samples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Texts:
    """Texts in memory; a sample is a ``str``.

    Args:
        texts: One text per sample.

    >>> titles = Texts(["a wren", "a gull"])
    >>> titles[1], titles.name(0)
    ('a gull', 'a wren')
    """

    _NAME_LENGTH = 60

    def __init__(self, texts: Iterable[str]) -> None:
        if isinstance(texts, str):
            raise TypeError("texts must be a list of str, not one str")
        self.texts = tuple(texts)
        for index, text in enumerate(self.texts):
            if not isinstance(text, str):
                raise TypeError(f"text {index} is a {type(text).__name__}, not a str")

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> str:
        return self.texts[index]

    def select(self, indices: Sequence[int]) -> Texts:
        """The texts at ``indices``, in that order."""
        return Texts([self.texts[index] for index in indices])

    def name(self, index: int) -> str:
        """The beginning of the text, on one line."""
        line = " ".join(self.texts[index].split())
        return line if len(line) <= self._NAME_LENGTH else f"{line[: self._NAME_LENGTH - 1]}…"
