"""Is the exported file still the model? Its embeddings beside torch's, and the Recall@1 of both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from nearkin.data import Samples, SampleSet
from nearkin.evaluation import retrieval_scores
from nearkin.model.exporting.errors import TooDifferentError
from nearkin.model.exporting.formats import INT8, Run
from nearkin.model.exporting.graph import GraphInput
from nearkin.observer import Observer

_BATCH = 32
_FEWEST_CLASSES = 2


@dataclass(frozen=True)
class Tolerance:
    """How much an exported file may differ from the model.

    Attributes:
        difference: Between any two numbers of unit embeddings of the same sample.
        recall: Between the two Recall@1, or one query, whichever is more.
    """

    difference: float
    recall: float

    @classmethod
    def of(cls, precision: str, difference: float | None = None, recall: float | None = None) -> Tolerance:
        """What was said, else the default of a precision."""
        default = _INT8 if precision == INT8 else _FLOAT32
        return cls(
            default.difference if difference is None else _checked("tolerance", difference),
            default.recall if recall is None else _checked("recall_tolerance", recall),
        )


_FLOAT32 = Tolerance(difference=1e-4, recall=0.001)
_INT8 = Tolerance(difference=0.15, recall=0.02)


def _checked(name: str, value: float) -> float:
    if not value >= 0:
        raise ValueError(f"{name}={value} must be 0 or more")
    return value


@dataclass(frozen=True)
class Recall:
    """Recall@1 of the model and of its exported file on the same samples.

    Attributes:
        torch: Of the model.
        exported: Of the file.
        queries: How many samples searched for others of their class.
        classes: Of how many classes.
    """

    torch: float
    exported: float
    queries: int
    classes: int


@dataclass(frozen=True)
class Comparison:
    """What an exported file gives beside what the model gives.

    Attributes:
        samples: How many were compared.
        of: What kind of samples they were.
        largest_difference: Between any two numbers of unit embeddings of the same sample.
        smallest_cosine: Between the two embeddings of a sample.
        recall_at_1: Of both; ``None`` where there are no labelled samples of classes held out.
        why_no_recall: The reason for that, in words.
    """

    samples: int
    of: str
    largest_difference: float
    smallest_cosine: float
    recall_at_1: Recall | None = None
    why_no_recall: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)

    def check(self, allowed: Tolerance, file: str) -> None:
        """Refuse a file that differs too much.

        Raises:
            TooDifferentError: It does; the message says by how much.
        """
        if not self.largest_difference <= allowed.difference:  # also where it is not a number
            raise TooDifferentError(
                f"{file} is not written: its embeddings differ from torch's by up to "
                f"{self.largest_difference:.2g} on {self.samples:,} {self.of}, and {allowed.difference:.2g} "
                "is allowed (--tolerance)"
            )
        recall = self.recall_at_1
        if recall is None:
            return
        changed = abs(recall.torch - recall.exported)
        if changed > max(allowed.recall, 1 / recall.queries) + 1e-9:
            raise TooDifferentError(
                f"{file} is not written: its Recall@1 on validation classes is "
                f"{100 * recall.exported:.2f} %, torch's {100 * recall.torch:.2f} %, and a difference of "
                f"{100 * allowed.recall:.2g} points "
                "is allowed (--recall-tolerance)"
            )


@dataclass(frozen=True)
class Held:
    """Samples to compare on, with torch's embeddings of them.

    Attributes:
        samples: Any number.
        of: What kind of samples they are.
        embeddings: Torch's, ``(N, D)``.
        labels: Where they are of classes held out.
        why_no_recall: Why there are none.
        complete: Whether these are all validation samples.
    """

    samples: Samples
    of: str
    embeddings: Tensor
    labels: Tensor | None = None
    why_no_recall: str = ""
    complete: bool = False


def whole_classes(samples: SampleSet, most: int) -> SampleSet:
    """The first classes of a set: about ``most`` samples, at least two classes, and no class in part.

    >>> from nearkin.data import ImageArray
    >>> pixels = torch.zeros(9, 1, 4, 4, dtype=torch.uint8)
    >>> len(whole_classes(SampleSet(ImageArray(pixels), [0, 0, 1, 1, 1, 2, 2, 3, 3]), 6))
    5
    """
    if len(samples) <= most:
        return samples
    ends = torch.bincount(samples.labels, minlength=samples.num_classes).cumsum(0)
    return samples.of_classes(range(max(int((ends <= most).sum()), _FEWEST_CLASSES)))


def batches(taken: GraphInput, samples: Samples, size: int = _BATCH) -> Iterator[Tensor]:
    """Samples as an exported file takes them: one, two, then ``size`` at a time, to try several sizes."""
    start, steps = 0, iter((1, 2))
    while start < len(samples):
        end = min(start + next(steps, size), len(samples))
        yield taken.read(samples, range(start, end))
        start = end


def embed_with(run: Run, taken: GraphInput, samples: Samples, observer: Observer | None = None) -> Tensor:
    """The embeddings of samples by an exported file, ``(N, D)``."""
    rows: list[Tensor] = []
    done = 0
    for batch in batches(taken, samples):
        rows.append(torch.from_numpy(run(batch.numpy())).float())
        done += len(batch)
        if observer is not None:
            observer.progress(done, len(samples))
    return torch.cat(rows)


def compare(held: Held, exported: Tensor) -> Comparison:
    """An exported file's embeddings ``(N, D)`` beside torch's."""
    cosines = (held.embeddings.double() * exported.double()).sum(dim=1)
    return Comparison(
        len(exported),
        held.of,
        float((held.embeddings - exported).abs().max()),
        float(cosines.min()),
        *_recall(held, exported),
    )


def _recall(held: Held, exported: Tensor) -> tuple[Recall | None, str]:
    if held.labels is None:
        return None, held.why_no_recall
    if not exported.isfinite().all():
        return None, "the exported embeddings are not numbers"
    counts = torch.bincount(held.labels)
    if (counts > 0).sum() < _FEWEST_CLASSES or counts.max() < 2:  # nothing to be found, or nothing else
        return None, "the validation classes are too few or have one sample each"
    before, after = (
        retrieval_scores(rows, held.labels, recall_at=(1,)) for rows in (held.embeddings, exported)
    )
    return Recall(before.recall_at[1], after.recall_at[1], before.queries, int((counts > 0).sum())), ""
