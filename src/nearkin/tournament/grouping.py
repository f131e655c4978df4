"""From outcomes to boards and their rows: what is averaged, what is ranked together, and how it is called."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from nearkin.tournament.outcomes import Experiment, Outcome
from nearkin.tournament.terms import (
    SeenData,
    check_pool,
    names_of_data,
    relation,
    telling_keys,
    told,
)

_SHOWN_REPETITIONS = 3


@dataclass
class BoardOutcomes:
    """The outcomes of one experiment.

    Attributes:
        experiment: Its name, different from that of every other.
        rows: The rows by contender, the runs whose scores are averaged: one per seed.
        notes: What a reader must know about how they were put together.
    """

    experiment: Experiment
    rows: dict[str, list[Outcome]]
    notes: list[str] = field(default_factory=list)


def group_outcomes(outcomes: Iterable[Outcome], *, pool: Sequence[str] = ()) -> list[BoardOutcomes]:
    """Put outcomes on boards, and the runs of a board into rows, by how they stand to each other.

    Args:
        outcomes: Runs, baselines and figures of which only names are known.
        pool: Settings to average over although they differ.

    Raises:
        ValueError: No run has a setting that is to be pooled.
    """
    everything = list(outcomes)
    check_pool(pool, [one.terms for one in everything if one.terms is not None])
    boards = _boards(everything, pool)
    experiments = _named_apart([[one for row in board for one in row] for board in boards], pool)
    labels = _labels(boards, pool)
    found = []
    for experiment, board in zip(experiments, boards, strict=True):
        rows: dict[str, list[Outcome]] = {}
        repeated: list[Outcome] = []
        for row in board:
            kept = _once_per_seed(row, pool)
            repeated += [one for one in row if not any(one is other for other in kept)]
            label = _free(labels[id(row)], rows, row[0])
            rows[label] = [replace(one, experiment=experiment, contender=label) for one in kept]
        notes = [*_pool_notes(board, pool), *_trust_notes(rows, pool), *_notes(repeated)]
        found.append(BoardOutcomes(experiment, rows, notes))
    return sorted(found, key=lambda board: board.experiment)


def _boards(outcomes: Sequence[Outcome], pool: Sequence[str]) -> list[list[list[Outcome]]]:
    """Boards of rows: first what is known by its terms, then what is known by names alone."""
    boards: list[list[list[Outcome]]] = []
    by_key: dict[str, list[list[list[Outcome]]]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.terms is None:
            continue
        alike = by_key[outcome.terms.key("experiment", pool)]
        board = next((one for one in alike if _belongs(outcome, one, pool)), None)
        if board is None:
            board = []
            alike.append(board)
            boards.append(board)
        _enter(outcome, board, pool)
    for outcome in outcomes:
        if outcome.terms is None:
            alike = [board for board in boards if _may_name(outcome.experiment, board[0][0].experiment)]
            if len(alike) != 1:
                exact = [board for board in alike if board[0][0].experiment == outcome.experiment]
                alike = exact[:1]
            if not alike:
                boards.append([])
            _enter(outcome, alike[0] if alike else boards[-1], pool)
    return boards


def _belongs(outcome: Outcome, board: Sequence[Sequence[Outcome]], pool: Sequence[str]) -> bool:
    assert outcome.terms is not None
    return all(
        relation(outcome.terms, other.terms, pool=pool) != "experiments"
        for row in board
        for other in row
        if other.terms is not None
    )


def _may_name(said: Experiment, there: Experiment) -> bool:
    """Whether the names that are known of an experiment are those of another."""
    parts = ("dataset", "network", "embedding_dim", "protocol")
    return all(not getattr(said, part) or getattr(said, part) == getattr(there, part) for part in parts)


def _enter(outcome: Outcome, board: list[list[Outcome]], pool: Sequence[str]) -> None:
    """Put an outcome into its row, or a new one."""
    for row in board:
        if _is_row_of(outcome, row[0], pool) and not any(_contradicts(outcome, one, pool) for one in row):
            row.append(outcome)
            return
    board.append([outcome])


def _is_row_of(outcome: Outcome, other: Outcome, pool: Sequence[str]) -> bool:
    if outcome.kind != other.kind or (outcome.terms is None) != (other.terms is None):
        return False
    if outcome.terms is None or other.terms is None:
        return outcome.contender == other.contender
    if outcome.kind == "baseline":
        return outcome.contender == other.contender
    return relation(outcome.terms, other.terms, pool=pool) in {"repetition", "seeds"}


def _contradicts(outcome: Outcome, other: Outcome, pool: Sequence[str]) -> bool:
    """Whether two runs with an object that was given in Python cannot have had the same one.

    Such an object is known by its name alone: one seed with two scores is two objects of one name.
    """
    if outcome.terms is None or other.terms is None or not outcome.terms.given_in_python(pool):
        return False
    repeated = relation(outcome.terms, other.terms, pool=pool) == "repetition"
    return repeated and outcome.scores != other.scores


def _once_per_seed(row: Sequence[Outcome], pool: Sequence[str]) -> list[Outcome]:
    """The first run of every seed: a copy, or the same run again, is not a second seed."""
    kept: list[Outcome] = []
    for outcome in row:
        if not any(_repeats(outcome, other, pool) for other in kept):
            kept.append(outcome)
    return kept


def _repeats(outcome: Outcome, other: Outcome, pool: Sequence[str]) -> bool:
    if outcome.terms is None or other.terms is None:
        return outcome.seed is not None and outcome.seed == other.seed
    return relation(outcome.terms, other.terms, pool=pool) == "repetition"


def _labels(boards: Sequence[Sequence[list[Outcome]]], pool: Sequence[str]) -> dict[int, str]:
    """What rows are called: by their name, and by what differs where a board has several of one name.

    What tells rows of a name apart on one board is said on all, so that a ranking over boards knows them
    again.
    """
    telling: dict[str, list[str]] = defaultdict(list)
    for board in boards:
        of_name: dict[str, list[Outcome]] = defaultdict(list)
        for row in board:
            if row[0].kind == "run" and row[0].terms is not None:
                of_name[row[0].contender].append(row[0])
        for name, ones in of_name.items():
            settings = [one.terms.of_factor("contender", pool) for one in ones if one.terms is not None]
            telling[name] += [key for key in telling_keys(settings) if key not in telling[name]]
    labels = {}
    for board in boards:
        for row in board:
            first = row[0]
            keys = telling[first.contender] if first.kind == "run" and first.terms is not None else []
            shown = told(first.terms.flat, keys) if keys and first.terms is not None else ""
            labels[id(row)] = f"{first.contender} ({shown})" if shown else first.contender
    return labels


def _free(label: str, taken: dict[str, list[Outcome]], outcome: Outcome) -> str:
    """The label, or one with its source where another row has it: somebody else's figures of one name."""
    return label if label not in taken else f"{label} ({outcome.source})"


