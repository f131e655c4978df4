"""What the runs of an experiment share before anything is trained: data, network, protocol and terms."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from nearkin.data import DataSet
from nearkin.networks import Embedder
from nearkin.observer import Observer
from nearkin.recipe.building import build_embedder
from nearkin.recipe.opening import open_data
from nearkin.recipe.recipe import Recipe
from nearkin.recipe.sections import ProtocolRecipe
from nearkin.training import Protocol


class StartingPoint:
    """What the runs of an experiment share before anything is trained.

    Args:
        recipe: That of any run of the experiment.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe

    @cached_property
    def terms(self) -> dict[str, Any]:
        """The complete recipe in plain values."""
        return self._recipe.complete()

    @property
    def seed(self) -> int:
        """That of everything drawn."""
        return self._recipe.seed

    @property
    def recall_at(self) -> tuple[int, ...]:
        """The K of the Recall@K that runs are scored by."""
        return self._recipe.evaluation.recall_at

    @cached_property
    def embedding_dim(self) -> int | None:
        """That of the network's head; ``None`` without one."""
        return self._recipe.resolved().network.embedding_dim

    @cached_property
    def has_weights(self) -> bool:
        """Whether the network starts from weights in a file."""
        return self._recipe.resolved().network.weights is not None

    @cached_property
    def has_own_module(self) -> bool:
        """Whether the network is a module of the user's."""
        return self._recipe.resolved().network.is_own_module

    @cached_property
    def protocol(self) -> Protocol:
        """That of the runs."""
        choice = self._recipe.protocol
        made: Protocol = ProtocolRecipe.maker(choice.name)(**choice.keywords)
        return made

    def data(self, observer: Observer) -> DataSet:
        """The data set."""
        return open_data(self._recipe, observer)

    def embedder(self, data_set: DataSet, observer: Observer) -> Embedder:
        """The network before training, with its transforms."""
        embedder, _ = build_embedder(self._recipe.resolved(), data_set, observer)
        return embedder
