"""Fixed validation: some training classes are held out, and the epoch that serves them best counts."""

from __future__ import annotations

from nearkin.data import SampleSet, split_classes
from nearkin.protocols.base import Learnt, Protocol, register
from nearkin.protocols.training_data import TrainingData
from nearkin.training import Observer, Recipe, Run, train

DEFAULT_SHARE = 0.1


@register("fixed_validation")
class FixedValidation(Protocol):
    """A tenth of the training classes, at random, is held out; the best epoch on them counts.

    Thesis, section 5.2: of the splits 70/30, 80/20, 90/10 and 95/5 the third tests best. A data set's own
    validation split is used as it is, unless the recipe asks for a share (``protocol.validation_share``).
    """

    def train(self, run: Run, data: TrainingData, observer: Observer) -> list[Learnt]:
        """One training, selected on the classes that are held out."""
        images, validation = fixed_splits(run.recipe, data)
        trained = train(run, images, validation, observer)
        return [Learnt(run, trained, images, validation, "best epoch on validation classes")]


def fixed_splits(recipe: Recipe, data: TrainingData) -> tuple[SampleSet, SampleSet]:
    """The images to learn from and those to select on.

    Raises:
        ValueError: Fewer than two classes would be held out.
    """
    share = recipe.protocol.validation_share
    if share is None and data.validation is not None:
        return data.train, data.validation
    everything = data.all_classes
    share = DEFAULT_SHARE if share is None else share
    images, validation = split_classes(everything, share, recipe.seed)
    if validation.num_classes < 2:
        raise ValueError(
            f"protocol.validation_share={share} of {everything.num_classes} classes holds one class out, "
            "and kin cannot be told from strangers there: raise it, or choose protocol.name=standard"
        )
    return images, validation