def _named_apart(boards: Sequence[Sequence[Outcome]], pool: Sequence[str]) -> list[Experiment]:
    """The boards' names; those of one name also say what differs."""
    of_name: dict[Experiment, list[int]] = defaultdict(list)
    for number, board in enumerate(boards):
        of_name[board[0].experiment].append(number)
    found = [board[0].experiment for board in boards]
    for experiment, numbers in of_name.items():
        if len(numbers) == 1:
            continue
        known = [boards[number][0].terms for number in numbers]
        settings = [{} if terms is None else terms.of_factor("experiment", pool) for terms in known]
        keys = telling_keys(settings)
        details = [told(one, keys) for one in settings]
        alike: dict[str, list[int]] = defaultdict(list)
        for place, detail in enumerate(details):
            alike[detail].append(place)
        for detail, places in alike.items():
            if len(places) > 1:
                seen = [_seen(boards[numbers[place]]) for place in places]
                for place, name in zip(places, names_of_data(seen), strict=True):
                    details[place] = f"{detail}, {name}" if detail else name
        for number, detail in zip(numbers, details, strict=True):
            found[number] = replace(experiment, detail=detail)
    return found


def _seen(board: Sequence[Outcome]) -> list[SeenData]:
    return [one.terms.data for one in board if one.terms is not None]


def _pool_notes(board: Sequence[Sequence[Outcome]], pool: Sequence[str]) -> list[str]:
    """What was averaged over on request, with the values that it had."""
    notes = []
    for wanted in pool:
        values: dict[str, int] = defaultdict(int)
        for row in board:
            for one in row:
                if one.terms is not None and one.kind == "run":
                    below = {
                        key: value
                        for key, value in one.terms.flat.items()
                        if key == wanted or key.startswith(f"{wanted}.")
                    }
                    values[told(below, sorted(below)) or f"{wanted}=none"] += 1
        if len(values) > 1:
            listed = "; ".join(f"{value} ({count} runs)" for value, count in values.items())
            notes.append(f"Averaged over different terms on request (--pool {wanted}): {listed}.")
    return notes


def _trust_notes(rows: dict[str, list[Outcome]], pool: Sequence[str]) -> list[str]:
    """Which means are over runs whose objects are known by name only."""
    notes = []
    for label, row in rows.items():
        terms = row[0].terms
        keys = terms.given_in_python(pool) if terms is not None and len(row) > 1 else []
        if keys:
            notes.append(
                f"{label}: {' and '.join(keys)} given in Python; that its {len(row)} runs had the same is "
                "taken on trust."
            )
    return notes


def _notes(repeated: Sequence[Outcome]) -> list[str]:
    runs = [one.source for one in repeated if one.kind != "baseline"]
    if not runs:
        return []
    shown = ", ".join(runs[:_SHOWN_REPETITIONS]) + (", …" if len(runs) > _SHOWN_REPETITIONS else "")
    return [f"{len(runs)} of the runs repeat a seed on equal terms and do not count again: {shown}."]
