"""What a network must beat: samples as they are, features nobody trained, classical learners on them.

Baselines are fitted on the training classes of an experiment, scored on its test classes by the same function
as the runs, and kept beside them: each is a directory with a ``result.json`` that
:func:`~nearkin.tournament.outcomes.read_outcomes` finds. What a learner makes of a network's features
is a model like that of a run: :func:`nearkin.load` reads its directory.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor, nn

from nearkin import classical
from nearkin.atomic import write_json
from nearkin.data import DataSet, SampleSet, TwoModalities
from nearkin.model import describe
from nearkin.networks import Embedder, WrappedNetwork
from nearkin.observer import Observer
from nearkin.protocols import prepared, scored, seal
from nearkin.protocols.verification import verified
from nearkin.recipe.starting_point import StartingPoint
from nearkin.tournament.outcomes import experiment_of
from nearkin.tournament.terms import SeenData, Terms
from nearkin.training import Description, Result, Run, TestEmbeddings
from nearkin.training.result import Baseline

Array = NDArray[np.float32]
Map = Callable[[Array], Array]

_PIXEL_SIDE = 32  # images are averaged down to this, so that their pixels fit in memory
_LIST = "baselines.json"
_IMAGES = 4  # dimensions of a batch of images


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
    spare = len(X) - len(np.unique(y))  # with more, the scatter within classes has no inverse
    first = _pca(X, y, max(min(2 * size, spare), 1))
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


@dataclass(frozen=True)
class _Start:
    """What baselines start from: vectors that nothing was learnt for.

    Attributes:
        name: The baseline that takes them as they are.
        what: The same in words.
        embedder: Makes them.
        are_features: Whether they are the features of a network, whose head a learner can be.
    """

    name: str
    what: str
    embedder: Embedder
    are_features: bool = False


@dataclass(frozen=True)
class _Setting:
    """Where and on what baselines are run."""

    experiment: StartingPoint
    data_set: DataSet
    home: Path
    observer: Observer


def run_baselines(
    experiment: StartingPoint,
    folder: Path,
    observer: Observer | None = None,
    *,
    names: Sequence[str] | None = None,
    test_fingerprint: str = "",
) -> list[Path]:
    """Fit and score the baselines of an experiment, those that are not there yet.

    The samples as they are, where they are images or vectors; the network before training; and classical
    learners. With a network of ours that starts from random weights the learners start from the samples,
    otherwise from the network's features below its head. None is selected or tuned, so the test classes are
    opened once for all that start alike.

    Args:
        experiment: Its data, network, embedding size and protocol.
        folder: The baselines of an experiment go to a folder of its own in there.
        observer: Hears what is going on.
        names: Which ones; all that the kind of samples allows by default.
        test_fingerprint: That of the test split that the runs were tested on, where it is known.

    Returns:
        The directory of each.

    Raises:
        ValueError: The data cannot be opened, or is not what the runs were tested on.
    """
    observer = observer or Observer()
    home = folder / _folder_name(experiment.terms, test_fingerprint)
    wanted = list(names or _listed(home))
    missing = [name for name in wanted if not _is_there(home / name, experiment.terms)]
    if wanted and not missing:
        return [home / name for name in wanted]
    data_set = experiment.data(observer)
    if test_fingerprint and data_set.require_test().fingerprint() != test_fingerprint:
        raise ValueError("the test samples are not those that the runs were tested on: they have changed")
    if isinstance(data_set.train.samples, TwoModalities):
        raise ValueError("of two modalities, ridge regression between frozen features stands in every result")
    setting = _Setting(experiment, data_set, home, observer)
    starts = _starts(setting)
    if names is None:
        wanted = [*(start.name for start in starts), *_learners_for(data_set)]
        write_json(home / _LIST, {"names": wanted})
    missing = [name for name in wanted if not _is_there(home / name, experiment.terms)]
    for start in starts:
        for_learners = start is _learners_start(starts, experiment)
        learners = [name for name in missing if name in LEARNERS and for_learners]
        if start.name in missing or learners:
            _run_from(start, start.name in missing, learners, setting)
    return [home / name for name in wanted]


def _learners_for(data_set: DataSet) -> list[str]:
    """The learners that the labels allow: where only pairs are known, those that need no classes."""
    known = data_set.train.pairs
    return list(LEARNERS) if known is None or known.are_classes else ["pca"]


def _folder_name(terms: dict[str, Any], test_fingerprint: str) -> str:
    """Readable, and another one for every other experiment or data."""
    experiment = experiment_of(terms)
    place = test_fingerprint or SeenData.of(terms, None).root
    digest = hashlib.sha256(f"{Terms(terms).key('experiment')} {place}".encode()).hexdigest()[:6]
    return re.sub(r"[^A-Za-z0-9_.+=]+", "-", f"{experiment} {digest}").strip("-")


def _listed(home: Path) -> list[str]:
    """The baselines that an earlier call found to be those of the experiment."""
    try:
        names: list[str] = json.loads((home / _LIST).read_text(encoding="utf-8"))["names"]
    except (OSError, ValueError, KeyError):
        return []
    return names


def _is_there(folder: Path, now: dict[str, Any]) -> bool:
    """Whether a baseline has been run, and nothing that it depends on is different now."""
    try:
        before = Result.from_dict(json.loads((folder / "result.json").read_text(encoding="utf-8"))).recipe
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return before.get("seed") == now.get("seed") and Terms(before).key("experiment") == Terms(now).key(
        "experiment"
    )


def _starts(setting: _Setting) -> list[_Start]:
    """What there is to start from: the samples, where they are numbers, and the network before training."""
    experiment = setting.experiment
    embedder = experiment.embedder(setting.data_set, setting.observer)
    starts = [_raw(embedder, setting.data_set.train)]
    if experiment.has_weights or experiment.has_own_module:
        headless = replace(embedder, network=embedder.network.headless())
        what = (
            "the pretrained network's features" if experiment.has_weights else "the network as it was given"
        )
        starts.append(_Start("frozen_features", what, headless, are_features=True))
    else:
        starts.append(_Start("untrained_network", "the network before training", embedder))
    return [start for start in starts if start is not None]


def _learners_start(starts: Sequence[_Start], experiment: StartingPoint) -> _Start:
    pretrained = experiment.has_weights or experiment.has_own_module
    return starts[-1] if pretrained else starts[0]


def _raw(embedder: Embedder, samples: SampleSet) -> _Start | None:
    """The numbers that samples consist of; ``None`` of texts and other things that are not numbers."""
    example = embedder.evaluation_transform(samples.samples, [0], [0])
    if not isinstance(example, Tensor) or not example.is_floating_point():
        return None
    if example.ndim == 2:
        return _Start("raw_vectors", "vectors", _plain(embedder, nn.Identity(), example.shape[1]))
    if example.ndim != _IMAGES:
        return None
    channels, side = example.shape[1], min(*example.shape[2:], _PIXEL_SIDE)
    module = nn.Sequential(nn.AdaptiveAvgPool2d(side), nn.Flatten())
    whole = tuple(example.shape[2:]) == (side, side)
    what = "pixels" if whole else f"pixels, averaged to {side} × {side}"
    return _Start("raw_pixels", what, _plain(embedder, module, channels * side * side))


def _plain(embedder: Embedder, module: nn.Module, size: int) -> Embedder:
    network = WrappedNetwork(module, size, preprocessing=embedder.network.preprocessing)
    return replace(embedder, network=network, trunk=None)


def _run_from(start: _Start, itself: bool, learners: Sequence[str], setting: _Setting) -> None:
    """Run the baseline that takes vectors as they are, if it is missing, and learners on these vectors."""
    observer, experiment = setting.observer, setting.experiment
    observer.stage(f"baselines from {start.what}")
    data, test = seal(setting.data_set)
    recall_at = experiment.recall_at
    (opened,) = test.open([start.embedder], recall_at, observer)
    if itself:
        about = f"{start.what}, {opened.query_embeddings.shape[1]} numbers"
        _keep(setting, Baseline(start.name, about), opened, 0.0)
    if not learners:
        return
    samples = experiment.protocol.taught_by(prepared(start.embedder, data, observer), experiment.seed)
    observer.stage(f"seeing {len(samples):,} training samples as {start.what}")
    points = start.embedder.embed(samples, progress=observer.progress).numpy()
    labels = samples.labels.numpy()
    size = experiment.embedding_dim or points.shape[1]
    reduce = _pca(points, labels, size)
    for learner in learners:
        observer.stage(f"baseline {learner}")
        method = LEARNERS[learner]
        began = time.monotonic()
        chosen = _whole_classes(labels, method.most_points, experiment.seed)
        before = reduce if method.reduced else _as_it_is
        learnt = method.fit(before(points[chosen]), labels[chosen], size)
        seconds = time.monotonic() - began
        part = "" if len(chosen) == len(labels) else f", fitted on {len(chosen):,} of {len(labels):,} samples"
        baseline = Baseline(
            learner,
            f"{method.description} of {start.what}{part}",
            {"samples": len(chosen), "classes": len(np.unique(labels[chosen]))},
        )
        mapping = _after(before, learnt)
        model = with_head(start.embedder, mapping) if start.are_features else None
        _keep(setting, baseline, _mapped(opened, mapping, recall_at), seconds, model)


def _whole_classes(labels: NDArray[np.int64], most: int, seed: int) -> NDArray[np.int64]:
    """Rows of classes drawn at random, two at least, until the next one would be too much."""
    order = torch.randperm(int(labels.max()) + 1, generator=torch.Generator().manual_seed(seed)).numpy()
    upto = np.bincount(labels)[order].cumsum()
    classes = order[: max(2, int((upto <= most).sum()))]
    return np.flatnonzero(np.isin(labels, classes))


def _as_it_is(points: Array) -> Array:
    return points


def _after(first: Map, then: Map) -> Map:
    return lambda points: then(first(points))


def with_head(embedder: Embedder, mapping: Map) -> Embedder:
    """A network whose head is an affine map of its features, such as a classical learner finds.

    Args:
        embedder: Gives features.
        mapping: From features ``(N, F)`` to embeddings ``(N, D)``, affine.
    """
    features = embedder.network.num_features
    shift, *columns = mapping(np.vstack([np.zeros((1, features)), np.eye(features)]).astype(np.float32))
    network = embedder.network.headless()
    network.head = nn.Linear(features, len(shift))
    network.embedding_dim = len(shift)
    with torch.no_grad():
        network.head.bias.copy_(torch.from_numpy(shift))
        network.head.weight.copy_(torch.from_numpy(np.stack(columns) - shift).T)
    if network.spec is not None:
        network.spec = {**network.spec, "embedding_dim": len(shift)}
    return replace(embedder, network=network)


def _mapped(opened: TestEmbeddings, mapping: Map, recall_at: Sequence[int]) -> TestEmbeddings:
    """Mapped test vectors with their scores, exactly as those of a run."""

    def mapped(vectors: Tensor) -> Tensor:
        return torch.from_numpy(mapping(vectors.numpy()))

    found = opened.gallery_embeddings
    gallery = None if found is None else mapped(found)
    return scored(recall_at, opened.queries, mapped(opened.query_embeddings), opened.gallery, gallery)


def _keep(
    setting: _Setting,
    baseline: Baseline,
    opened: TestEmbeddings,
    seconds: float,
    model: Embedder | None = None,
) -> None:
    """Write a baseline's directory, the result last: what has a result is complete."""
    terms = setting.experiment.terms
    pairs = verified(opened, None)
    run = Run(setting.home / baseline.name, Description(terms=terms))
    run.write_queries(opened.scores, opened.queries.labels)
    run.write_cost({"training_seconds": round(seconds, 3)})
    if model is not None:
        run.write_network(model.network.state_dict(), describe(model))
    run.write_result(
        Result(
            recipe=terms,
            networks=(),
            test=replace(opened.scores, per_query=None),
            network={"embedding_dim": setting.experiment.embedding_dim or 0},
            baseline=replace(
                baseline,
                test_fingerprint=setting.data_set.require_test().fingerprint(),
                roc_auc=None if pairs is None else pairs.verification.roc_auc,
            ),
        )
    )
