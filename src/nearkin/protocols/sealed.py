"""The test split, sealed: opened once, at the end of a run, through one function."""

from __future__ import annotations

from collections.abc import Sequence

from nearkin.data import DataSet
from nearkin.networks import EmbeddingNetwork
from nearkin.protocols.opened import Opened, scored
from nearkin.protocols.training_data import TrainingData, without_test
from nearkin.training import Recipe, Scorer
from nearkin.training.building import embed_as


class SealedTest:
    """The test split of a data set, for the end of a run.

    It holds the only way to the test images. Training, selection and search are given
    :class:`TrainingData`, from which they cannot be reached; whoever holds this object can open it once.

    Attributes:
        num_images: Of the test split.
        num_classes: Of the test split.
    """

    def __init__(self, data_set: DataSet) -> None:
        self._data_set: DataSet | None = data_set
        self.num_images = len(data_set.require_test())
        self.num_classes = data_set.require_test().num_classes

    def open(self, networks: Sequence[EmbeddingNetwork], recipe: Recipe) -> list[Opened]:
        """Score networks on the test classes; a second call is a ``RuntimeError``."""
        data_set = self._intact()
        self._data_set = None
        return [score_test(network, data_set, recipe) for network in networks]

    def unsealed_scores(self, recipe: Recipe) -> Scorer:
        """Break the seal: a function that tells the test scores of any network, any number of times.

        For ``standard_best_on_test``, whose results say that the test classes chose the epoch, and for
        nothing else.
        """
        data_set = self._intact()
        return lambda network: score_test(network, data_set, recipe).scores.to_dict()

    def _intact(self) -> DataSet:
        if self._data_set is None:
            raise RuntimeError("the test split of this run has been opened already")
        return self._data_set


def seal(data_set: DataSet) -> tuple[TrainingData, SealedTest]:
    """A data set in two parts: what may be learnt from, and the test split, sealed."""
    return without_test(data_set), SealedTest(data_set)


def score_test(network: EmbeddingNetwork, data_set: DataSet, recipe: Recipe) -> Opened:
    """Embed the test classes and score them: queries against the gallery where the data set has one."""
    if data_set.query is None or data_set.gallery is None:
        test = data_set.require_test()
        return scored(recipe, test, embed_as(recipe, network, test))
    queries, gallery = (embed_as(recipe, network, part) for part in (data_set.query, data_set.gallery))
    return scored(recipe, data_set.query, queries, data_set.gallery, gallery)
