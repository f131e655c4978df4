"""What a network must beat: pixels, features that nobody trained, and classical metric learning on them.

Baselines are fitted on the training classes of an experiment, scored on its test classes by the same function
as the runs, and kept beside them: each is a directory with a ``result.json`` that
:func:`~nearkin.tournament.outcomes.read_outcomes` finds.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor, nn

from nearkin import classical
from nearkin.data import DataSet, SampleSet
from nearkin.evaluation import RetrievalScores
from nearkin.networks import Backbone, EmbeddingNetwork
from nearkin.protocols import Opened, TrainingData, open_data, seal
from nearkin.protocols.fixed_validation import fixed_splits
from nearkin.protocols.opened import scored
from nearkin.protocols.training_data import as_trained_on
from nearkin.tournament.outcomes import experiment_of
from nearkin.training import Observer, Recipe, Run, build_network
from nearkin.training.engine import embed_as

Array = NDArray[np.float32]
Map = Callable[[Array], Array]

_PIXEL_SIDE = 32  # images are averaged down to this, so that their pixels fit in memory
_SETTINGS = ("data", "network", "evaluation", "protocol", "seed")  # of a recipe: what a baseline depends on


@dataclass(frozen=True)
class _Learner:
    """A baseline that learns a linear map.

    Attributes:
        description: What it does, in a few words.
        fit: From points ``(N, F)``, labels ``(N,)`` and a wanted size to a map.
        most_points: Whole classes are drawn until there are about so many points: it would take too long.
        reduced: Whether points come as principal components, as many as an embedding has.
    """

    description: str
    fit: Callable[[Array, NDArray[np.int64], int], Map]
    most_points: int = 12_000
    reduced: bool = True


def _pca(X: Array, _: NDArray[np.int64], size: int) -> Map:
    learnt = PCA(min(size, *X.shape), random_state=0).fit(X)
    return lambda points: np.asarray(learnt.transform(points), dtype=np.float32)


def _lda(X: Array, y: NDArray[np.int64], size: int) -> Map:
    """Discriminants among twice as many principal components: with more, small classes give noise."""
    first = _pca(X, y, 2 * size)
    Z = first(X)
    learnt = LinearDiscriminantAnalysis(n_components=min(size, len(np.unique(y)) - 1, Z.shape[1])).fit(Z, y)
    return lambda points: np.asarray(learnt.transform(first(points)), dtype=np.float32)


def _classical(name: str) -> Callable[[Array, NDArray[np.int64], int], Map]:
    def fit(X: Array, y: NDArray[np.int64], _: int) -> Map:
        learnt = classical.build(name).fit(X, y)
        return lambda points: np.asarray(learnt.transform(points), dtype=np.float32)

    return fit


LEARNERS: dict[str, _Learner] = {
    "pca": _Learner("principal components", _pca, most_points=100_000, reduced=False),
    "lda": _Learner("Fisher's linear discriminants", _lda, reduced=False),
    "rca": _Learner("relevant component analysis", _classical("rca")),
    "lfda": _Learner("local Fisher discriminant analysis", _classical("lfda")),
    "lmnn": _Learner("large-margin nearest neighbours", _classical("lmnn"), most_points=1500),
    "linear_nca": _Learner("linear neighbourhood components analysis", _classical("nca"), most_points=600),
}


def baseline_names(recipe: Recipe) -> list[str]:
    """The baselines of a recipe's experiment.

    >>> baseline_names(Recipe())
    ['raw_pixels', 'untrained_network', 'pca', 'lda', 'rca', 'lfda', 'lmnn', 'linear_nca']
    """
    untrained = "untrained_network" if recipe.network.weights is None else "frozen_features"
    return ["raw_pixels", untrained, *LEARNERS]


def run_baselines(
    recipe: Recipe, folder: Path, observer: Observer | None = None, *, names: Sequence[str] | None = None
) -> list[Path]:
    """Fit and score the baselines of an experiment, those that are not there yet.

    Without pretrained weights the learners start from pixels, otherwise from the network's features below its
    head. None is selected or tuned, so the test classes are opened once for all that start alike.

    Args:
        recipe: Of any run of the experiment: its data, network, embedding size and protocol.
        folder: The baselines of an experiment go to a folder of its own in there.
        observer: Hears what is going on.
        names: Which of :func:`baseline_names`; all by default.

    Returns:
        The directory of each.
    """
    observer = observer or Observer()
    home = folder / re.sub(r"[^A-Za-z0-9_.+=]+", "-", str(experiment_of(recipe))).strip("-")
    wanted = list(names or baseline_names(recipe))
    missing = [name for name in wanted if not _is_there(home / name, recipe)]
    if missing:
        data_set = open_data(recipe, observer)
        for start in baseline_names(recipe)[:2]:
            learners = [name for name in missing if name in LEARNERS and start == _learners_start(recipe)]
            if start in missing or learners:
                _run_from(start, start in missing, learners, _Setting(recipe, data_set, home, observer))
    return [home / name for name in wanted]


@dataclass(frozen=True)
class _Setting:
    """Where and on what baselines are run."""

    recipe: Recipe
    data_set: DataSet
    home: Path
    observer: Observer


def _learners_start(recipe: Recipe) -> str:
    return "raw_pixels" if recipe.network.weights is None else "frozen_features"


def _is_there(folder: Path, recipe: Recipe) -> bool:
    """Whether a baseline has been run, and nothing that it depends on is different now."""
    file = folder / "result.json"
    if not file.exists():
        return False
    try:
        before = json.loads(file.read_text(encoding="utf-8"))["recipe"]
    except (ValueError, KeyError):
        return False
    now = recipe.to_dict()
    return all(before.get(key) == now.get(key) for key in _SETTINGS)


def _run_from(name: str, itself: bool, learners: Sequence[str], setting: _Setting) -> None:
    """Run the baseline that takes vectors as they are, if it is missing, and learners on these vectors."""
    network, recipe, what = _untrained(name, setting.recipe)
    setting.observer.stage(f"baselines from {what}")
    training_data, test = seal(setting.data_set)
    (opened,) = test.open([network], recipe)
    test_labels = opened.queries.labels
    if itself:
        about: dict[str, Any] = {"description": f"{what}, {opened.query_embeddings.shape[1]} numbers"}
        _keep(setting, name, about=about, scores=opened.scores, labels=test_labels, seconds=0.0)
    if not learners:
        return
    images = _learnt_from(recipe, as_trained_on(recipe, training_data, setting.observer))
    points, labels = embed_as(recipe, network, images).numpy(), images.labels.numpy()
    size = setting.recipe.network.embedding_dim
    reduce = _pca(points, labels, size)
    for learner in learners:
        setting.observer.stage(f"baseline {learner}")
        method = LEARNERS[learner]
        began = time.monotonic()
        chosen = _whole_classes(labels, method.most_points, setting.recipe.seed)
        before = reduce if method.reduced else _as_it_is
        learnt = method.fit(before(points[chosen]), labels[chosen], size)
        seconds = time.monotonic() - began
        scores = _scores(opened, lambda X, m=learnt, b=before: m(b(X)), recipe)  # type: ignore[misc]
        part = "" if len(chosen) == len(labels) else f", fitted on {len(chosen):,} of {len(labels):,} images"
        about = {
            "description": f"{method.description} of {what}{part}",
            "fitted_on": {"images": len(chosen), "classes": len(np.unique(labels[chosen]))},
        }
        _keep(setting, learner, about=about, scores=scores, labels=test_labels, seconds=seconds)


def _learnt_from(recipe: Recipe, data: TrainingData) -> SampleSet:
    """The training images that the runs of an experiment learn from."""
    return fixed_splits(recipe, data)[0] if recipe.protocol.name == "fixed_validation" else data.all_classes


def _untrained(name: str, recipe: Recipe) -> tuple[EmbeddingNetwork, Recipe, str]:
    """A network that gives the vectors of a start, the recipe that shows it images, and words for them."""
    network = build_network(recipe)
    if name == "untrained_network":
        return network, recipe, "the network before training"
    if name == "frozen_features":
        return _headless(network), recipe, "the pretrained network's features"
    wanted = network.preprocessing
    side = min(wanted.size, _PIXEL_SIDE)
    module = nn.Sequential(nn.AdaptiveAvgPool2d(side), nn.Flatten())
    pixels = EmbeddingNetwork(Backbone(module, wanted.channels * side * side, wanted), embedding_dim=1)
    plain = recipe.network.model_copy(update={"cached_trunk": None})
    what = "pixels" if side == wanted.size else f"pixels, averaged to {side} × {side}"
    return _headless(pixels), recipe.model_copy(update={"network": plain}), what


def _headless(network: EmbeddingNetwork) -> EmbeddingNetwork:
    network.head = nn.Identity()  # type: ignore[assignment]
    network.embedding_dim = network.num_features
    return network


def _whole_classes(labels: NDArray[np.int64], most: int, seed: int) -> NDArray[np.int64]:
    """Rows of classes drawn at random, two at least, until the next one would be too much."""
    order = torch.randperm(int(labels.max()) + 1, generator=torch.Generator().manual_seed(seed)).numpy()
    upto = np.bincount(labels)[order].cumsum()
    classes = order[: max(2, int((upto <= most).sum()))]
    return np.flatnonzero(np.isin(labels, classes))


def _as_it_is(points: Array) -> Array:
    return points


def _scores(opened: Opened, mapping: Map, recipe: Recipe) -> RetrievalScores:
    """The scores of mapped test vectors, exactly as those of a run."""

    def mapped(vectors: Tensor | None) -> Tensor | None:
        return None if vectors is None else torch.from_numpy(mapping(vectors.numpy()))

    queries = mapped(opened.query_embeddings)
    assert queries is not None
    return scored(recipe, opened.queries, queries, opened.gallery, mapped(opened.gallery_embeddings)).scores


def _keep(
    setting: _Setting,
    name: str,
    *,
    about: dict[str, Any],
    scores: RetrievalScores,
    labels: Tensor,
    seconds: float,
) -> None:
    """Write a baseline's directory, the result last: what has a result is complete."""
    run = Run(setting.home / name, setting.recipe)
    run.write_queries(scores, labels)
    run.write_cost({"training_seconds": round(seconds, 3)})
    run.write_result(
        {
            "baseline": {"name": name, **about},
            "recipe": setting.recipe.to_dict(),
            "test": scores.to_dict(),
            "validation": None,
        }
    )
