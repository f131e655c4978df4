"""What training, selection and search are given of a data set: everything but the test classes."""

from __future__ import annotations

from dataclasses import dataclass

from nearkin import data
from nearkin.data import DataSet, ImageSet
from nearkin.training import Observer, Recipe, Scorer

_LISTED = 5


@dataclass(frozen=True)
class TrainingData:
    """The classes of a data set that may be learnt from and selected on.

    Attributes:
        train: Images to learn from.
        validation: Classes for model selection, where the data set brings its own.
        notes: What a reader of a result should know.
        test_scorer: Tells the test scores of a network; there for ``standard_best_on_test`` only.
    """

    train: ImageSet
    validation: ImageSet | None
    notes: tuple[str, ...] = ()
    test_scorer: Scorer | None = None

    @property
    def all_classes(self) -> ImageSet:
        """Training and validation classes together: the half that is not for testing."""
        return self.train if self.validation is None else data.join(self.train, self.validation)


def open_data(recipe: Recipe, observer: Observer | None = None) -> DataSet:
    """The recipe's data set, every image of which can be read.

    Raises:
        ValueError: that lists the images that cannot be read, unless the recipe skips them.
    """
    observer = observer or Observer()
    observer.stage(f"opening {recipe.data.name}")
    data_set = data.build(recipe.data.name, recipe.data.root, **recipe.data.keywords)
    bad = data.bad_images(data_set)
    if bad and not recipe.data.skip_bad:
        listed = "; ".join(map(str, bad[:_LISTED])) + ("; …" if len(bad) > _LISTED else "")
        raise ValueError(
            f"{len(bad)} images cannot be read: {listed}. Mend them, or leave them out with --skip-bad "
            "(nearkin datasets check lists all)"
        )
    return data.leave_out(data_set, bad)


def without_test(data_set: DataSet) -> TrainingData:
    """What remains of a data set when its test classes are taken away."""
    return TrainingData(data_set.train, data_set.validation, data_set.notes)
