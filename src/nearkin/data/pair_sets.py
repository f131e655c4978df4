"""Samples of which pairs are known, in splits that share no sample."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nearkin.data.known_pairs import KnownPairs, Others
from nearkin.data.samples import DataSet, Samples, SampleSet
from nearkin.data.seeding import refuse_wrong_seed

TEST, VALIDATION = 0.3, 0.2
"""Shares of the samples that are held out where nobody says."""

_PARTS = ("test", "validation", "train")
_FEWEST = 2  # pairs of a kind, to score


def pairs(
    samples: Any,
    pairs: Sequence[Sequence[int]] | Tensor,
    same: Sequence[bool] | Tensor | None = None,
    *,
    others: Others | None = None,
    transitive: bool = True,
    test_fraction: float = TEST,
    validation_fraction: float = VALIDATION,
    seed: int = 0,
    name: str = "pairs",
) -> DataSet:
    """A data set of samples without classes, of which some pairs are known to be the same or different.

    Args:
        samples: As in :func:`nearkin.data.as_data_set`: paths of images, arrays of images or vectors, texts.
        pairs: Two positions in ``samples`` each, or three: anchor, positive, negative.
        same: Whether the two are the same, for each pair; without it all match. Not for triplets.
        others: What is taken of every other pair: ``unknown``, or ``different``. Where no pair differs it
            must be said, since nothing can be learnt from matches alone.
        transitive: Whether what matches the same sample matches each other.
        test_fraction: Share of the samples to hold out for the test.
        validation_fraction: Share that chooses the epoch and the threshold.
        seed: Draws them.
        name: What to call the data set.

    Raises:
        ValueError: Answers contradict each other, or too few pairs are left to learn from or to score.

    >>> import numpy as np
    >>> rows = np.eye(40, dtype=np.float32)
    >>> listed = [(n, n + 1) for n in range(0, 39, 2)] + [(n, n + 2) for n in range(0, 38, 2)]
    >>> made = pairs(rows, listed, [True] * 20 + [False] * 19)
    >>> made.train, made.train.pairs.same.sum()
    (SampleSet(20 samples, 10 classes), tensor(10))
    """
    from nearkin.data.entrance import as_samples  # noqa: PLC0415  (which reads tables of pairs)

    rows = torch.as_tensor(pairs, dtype=torch.long)
    if rows.ndim != 2 or rows.shape[1] not in (2, 3) or not len(rows):
        raise ValueError(f"pairs must be rows of two positions, or of three, not {tuple(rows.shape)}")
    if rows.shape[1] == 3:
        if same is not None:
            raise ValueError("triplets say themselves what is the same: give no same=")
        rows, same = of_triplets(rows)
    answers = torch.ones(len(rows), dtype=torch.bool) if same is None else torch.as_tensor(same)
    if answers.shape != rows.shape[:1]:
        raise ValueError(f"{len(rows)} pairs but {len(answers)} answers")
    found = as_samples(samples)
    outside = (rows < 0) | (rows >= len(found))
    if outside.any():
        raise ValueError(f"position {int(rows[outside][0])} is not one of {len(found)} samples")
    rows, answers, repeated = once_each(rows, answers.bool(), found.name)
    known = known_pairs(len(found), rows, answers, others, transitive=transitive, name=found.name)
    used = rows.unique()
    notes = [] if len(used) == len(found) else [f"{len(found) - len(used):,} samples are in no pair"]
    if repeated:
        notes.append(f"{repeated:,} pairs are said twice, and count once")
    whole = sample_set(found, known).select(used)
    return split_pairs(
        name, whole, test=test_fraction, validation=validation_fraction, seed=seed, notes=notes
    )


def of_triplets(triplets: Tensor) -> tuple[Tensor, Tensor]:
    """The pairs ``(2 T, 2)`` that triplets ``(T, 3)`` speak of, and their answers."""
    both = torch.stack([triplets[:, :2], triplets[:, ::2]], dim=1).reshape(-1, 2)
    return both, torch.tensor([True, False]).repeat(len(triplets))


def once_each(rows: Tensor, same: Tensor, name: Any, lines: Sequence[int] = ()) -> tuple[Tensor, Tensor, int]:
    """Every pair once, in the order in which they are first said, and how many repeat an earlier one.

    Args:
        rows: ``(P, 2)``.
        same: ``(P,)``.
        name: From a row to what a person calls the sample.
        lines: Where each pair is said, for errors.

    Raises:
        ValueError: A pair is of one sample, or is said twice with different answers.
    """
    first: dict[tuple[int, int], int] = {}
    for number, (one, other) in enumerate(rows.tolist()):
        if one == other:
            raise ValueError(f"a pair needs two samples, and both are {name(one)}{_at(lines, number)}")
        before = first.setdefault((min(one, other), max(one, other)), number)
        if same[before] != same[number]:
            said = ["the same" if same[place] else "different" for place in (before, number)]
            raise ValueError(
                f"{name(one)} and {name(other)} are said to be {said[0]}{_at(lines, before)} and "
                f"{said[1]}{_at(lines, number)}"
            )
    kept = torch.tensor(sorted(first.values()), dtype=torch.long)
    return rows[kept], same[kept], len(rows) - len(kept)


def _at(lines: Sequence[int], number: int) -> str:
    return f" in line {lines[number]}" if lines else f" (pair {number})"


def known_pairs(
    samples: int, rows: Tensor, same: Tensor, others: Others | None, *, transitive: bool, name: Any
) -> KnownPairs:
    """What pairs say together, checked.

    Raises:
        ValueError: Nothing is said to differ, or nothing to match, or answers contradict each other.
    """
    if not bool(same.any()):
        raise ValueError("no pair is the same: there is nothing to bring together")
    if others is None and bool(same.all()):
        raise ValueError(
            "no pair is different, and nothing can be learnt from matches alone: add pairs with same=0, or "
            "say data.others=different, which takes every pair that is not said to match for different"
        )
    known = KnownPairs.of(samples, rows, same, others=others or "unknown", transitive=transitive)
    if known.others == "unknown" and bool(same.all()):
        raise ValueError(
            "no pair is different and all others are unknown: add pairs with same=0, or say "
            "data.others=different"
        )
    ends = known.groups[rows]
    contradicted = ((ends[:, 0] == ends[:, 1]) & ~same).nonzero().flatten()
    if transitive and len(contradicted):
        one, other = rows[contradicted[0]].tolist()
        raise ValueError(
            f"{name(one)} and {name(other)} are said to differ, but other pairs join them: mend one of these "
            "pairs, or say data.transitive=false, where matches of a sample need not match each other"
        )
    return known


def sample_set(samples: Samples, known: KnownPairs) -> SampleSet:
    """Samples whose labels are the groups that matches join, each named after its first sample."""
    first = torch.full((int(known.groups.max()) + 1,), len(samples), dtype=torch.long)
    first.scatter_reduce_(0, known.groups, torch.arange(len(samples)), "amin")
    names = [samples.name(row) for row in first.tolist()]
    if len(set(names)) < len(names):  # texts that occur twice
        names = [f"{name} ({row})" for name, row in zip(names, first.tolist(), strict=True)]
    return SampleSet(samples, known.groups, names, pairs=known)


def split_pairs(
    name: str,
    whole: SampleSet,
    *,
    test: float = TEST,
    validation: float = VALIDATION,
    seed: int = 0,
    notes: Sequence[str] = (),
) -> DataSet:
    """A data set whose splits share no sample; pairs across them are left out, and a note says how many.

    Groups stay whole. They are walked through from one to the next that differs from it, and cut into three
    parts: so the pairs of a sparse list are nearly all kept.

    Args:
        name: Of the data set.
        whole: All samples, with their pairs.
        test: Share of the samples to hold out for the test.
        validation: Share that chooses the epoch and the threshold; 0 for none.
        seed: Draws where the walk begins.
        notes: What else a reader should know.
    """
    refuse_wrong_seed(seed)
    for key, share, lowest in (("test_fraction", test, 1e-9), ("validation_fraction", validation, 0.0)):
        if not lowest <= share < 1:
            raise ValueError(f"{key}={share} must lie between 0 and 1")
    if test + validation >= 1:
        raise ValueError(f"test_fraction={test} and validation_fraction={validation} leave nothing to learn")
    assert whole.pairs is not None
    order = walk(whole.pairs, seed)
    sizes = whole.labels.bincount()[order].double()
    middle = (sizes.cumsum(0) - sizes / 2) / len(whole)
    part = torch.empty(len(order), dtype=torch.long)
    part[order] = torch.bucketize(middle, torch.tensor([test, test + validation], dtype=torch.double))
    return of_parts(name, whole, {key: part[whole.labels] == n for n, key in enumerate(_PARTS)}, notes)


def of_parts(name: str, whole: SampleSet, parts: dict[str, Tensor], notes: Sequence[str] = ()) -> DataSet:
    """A data set of these splits, ``(N,)`` boolean each; checked that each has pairs to learn or to score.

    Raises:
        ValueError: A part has too few pairs of a kind.
    """
    splits: dict[str, Any] = {
        key: whole.select(inside.nonzero().flatten()) for key, inside in parts.items() if inside.any()
    }
    for key in ("train", "test"):
        if key not in splits:
            raise ValueError(
                f"all {len(whole):,} samples are joined by matches, or too few of them are not, so that "
                f"nothing is left for the {key} part"
            )
    for key, split in splits.items():
        _require(key, split)
    assert whole.pairs is not None
    listed, matching = len(whole.pairs.same), int(whole.pairs.same.sum())
    rest = "taken for different" if whole.pairs.others == "different" else "unknown"
    told = [
        f"{listed:,} pairs of {len(whole):,} samples: {matching:,} the same, {listed - matching:,} "
        f"different; other pairs are {rest}"
    ]
    kept = sum(len(one.pairs.same) for one in splits.values() if one.pairs is not None)
    if kept < listed:
        told.append(f"{listed - kept:,} pairs lie across the splits, which share no sample, and are left out")
    return DataSet(name, **splits, notes=(*told, *notes))


def _require(part: str, split: SampleSet) -> None:
    assert split.pairs is not None
    same = split.pairs.scored()[1]
    for kind, count in (("the same", int(same.sum())), ("different", int((~same).sum()))):
        fewest = 1 if part == "train" else _FEWEST
        if count < fewest:
            raise ValueError(
                f"{count} pairs of the {part} part are {kind}, and it needs {fewest} at least: give more "
                "pairs, or choose another data.seed, data.test_fraction or data.validation_fraction"
            )


def walk(known: KnownPairs, seed: int) -> Tensor:
    """All groups, from one to those that differ from it, breadth first; begun anew where none is left.

    >>> chain = KnownPairs.of(4, [(0, 3), (3, 1), (1, 2)], [False] * 3)
    >>> abs(walk(chain, 0).tolist().index(0) - walk(chain, 0).tolist().index(2)) > 1
    True
    """
    count = int(known.groups.max()) + 1
    draw = torch.Generator().manual_seed(seed)
    neighbours: list[list[int]] = [[] for _ in range(count)]
    for one, other in known.groups[known.pairs[~known.same]].tolist():
        neighbours[one].append(other)
        neighbours[other].append(one)
    seen, order = [False] * count, []
    for start in torch.randperm(count, generator=draw).tolist():
        waiting = deque([start])
        while waiting:
            group = waiting.popleft()
            if not seen[group]:
                seen[group] = True
                order.append(group)
                waiting.extend(other for other in neighbours[group] if not seen[other])
    return torch.tensor(order, dtype=torch.long)
