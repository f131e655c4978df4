"""The lists of pairs of Labeled Faces in the Wild, ``pairs.txt`` and ``pairsDevTest.txt``."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class LfwPairs(NamedTuple):
    """What such a list says.

    Attributes:
        a: One image of every pair, relative to the folder of all people.
        b: The other one.
        same: Whether they show one person.
        folds: Into how many parts the pairs are divided, where it says so.
    """

    a: tuple[str, ...]
    b: tuple[str, ...]
    same: tuple[bool, ...]
    folds: int | None


def read_lfw_pairs(file: Path) -> LfwPairs:
    """Read a list as it is published with Labeled Faces in the Wild (Huang et al., 2007).

    Its first line has the number of folds and of true pairs in each (as many false ones follow), or of true
    pairs alone. A line of three words is a true pair, ``NAME I J``, one of four a false one, ``NAME I OTHER
    J``; image I of NAME is ``NAME/NAME_000I.jpg``.

    Raises:
        ValueError: A line is something else, or there are not as many pairs as the first one says.
    """
    lines = [line.split() for line in file.read_text(encoding="utf-8-sig").splitlines()]
    pairs = [_pair(words, file, number) for number, words in enumerate(lines[1:], start=2) if words]
    counts = [int(word) for word in lines[0] if word.isdecimal()] if lines else []
    if not pairs or len(counts) != len(lines[0]) or len(counts) not in (1, 2):
        raise ValueError(
            f"{file} is no list of pairs: it must be a table (.csv) with the columns a and b, or a list of "
            "Labeled Faces in the Wild, whose first line has the numbers of folds and of pairs"
        )
    folds = counts[0] if len(counts) == 2 else None
    expected = 2 * counts[-1] * (folds or 1)
    if len(pairs) != expected:
        raise ValueError(f"{file} has {len(pairs):,} pairs and its first line says {expected:,}")
    a, b, same = zip(*pairs, strict=True)
    return LfwPairs(a, b, same, folds)


def _pair(words: list[str], file: Path, number: int) -> tuple[str, str, bool]:
    if len(words) == 3:
        words = [*words[:2], words[0], words[2]]
        same = True
    else:
        same = False
    if len(words) != 4 or not (words[1].isdecimal() and words[3].isdecimal()):
        raise ValueError(
            f"{file}, line {number}: a pair is NAME I J, or NAME I OTHER J, not {' '.join(words)!r}"
        )
    return _image(*words[:2]), _image(*words[2:]), same


def _image(name: str, number: str) -> str:
    """Where an image is.

    >>> _image("Aaron_Peirsol", "3")
    'Aaron_Peirsol/Aaron_Peirsol_0003.jpg'
    """
    return f"{name}/{name}_{int(number):04d}.jpg"
