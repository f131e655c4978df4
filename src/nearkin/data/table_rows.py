"""The rows of a table that somebody saved: with commas, semicolons or tabs, as spreadsheets write it."""

from __future__ import annotations

import codecs
import csv
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TABLE_SUFFIXES = frozenset({".csv", ".tsv"})
_SEPARATORS = (",", ";", "\t")
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass(frozen=True)
class TableRows:
    """A table with a heading.

    Attributes:
        columns: The names in its first line, in small letters and without spaces around them.
        rows: The number of the line and the fields by column, of every row. A field that is missing is
            ``None``; what is too much stands under ``None``.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[int, dict[str, str]], ...]


def read_columns(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """The names in a table's first line; none of a file that cannot be read."""
    try:
        lines = _lines(Path(path))
    except (OSError, ValueError):
        return ()
    return _heading(lines, _separator(lines))


def read_rows(path: str | os.PathLike[str]) -> TableRows:
    """Read a table, whose separator is the one that parts its first line into the most fields.

    Raises:
        ValueError: It is no text in UTF-8 or UTF-16, or two columns have one name.
    """
    lines = _lines(Path(path))
    separator = _separator(lines)
    columns = _heading(lines, separator)
    twice = [column for column in columns if columns.count(column) > 1]
    if twice:
        raise ValueError(f"{path}: two columns are called {twice[0]!r} in its first line")
    reader = csv.DictReader(lines, fieldnames=columns, delimiter=separator)
    next(reader, None)  # the heading
    return TableRows(columns, tuple(_stripped(reader)))


def _lines(path: Path) -> list[str]:
    data = path.read_bytes()
    encoding = "utf-16" if data.startswith(_UTF16) else "utf-8-sig"
    try:
        return list(io.StringIO(data.decode(encoding), newline=""))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}, line {line}: no text in UTF-8; save the table in that encoding") from None


def _separator(lines: list[str]) -> str:
    return max(_SEPARATORS, key=lambda separator: len(_heading(lines, separator)))  # a comma, if in doubt


def _heading(lines: list[str], separator: str) -> tuple[str, ...]:
    return tuple(name.strip().lower() for name in next(csv.reader(lines, delimiter=separator), ()))


def _stripped(reader: csv.DictReader[str]) -> Iterator[tuple[int, dict[str, str]]]:
    for row in reader:
        yield (
            reader.line_num,
            {name: value.strip() if isinstance(value, str) else value for name, value in row.items()},
        )
