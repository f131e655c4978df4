"""Anybody's results in a CSV file, as outcomes that can be ranked."""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from nearkin.tournament.outcomes import Experiment, Outcome

_CONTENDER = ("contender", "loss", "method")
_NAMES = {"dataset", "data", "network", "embedding_dim", "protocol", "source", "seed"}
_RECALL = re.compile(r"^(?:recall|r)[ _]?(?:@|at)[ _]?(\d+)$")
_MAP = re.compile(r"^map[ _]?(?:@|at)[ _]?r$")


def is_results_table(path: Path) -> bool:
    """Whether a file is a table of results, by its head: it names contenders and has a score."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            head = next(csv.reader(file), [])
    except (OSError, UnicodeDecodeError, csv.Error):
        return False
    names = [column.strip().lower() for column in head]
    return any(one in names for one in _CONTENDER) and "path" not in names


def read_results(path: Path) -> tuple[list[Outcome], list[str]]:
    """The outcomes of a table of results, and what to say about how it was read.

    Columns: ``contender`` (or ``loss``), and where known ``dataset``, ``network``, ``embedding_dim``,
    ``protocol``, ``seed`` and ``source``; every other column is a score, such as ``recall_at_1`` or ``R@1``.
    A column of scores with a value above 1 is taken as per cent.

    Raises:
        ValueError: It is no such table; the message says which line.
    """
    rows = _rows(path)
    contender = next(one for one in _CONTENDER if one in rows[0])
    known = {contender, *_NAMES}
    scores = {column: _score_name(column) for column in rows[0] if column not in known}
    if not scores:
        raise ValueError(f"{path} has no column of scores, such as recall_at_1")
    values = {column: _numbers(path, rows, column) for column in scores}
    percent = {column for column, found in values.items() if max(filter(math.isfinite, found), default=0) > 1}
    numbered: Counter[tuple[str, ...]] = Counter()
    outcomes = []
    for number, row in enumerate(rows):
        found = {
            scores[column]: values[column][number] / (100 if column in percent else 1)
            for column in scores
            if math.isfinite(values[column][number])
        }
        outcomes.append(_outcome(path, row, row[contender], found, numbered))
    notes = [_how_read(path, [scores[column] for column in percent], list(scores.values()))]
    return outcomes, notes + [
        _mixed(path, column, values[column]) for column in percent if _mixes(values[column])
    ]


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = [
                {str(key).strip().lower(): str(value or "").strip() for key, value in row.items()}
                for row in csv.DictReader(file)
            ]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"cannot read the table {path}: {error}") from None
    if not rows:
        raise ValueError(f"{path} has no lines")
    if not any(one in rows[0] for one in _CONTENDER):
        columns = list(rows[0])
        hint = "; write it with commas between the columns" if len(columns) == 1 and ";" in columns[0] else ""
        raise ValueError(f"{path} has no column contender (or loss): it has {', '.join(columns)}{hint}")
    return rows


def _score_name(column: str) -> str:
    """How a score is called here.

    >>> [_score_name(one) for one in ("R@1", "recall at 8", "MAP@R", "NMI")]
    ['recall_at_1', 'recall_at_8', 'map_at_r', 'nmi']
    """
    name = column.strip().lower()
    if found := _RECALL.match(name):
        return f"recall_at_{found[1]}"
    return "map_at_r" if _MAP.match(name) else name.replace(" ", "_")


def _numbers(path: Path, rows: Sequence[Mapping[str, str]], column: str) -> list[float]:
    """The scores of a column, not a number where a line has none."""
    found = []
    for line, row in enumerate(rows, 2):
        text = row[column].removesuffix("%").strip()
        try:
            value = float(text) if text else math.nan
        except ValueError:
            raise ValueError(f"{path}, line {line}: {column} is {text!r}, not a number") from None
        if value < 0 or value > 100:
            raise ValueError(f"{path}, line {line}: {column} is {text}, and scores lie between 0 and 100")
        found.append(value)
    return found


def _outcome(
    path: Path,
    row: Mapping[str, str],
    contender: str,
    scores: dict[str, float],
    numbered: Counter[tuple[str, ...]],
) -> Outcome:
    size = row.get("embedding_dim", "")
    experiment = Experiment(
        dataset=row.get("dataset", "") or row.get("data", ""),
        network=row.get("network", ""),
        embedding_dim=int(size) if size.isdigit() else 0,
        protocol=row.get("protocol", ""),
    )
    same = (str(experiment), contender)
    said = row.get("seed", "")
    seed = int(said) if said.isdigit() else numbered[same]
    numbered[same] += 1
    source = row.get("source", "") or path.name
    return Outcome(experiment, contender, "published", scores, source, seed=seed, loss=contender)


def _mixes(values: Sequence[float]) -> bool:
    """Whether a column that is read as per cent has values that look like shares of 1."""
    return any(0 < value < 1 for value in values)


def _mixed(path: Path, column: str, values: Sequence[float]) -> str:
    small = [(line, value) for line, value in enumerate(values, 2) if 0 < value < 1]
    return (
        f"{path.name}: {len(small)} of {len(values)} values of {column} lie below 1 (line {small[0][0]}: "
        f"{small[0][1]:g}) and are read as per cent like the others; write them as per cent if they are "
        "shares of 1."
    )


def _how_read(path: Path, percent: Sequence[str], scores: Sequence[str]) -> str:
    share = [name for name in scores if name not in percent]
    told = [
        f"{', '.join(names)} as {kind}"
        for names, kind in ((percent, "per cent"), (share, "shares of 1"))
        if names
    ]
    return (
        f"{path.name} is taken at its word: {' and '.join(told)}; how its scores were made, and whether "
        "on these very test samples, is not known here."
    )
