"""Same or not: what a model says about two samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nearkin.evaluation import Threshold


@dataclass(frozen=True)
class Decision:
    """What a model says about two samples; ``bool(decision)`` is whether they are the same.

    Attributes:
        similarity: The cosine of their embeddings; no probability.
        threshold: From which on they are taken for the same; ``None`` where the model has none.

    >>> print(Decision(0.8123, None))
    similarity 0.8123; the model has no threshold
    """

    similarity: float
    threshold: Threshold | None

    @property
    def same(self) -> bool | None:
        """Whether the similarity reaches the threshold; ``None`` without one."""
        return None if self.threshold is None else self.similarity >= self.threshold.similarity

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "similarity": self.similarity,
            "same": self.same,
            "threshold": None if self.threshold is None else self.threshold.to_dict(),
        }

    def __bool__(self) -> bool:
        if self.same is None:
            raise ValueError("the model has no threshold, so nothing is decided: look at the similarity")
        return self.same

    def __str__(self) -> str:
        if self.threshold is None:
            return f"similarity {self.similarity:.4f}; the model has no threshold"
        word = "same" if self.same else "different"
        return f"{word}: similarity {self.similarity:.4f}, threshold {self.threshold.similarity:.4f}"
