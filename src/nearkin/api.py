"""The library in eight functions, which the commands call: train, load, evaluate, tune and others."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nearkin.allocation import keep_freed_memory
from nearkin.data.per_sample import as_transform
from nearkin.display import observer_for
from nearkin.evaluation.reranking import checked_rerankings
from nearkin.model import Model, is_model
from nearkin.observer import Observer
from nearkin.protocols import Examination, examine
from nearkin.recipe.carrying_out import carry_out, refuse_other_data
from nearkin.recipe.naming import default_output
from nearkin.recipe.objects import recipe_of
from nearkin.recipe.reopening import data_of, networks_of
from nearkin.training import Run

if TYPE_CHECKING:
    from nearkin.model.exporting import Export
    from nearkin.publishing import Published
    from nearkin.tournament.standings import Standings
    from nearkin.tuning.search import Search

Path_ = str | os.PathLike[str]

_TRIALS = 30


def train(
    data: Any = None,
    *,
    network: Any = None,
    loss: Any = None,
    output: Path_ | None = None,
    final: bool = False,
    progress: bool | Observer = True,
    **settings: Any,
) -> Run:
    """Train an embedding, or go on with a run that was stopped; a finished run is only read.

    Args:
        data: Whatever :func:`nearkin.data.as_data_set` takes: samples with labels, a torch ``Dataset``, the
            path of a folder or a table; or a registered name, a recipe, the path of a recipe. The embedded
            glyphs by default.
        network: A ``torch.nn.Module`` (a batch to vectors), a name such as ``timm:resnet50``, or a table.
        loss: A module or function ``(embeddings, labels) → scalar``, a name, or a table with keywords.
        output: The run's directory; by default one under ``runs/``.
        final: Whether to train a network to use afterwards, on all classes, those of validation and test
            included, for as many epochs as validation chose: the model in the run's folder ``final``.
        progress: Whether to show progress in the terminal or notebook, or who is told about it.
        **settings: Every key of a recipe: ``epochs=20``, ``optimizer={"lr": 1e-4}``,
            ``protocol="cross_validation"``; see :func:`nearkin.recipe.objects.recipe_of`.

    Returns:
        The run; ``run.result`` is what it found out, ``nearkin.load(run.path)`` the model.

    >>> import tempfile
    >>> run = train(network="lenet", epochs=1, batch_size=60, output=tempfile.mkdtemp(), progress=False,
    ...             data={"name": "glyphs", "images_per_class": 2})
    >>> 0 <= run.result.test.recall_at[1] <= 1
    True
    """
    keep_freed_memory()
    recipe = recipe_of(data, network=network, loss=loss, **settings)
    return carry_out(recipe, output=output, final=final, progress=progress)


def load(
    path: Path_,
    *,
    fold: int | None = None,
    network: Any = None,
    transform: Any = None,
    collate: Any = None,
) -> Model:
    """The model of a finished run, of a cross-validation run (its networks side by side), or of a folder.

    Neither the data nor the loss is needed, nor are the weights that training started from.

    Args:
        path: The directory of a run or fold, or one that :meth:`nearkin.Model.save` wrote.
        fold: Of a cross-validation only the network of this fold, counted from 0, with its own threshold;
            by default the embeddings of all stand side by side.
        network: The module, where it was given to ``train`` in Python and cannot be imported by name.
        transform: What samples go through, where it was given in Python.
        collate: What makes a batch of samples, where it was given to ``train``.

    Raises:
        ValueError: There is no model; the message says what is missing.
    """
    keep_freed_memory()
    folder = Path(path) if fold is None else _of_fold(Path(path), fold)
    given = {"network": network, "transform": _transform_of(transform, collate)}
    if is_model(folder) or list(folder.glob("network-*/model.json")):
        return Model.read(folder, **given)
    return Model(networks_of(Run.existing(folder), **given), {"run": str(folder)})


def export(
    model: Path_,
    output: Path_ | None = None,
    *,
    format: str = "onnx",  # noqa: A002  (what everybody calls it)
    int8: bool = False,
    preprocessing: Literal["inside", "beside"] | None = None,
    data: Any = None,
    fold: int | None = None,
    network: Any = None,
    transform: Any = None,
    collate: Any = None,
    samples: Any = None,
    calibration: Any = None,
    progress: bool | Observer = True,
    **options: Any,
) -> list[Export]:
    """Write the model of a run as a file for another runtime, unless its embeddings differ from the model's.

    It is compared on the run's validation classes, and int8 is calibrated on its training samples, where the
    data is at hand; the comparison says where it is not.

    Args:
        model: The directory of a run, or of a saved model.
        output: The file, or a folder for it; by default the model's name in the working directory.
        format: As in :meth:`nearkin.Model.export`.
        int8: As there.
        preprocessing: As there.
        data: The data set of the run, where it has moved or was given in Python: a path or an object.
        fold: As in :func:`load`.
        network: As in :func:`load`.
        transform: As in :func:`load`.
        collate: As in :func:`load`.
        samples: As in :meth:`nearkin.Model.export`; by default training samples, where no class was held out.
        calibration: As there; by default the training samples of the run.
        progress: Whether to show progress, or who is told about it.
        **options: ``tolerance``, ``recall_tolerance``, ``most`` and ``opset``, as there.
    """
    from nearkin.model.exporting import export as export_model  # noqa: PLC0415  (imports what exporters need)
    from nearkin.recipe.held_out import training_data_of  # noqa: PLC0415

    loaded = load(model, fold=fold, network=network, transform=transform, collate=collate)
    observer = observer_for(progress)
    try:
        known = training_data_of(Path(model), fold=fold, data=data, observer=observer)
        return export_model(
            loaded,
            output or _default_export(Path(model), format),
            format=format,
            int8=int8,
            preprocessing=preprocessing,
            validation=known.validation if samples is None else None,
            samples=known.learnt if samples is None and known.validation is None else samples,
            calibration=known.learnt if calibration is None else calibration,
            why_no_validation=known.why_no_validation or "other samples were given to compare on",
            observer=observer,
            **options,
        )
    finally:
        observer.end()


def _default_export(model: Path, format: str) -> Path:  # noqa: A002
    from nearkin.model.exporting import default_name  # noqa: PLC0415

    return Path(default_name(model.resolve().name, format))


def publish(
    model: Path_,
    folder: Path_,
    *,
    push: str | None = None,
    private: bool = False,
    fold: int | None = None,
    name: str | None = None,
    license: str = "unknown",  # noqa: A002  (what the Hub calls it)
    hub: Any = None,
) -> Published:
    """Write the model of a run as a repository of the Hugging Face Hub, with a card made from its result.

    ``nearkin.load`` reads the folder, timm the backbone. Nothing leaves the machine without ``push``, and
    what is written names no path of it.

    Args:
        model: The directory of a run, of its final network, or of a saved model.
        folder: A new one, or one that an earlier call wrote.
        push: A repository of the Hub to push to, such as ``me/birds``.
        private: Whether a new repository is private.
        fold: As in :func:`load`.
        name: What the card calls the model; by default the folder's name.
        license: As the Hub spells it, such as ``apache-2.0``.
        hub: A ``huggingface_hub.HfApi`` to push with; by default one with the token that is logged in.

    Returns:
        The folder, and the address if it was pushed.
    """
    from nearkin.publishing import Origin, Published  # noqa: PLC0415  (few need it)
    from nearkin.publishing import publish as write  # noqa: PLC0415
    from nearkin.publishing import push as push_folder  # noqa: PLC0415

    loaded, origin = load(model, fold=fold), Origin.of(Path(model), fold)
    path = write(loaded, folder, origin, name=name, license_=license, repository=push)
    address = None if push is None else push_folder(path, push, private=private, hub=hub)
    return Published(path, address)


def _of_fold(folder: Path, fold: int) -> Path:
    homes = [folder / f"{name}-{fold:02d}" for name in ("fold", "network")]
    for home in homes:
        if home.is_dir():
            return home
    raise ValueError(f"{folder} has no fold {fold}: neither {homes[0].name} nor {homes[1].name} is there")


def _transform_of(transform: Any, collate: Any) -> Any:
    return None if transform is None and collate is None else as_transform(transform, collate)


def evaluate(
    run: Path_ | Run,
    data: Any = None,
    *,
    network: Any = None,
    transform: Any = None,
    collate: Any = None,
    rerank: Sequence[str] = (),
    test_only: bool = False,
    progress: bool | Observer = True,
) -> Examination:
    """Look into a finished run: scores with intervals, clusters, confusions and doubtful labels.

    Doubtful labels are those of all classes: ``found.doubtful_labels`` has them with their neighbours, and
    ``doubtful_labels.csv`` in the run's directory lists them.

    Args:
        run: A finished run or its directory.
        data: The data set, where it has moved or was given in Python: a path or an object.
        network: The module, where it was given to ``train`` in Python.
        transform: What samples go through, where it was given in Python.
        collate: What makes a batch of samples, where it was given to ``train``.
        rerank: Re-rankings whose effect is measured: ``k_reciprocal``, ``query_expansion``, ``whitening``.
        test_only: Whether doubtful labels are looked for among the test classes alone: faster, where there is
            much to learn from.
        progress: Whether to show progress, or who is told about it.
    """
    keep_freed_memory()
    checked_rerankings(rerank)  # before anything takes time
    finished = run if isinstance(run, Run) else Run.existing(run)
    observer = observer_for(progress)
    try:
        data_set = data_of(finished, data, observer)
        embedders = networks_of(finished, network=network, transform=_transform_of(transform, collate))
        refuse_other_data(finished, data_set)
        return examine(finished, embedders, data_set, observer, rerank=rerank, test_only=test_only)
    finally:
        observer.end()


def tune(
    data: Any = None,
    *,
    network: Any = None,
    loss: Any = None,
    ranges: Mapping[str, Any] | Iterable[str] = (),
    trials: int | None = None,
    sampler: str = "tpe",
    pruner: str = "median",
    trial_epochs: int | None = None,
    keep: str = "all",
    jobs: int = 1,
    output: Path_ | None = None,
    search_only: bool = False,
    progress: bool | Observer = True,
    **settings: Any,
) -> Search:
    """Search hyperparameters on validation classes, train on all classes with the best, and test once.

    Args:
        data: As in :func:`train`.
        network: As in :func:`train`.
        loss: As in :func:`train`.
        ranges: More places to look: ``["optimizer.lr=1e-4:1e-2:log"]`` or ``{"loss.margin": "0:1:0.1"}``.
        trials: How many, in all; 30 by default, or every step of every range for ``coordinate``.
        sampler: ``tpe``, ``random``, ``grid``, ``coordinate`` (one hyperparameter after the other, as in the
            thesis) or ``halving`` (the better half is trained on).
        pruner: When a trial is given up: ``median``, ``hyperband`` or ``none``.
        trial_epochs: Train trials this far only, of the same schedule. Validation then chooses the epoch in
            one training to the end.
        keep: What is tested: the network of a training on ``all`` classes, that of the trial's classes whose
            epoch the ``validation`` classes choose (as in the thesis's Table 16), or ``both``.
        jobs: Trials at the same time, each in a process of its own.
        output: The search's directory; by default one under ``runs/``.
        search_only: Leave the test classes sealed.
        progress: Whether to show progress, or who is told about it.
        **settings: As in :func:`train`.

    Returns:
        The search: ``search.best()``, ``search.records()``, and ``search.best_run()``, finished unless
        ``search_only``.
    """
    keep_freed_memory()
    from nearkin.recipe.searching import searched  # noqa: PLC0415  (imports torch)
    from nearkin.tuning.plan import plan_search  # noqa: PLC0415  (imports Optuna)
    from nearkin.tuning.search import Search, refuse_unknown  # noqa: PLC0415

    recipe = recipe_of(data, network=network, loss=loss, **settings)
    places = (
        [f"{key}={where}" for key, where in ranges.items()] if isinstance(ranges, Mapping) else list(ranges)
    )
    refuse_unknown(keep)
    plan = plan_search(
        searched(recipe, places),
        sampler=sampler,
        pruner=pruner,
        trials=trials or (None if sampler == "coordinate" else _TRIALS),
        epochs=trial_epochs,
    )
    path = Path(output) if output else Path("runs") / f"tune-{default_output(recipe).name}"
    search = Search.open(path, plan)
    observer = observer_for(progress, search=search)
    search.run(trials or _TRIALS, jobs=jobs, observer=observer)
    if not search_only:
        search.finish_as(keep, observer)
    return search


def tournament(data: Any = None, **options: Any) -> Standings:
    """Let losses compete on equal terms, and rank them.

    Options are those of :func:`nearkin.tournament.playing.play`; all others are settings of the runs, as in
    :func:`train`.
    """
    keep_freed_memory()
    from nearkin import tournament as room  # noqa: PLC0415

    return room(data, **options)


def compare(runs: Iterable[Any], **options: Any) -> Standings:
    """The tournament's statistics on anybody's results; :func:`nearkin.tournament.compare` says how."""
    from nearkin.tournament.comparing import compare as compare_results  # noqa: PLC0415

    return compare_results(runs, **options)
