"""A task from beginning to end: training, selection, and one look at the test classes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

import psutil
import torch
from torch import Tensor

from nearkin.data import Preprocessing
from nearkin.evaluation import RetrievalScores, mean_intervals
from nearkin.networks import Embedder
from nearkin.observer import Observer
from nearkin.protocols.audit import audit
from nearkin.protocols.modalities import RIDGE, are_two, directions, has_ridge, ridge_start
from nearkin.protocols.sealed import by_size, concatenated, prepared, seal
from nearkin.protocols.verification import gain_on_pairs, verified
from nearkin.training import NetworkResult, Result, Run, Task, TestEmbeddings
from nearkin.training.memory import warn_if_too_large
from nearkin.training.result import SplitSummary, Start


def execute(task: Task, run: Run, observer: Observer | None = None) -> Run:
    """Carry out a task under its protocol, or go on where it stopped; a finished run is only read.

    Returns:
        The run, whose ``result`` is there now. A start that fails leaves no directory behind.

    Raises:
        RunError: Another process is training in the directory.
    """
    observer = observer or Observer()
    if run.finished:
        return run
    missing = [place for place in (run.path, *run.path.parents) if not place.exists()]
    try:
        with run.locked():
            _execute(task, run, observer)
    except BaseException:
        if run.path in missing:
            run.remove_failed_start()
        with suppress(OSError):  # a folder that others have begun to use is not empty
            for folder in missing[1:]:
                folder.rmdir()
        raise
    return run


def _execute(task: Task, run: Run, observer: Observer) -> None:
    run.remove_leftovers()
    data, test = seal(task.data)
    task.protocol.split(data, task.seed)  # what cannot be split is said before anything takes time
    warn_if_too_large(task, observer)
    data = prepared(task.embedder, data, observer)
    recall_at = task.settings.recall_at
    score_test = test.unsealed_scores(recall_at) if task.protocol.test_chooses_epoch else None
    # What trains and selects is given nothing that leads to the test split.
    settings = replace(task.settings, keep_epochs=task.audit)
    trained = task.protocol.train(
        replace(task, data=data, settings=settings), run, data, observer, score_test
    )
    if not run.writes:  # the first of several processes does the rest
        return
    observer.stage("scoring the test classes")
    begun = ridge_start(replace(task, data=data), observer) if has_ridge(task) else start_of(task)
    start, opened = test.open_with_start(begun, [_embedder(one) for one in trained], recall_at, observer)
    if task.audit:
        audit(task, run, trained, test, observer)
    _write(task, run, trained, opened, start)


def start_of(task: Task) -> Embedder:
    """What a training starts from: the features of a pretrained network, or the untrained one."""
    if not task.pretrained:
        return task.embedder
    return replace(task.embedder, network=task.embedder.network.headless())


def _compared(task: Task, start: TestEmbeddings | None, opened: Sequence[TestEmbeddings]) -> Start | None:
    """The start's scores, and what training added to them, over classes."""
    if start is None:
        return None
    name = "frozen features" if task.pretrained else "untrained network"
    name = RIDGE if has_ridge(task) else name
    scores = replace(start.scores, per_query=None)
    if start.queries.pairs is not None:
        return Start(name, scores, gain_on_pairs(start, opened, task.seed), verified(start, None))
    k = task.settings.recall_at[0]
    before, *after = (_values(one.scores, k) for one in (start, *opened))
    rows = start.scores.per_query
    assert rows is not None
    classes = start.queries.labels[rows.indices]
    gain = None
    if len(classes.unique()) > 1:
        difference = torch.stack(after).mean(dim=0) - before
        gain = mean_intervals({"gain": difference}, classes, seed=task.seed)["gain"]
    assert task.data.test is not None
    return Start(name, scores, gain, directions=directions(start, task.data.test, task.settings.recall_at))


def _values(scores: RetrievalScores, k: int) -> Tensor:
    assert scores.per_query is not None
    return scores.per_query.scores([k])[f"recall_at_{k}"].double()


def _write(
    task: Task,
    run: Run,
    trained: Sequence[NetworkResult],
    opened: Sequence[TestEmbeddings],
    start: TestEmbeddings | None,
) -> None:
    """Write the result of every network, and that of the run last."""
    assert task.data.test is not None
    tested = SplitSummary.of(task.data.test)
    networks = [
        replace(
            one,
            test=replace(found.scores, per_query=None),
            test_by_size=by_size(task.settings.recall_at, found, task.settings.sizes),
            verification=verified(found, one.threshold),
            directions=directions(found, task.data.test, task.settings.recall_at),
            data=replace(one.data, test=tested, notes=task.data.notes),
        )
        for one, found in zip(trained, opened, strict=True)
    ]
    for one, found in zip(networks, opened, strict=True):
        home = run if one.run == "." else Run.existing(run.path / one.run)
        home.write_queries(found.scores, found.queries.labels)
        home.write_cost(_cost(home, _embedder(one)))
        own = _result(task, home, [replace(one, run=".")], _compared(task, start, [found]))
        home.write_result(own.with_opened(found))
    if len(networks) == 1 and networks[0].run == ".":
        return
    together = concatenated(task.settings.recall_at, opened)
    run.begin()
    run.write_cost(_total_cost([Run.existing(run.path / one.run) for one in networks]))
    result = _result(task, run, networks, _compared(task, start, opened))
    run.write_result(
        replace(result, concatenated=replace(together.scores, per_query=None)).with_opened(together)
    )


def _result(task: Task, run: Run, networks: Sequence[NetworkResult], start: Start | None) -> Result:
    """All that a run found out. Nothing here may differ between two runs of one recipe on one machine."""
    network = _embedder(networks[0]).network
    about: dict[str, Any] = {
        "parameters": sum(p.numel() for p in network.parameters()),
        "embedding_dim": network.embedding_dim // (2 if are_two(task.data.train) else 1),
        "preprocessing": None if network.preprocessing is None else _plain(network.preprocessing),
    }
    return Result.of(
        networks,
        recipe=run.terms,
        chosen=run.description.chosen,
        disclosure=task.disclosure,
        network=about,
        start=start,
    )


def _plain(preprocessing: Preprocessing) -> dict[str, Any]:
    """As JSON has it."""
    values = asdict(preprocessing)
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}


def _embedder(trained: NetworkResult) -> Embedder:
    assert trained.embedder is not None
    return trained.embedder


def _cost(run: Run, embedder: Embedder) -> dict[str, float | int]:
    """What the training took."""
    first = Run(run.selection_path, run.description)  # of two trainings, if there were two
    seconds = [row["seconds"] for row in [*first.metrics(), *run.metrics()] if "seconds" in row]
    device = next((p.device for p in embedder.network.parameters()), torch.device("cpu"))
    return {
        "training_seconds": round(sum(seconds), 3),
        "seconds_per_epoch": round(sum(seconds) / max(len(seconds), 1), 3),
        "peak_memory_bytes": _peak_memory(device),
    }


def _total_cost(runs: Sequence[Run]) -> dict[str, float | int]:
    """Folds train one after the other: times add up, memory does not."""
    costs = [run.cost() or {} for run in runs]
    seconds = {
        name: round(sum(cost[name] for cost in costs), 3)
        for name in ("training_seconds", "seconds_per_epoch")
    }
    return seconds | {"peak_memory_bytes": max(cost["peak_memory_bytes"] for cost in costs)}


def _peak_memory(device: torch.device) -> int:
    """Most bytes in use so far: on the device where it counts them, or else of the whole process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource  # noqa: PLC0415  (not on Windows)

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
