"""What training, selection and search are given of a data set: everything but the test classes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nearkin import data
from nearkin.data import DataSet, SampleSet
from nearkin.training import Observer, Recipe, Scorer, build_network
from nearkin.training.trunk import seen_by_trunk

_LISTED = 5


@dataclass(frozen=True)
class TrainingData:
    """The classes of a data set that may be learnt from and selected on.

    Attributes:
        train: Images to learn from.
        validation: Classes for model selection, where the data set brings its own.
        all_classes: Training and validation classes together: the half that is not for testing.
        notes: What a reader of a result should know.
        test_scorer: Tells the test scores of a network; there for ``standard_best_on_test`` only.
    """

    train: SampleSet
    validation: SampleSet | None
    all_classes: SampleSet
    notes: tuple[str, ...] = ()
    test_scorer: Scorer | None = None


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
    train, validation = data_set.train, data_set.validation
    all_classes = train if validation is None else data.join(train, validation)
    return TrainingData(train, validation, all_classes, data_set.notes)


def as_trained_on(recipe: Recipe, training_data: TrainingData, observer: Observer) -> TrainingData:
    """The images, or the activations of the recipe's trunk: of all at once, however they will be split."""
    if recipe.network.cached_trunk is None:
        return training_data
    images = training_data.all_classes
    observer.stage(f"computing what {recipe.network.cached_trunk} makes of {len(images)} images, once")
    seen = seen_by_trunk(recipe, build_network(recipe), images, flips=True)
    learnt = training_data.train.num_classes
    return replace(
        training_data,
        train=seen.of_classes(range(learnt)),
        validation=seen.of_classes(range(learnt, seen.num_classes)) if training_data.validation else None,
        all_classes=seen,
    )
