"""Fixed validation: some training classes are held out, and the epoch that serves them best counts."""

from __future__ import annotations

from nearkin.data import DataSet, SampleSet, split_classes
from nearkin.observer import Observer
from nearkin.training import NetworkResult, Protocol, Run, Scorer, Task, train
from nearkin.training.protocol import register

_SHARE = 0.1
_ENOUGH_CLASSES = 15  # with fewer, Recall@1 is soon 100% at every epoch
_LARGEST_SHARE = 1 / 3


@register("fixed_validation")
class FixedValidation(Protocol):
    """Some training classes, at random, are held out; the best epoch on them counts.

    Thesis, section 5.2: of the splits 70/30, 80/20, 90/10 and 95/5 the third tests best (so the test classes
    chose it; the plan ``split_ratios`` asks again), and a tenth of the classes is held out; where that is
    fewer than 15 classes, which soon all score 100 %, 15 of them, but at most a third. A data set's own
    validation split is used as it is, unless a share is asked for.

    Args:
        validation_share: The share of the training classes to hold out.
    """

    def __init__(self, validation_share: float | None = None) -> None:
        if validation_share is not None and not 0 < validation_share < 1:
            raise ValueError(f"validation_share={validation_share} must lie between 0 and 1")
        self.validation_share = validation_share

    def train(
        self, task: Task, run: Run, data: DataSet, observer: Observer, score_test: Scorer | None = None
    ) -> list[NetworkResult]:
        """One training, selected on the classes that are held out."""
        samples, validation = self.split(data, task.seed)
        return [train(task, run, task.embedder.copy(), samples, validation=validation, observer=observer)]

    def split(self, data: DataSet, seed: int) -> tuple[SampleSet, SampleSet]:
        """The samples to learn from and those to select on.

        Raises:
            ValueError: Fewer than two classes would be held out, or left to learn from.
        """
        if self.validation_share is None and data.validation is not None:
            return data.train, data.validation
        everything = data.all_classes
        share = self.validation_share or self.default_share(everything.num_classes)
        held_out = round(share * everything.num_classes)
        if not 2 <= held_out <= everything.num_classes - 2:
            raise ValueError(
                f"{everything.num_classes} training classes are too few for protocol.validation_share="
                f"{share:.3g}: {held_out} would be held out, and both sides need at least two. Change it, or "
                "choose protocol.name=standard"
            )
        return split_classes(everything, share, seed)

    def default_share(self, classes: int) -> float:
        """The share of so many classes that is held out where nobody says it."""
        return default_share(classes)


def default_share(classes: int) -> float:
    """The share of classes to hold out by default.

    >>> [round(default_share(classes) * classes) for classes in (6, 20, 50, 100, 1000)]
    [2, 7, 15, 15, 100]
    """
    wanted = max(_SHARE * classes, min(_ENOUGH_CLASSES, _LARGEST_SHARE * classes), 2)
    return min(wanted / classes, 0.5)
