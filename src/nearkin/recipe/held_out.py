"""The samples that a finished model was trained and selected on, where they are at hand."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearkin.data import SampleSet
from nearkin.observer import Observer
from nearkin.protocols.final import FINAL
from nearkin.recipe.reopening import data_of, splits_of
from nearkin.training import Run


@dataclass(frozen=True)
class TrainingData:
    """What a model was made with, where it is at hand.

    Attributes:
        learnt: Samples that it was trained on.
        validation: Samples of classes that only selected it.
        why_no_validation: The reason, where there are none.
    """

    learnt: SampleSet | None = None
    validation: SampleSet | None = None
    why_no_validation: str = ""


def training_data_of(
    folder: Path, *, fold: int | None = None, data: Any = None, observer: Observer | None = None
) -> TrainingData:
    """The training and validation samples of the model in a folder; none where they are not at hand.

    Args:
        folder: Of a run, of one of its folds, of its final network, or of a saved model.
        fold: Of a cross-validation, the network of this fold.
        data: Where the data is now, or the data itself; then it must be there.
        observer: Hears what is being done.
    """
    final = folder.name == FINAL and (folder.parent / "result.json").exists()
    home = folder.parent if final else folder
    if not (home / "result.json").exists():
        return TrainingData(why_no_validation=f"{folder} is a saved model without the data of its training")
    run = Run.existing(home)
    try:
        opened = data_of(run, data, observer)
    except (ValueError, OSError) as error:
        if data is not None:
            raise
        return TrainingData(why_no_validation=f"the data of the run is not at hand: {error}")
    if final:
        return TrainingData(opened.all_classes, None, "the final network was trained on all classes")
    learnt, validation = splits_of(run, opened, fold)
    if validation is None:
        several = len(run.result.networks) > 1 and fold is None
        why = (
            "every class was learnt by all networks but one"
            if several
            else f"the protocol {run.terms.get('protocol', {}).get('name', '')} holds out no classes"
        )
        return TrainingData(learnt, None, why)
    if not _is_the_same(run, fold, validation):
        raise ValueError(
            f"the data is not what {run.path} was trained on: its validation classes are others. Say where "
            "the data is now, or export the model without it"
        )
    return TrainingData(learnt, validation)


def _is_the_same(run: Run, fold: int | None, validation: SampleSet) -> bool:
    """Whether these validation classes are those of the run."""
    known = run.result.networks[0 if fold is None or len(run.result.networks) == 1 else fold].data.validation
    if known is None or not known.class_names:
        return True
    return len(validation) == known.samples and set(validation.class_names) == set(known.class_names)
