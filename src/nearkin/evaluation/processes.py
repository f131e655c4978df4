"""Retrieval scores by several processes, equal to those of one.

Where every row is a query and searches all others, each pair of rows is compared once: processes share the
tiles of half the similarity matrix, and what they counted is added up. Otherwise each ranks its share of the
queries against the whole gallery.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from nearkin.evaluation.inputs import Metric
from nearkin.evaluation.retrieval import (
    CROWDED,
    PerQuery,
    RetrievalScores,
    _checked_search,
    _chosen_rows,
    _class_sizes,
    _per_query,
    retrieval_scores,
    scores_of_queries,
)
from nearkin.evaluation.tiles import (
    Counts,
    Positives,
    Thresholds,
    count_negatives,
    ranking_of,
    sorted_by_class,
    thresholds_of,
)
from nearkin.workers import available_cores, start_worker, stop_worker

Columns = dict[str, Tensor]
"""The columns of :class:`~nearkin.evaluation.retrieval.PerQuery`."""

_COLUMNS = ("indices", "positives", "first_rank", "r_precision", "average_precision_at_r")
PAIRS_PER_ROW = 8
"""With more positive pairs than so many for each row, each process has those of its own queries only."""


def retrieval_scores_by_processes(
    embeddings: Tensor,
    labels: Tensor,
    *,
    processes: int | None = None,
    recall_at: Sequence[int] = (1, 2, 4, 8),
    queries: Tensor | None = None,
    gallery: Tensor | None = None,
    gallery_labels: Tensor | None = None,
    metric: Metric = "cosine",
    per_query: bool = False,
) -> RetrievalScores:
    """:func:`~nearkin.evaluation.retrieval_scores` with the queries spread over processes: equal scores.

    Under ``torchrun``, where ``torch.distributed`` is initialised, every process calls this with the same
    arguments, ranks its share, and gets the scores of all. Otherwise ``processes`` are started on this
    machine; they read embeddings and labels from files that are mapped into memory, and so share them.

    Where every row is a query, searches all others and has few positives (eight, on average), processes of
    this machine compare every pair of rows once. Otherwise each ranks its share of the queries; those of a
    class stay together, since one process ranks them in one pass.

    **Memory** of each process is that of :func:`~nearkin.evaluation.retrieval_scores`: at most four copies of
    the embeddings, 200 bytes a row and 256 MiB, and where pairs are compared once 100 bytes more for each
    positive pair. A million rows of 128 numbers are 0.5 GiB a copy, and so at most 3.3 GiB a process.

    Args:
        embeddings: ``(N, D)``, on the CPU where processes are started.
        labels: As there.
        processes: How many to start; by default one per core. Under ``torchrun`` leave it out.
        recall_at: As there, and so are all others.
        queries: Rows that are queries.
        gallery: Searched instead of ``embeddings``.
        gallery_labels: Of the gallery.
        metric: ``"cosine"`` or ``"euclidean"``.
        per_query: Keep the values of every query.

    Raises:
        ValueError: As there, or ``processes`` beside ``torchrun``'s.
        RuntimeError: A process was lost; the message says how it ended.
    """
    chosen = _chosen_rows(queries, len(embeddings), torch.device("cpu"))
    given = {
        "embeddings": embeddings,
        "labels": labels,
        "gallery": gallery,
        "gallery_labels": gallery_labels,
    }
    if dist.is_available() and dist.is_initialized():
        if processes is not None:
            raise ValueError(f"processes={processes}: torchrun has started the processes, leave it out")
        share = _shares(chosen, labels, dist.get_world_size())[dist.get_rank()]
        parts: list[Columns | None] = [None] * dist.get_world_size()
        dist.all_gather_object(parts, ranked(given, share, metric))
    else:
        count = available_cores() if processes is None else processes
        if count < 1:
            raise ValueError(f"processes={count} must be at least 1")
        if count > 1 and queries is None and gallery is None:
            found = _comparing_once(given, chosen, count, metric)
            if found is not None:
                return scores_of_queries(found, len(chosen), recall_at, per_query=per_query)
        parts = _started(given, _shares(chosen, labels, count), metric)
    values = _together([part for part in parts if part is not None], chosen)
    return scores_of_queries(values, len(chosen), recall_at, per_query=per_query)


def _shares(chosen: Tensor, labels: Tensor, count: int) -> list[Tensor]:
    """Rows for each process, of whole classes as far as that goes, in equal numbers."""
    own = labels.cpu()[chosen]
    order = own.argsort(stable=True) if own.ndim == 1 else torch.arange(len(chosen))
    return [chosen[part].sort().values for part in order.tensor_split(count)]


def ranked(given: Mapping[str, Tensor | None], share: Tensor, metric: Metric) -> Columns | None:
    """The values of some queries; ``None`` where none of them has a positive."""
    embeddings, labels = given["embeddings"], given["labels"]
    assert embeddings is not None
    assert labels is not None
    if not len(share):
        return None
    try:
        found = retrieval_scores(
            embeddings,
            labels,
            queries=share.to(embeddings.device),
            gallery=given.get("gallery"),
            gallery_labels=given.get("gallery_labels"),
            metric=metric,
            per_query=True,
        )
    except ValueError as error:
        if "has a positive" not in str(error):
            raise
        return None
    assert found.per_query is not None
    return {name: getattr(found.per_query, name) for name in _COLUMNS}


def _together(parts: Sequence[Columns], chosen: Tensor) -> PerQuery:
    """The values of all shares, in the order of the queries."""
    if not parts:
        raise ValueError(f"none of the {len(chosen)} queries has a positive in the gallery: nothing to score")
    joined = {name: torch.cat([part[name] for part in parts]) for name in _COLUMNS}
    rows, order = joined["indices"].sort()
    place = torch.searchsorted(rows, chosen).clamp(max=len(rows) - 1)
    place = place[rows[place] == chosen]
    return PerQuery(**{name: values[order][place] for name, values in joined.items()})


def _comparing_once(
    given: Mapping[str, Tensor | None], chosen: Tensor, count: int, metric: Metric
) -> PerQuery | None:
    """The values of all rows from half of the tiles; ``None`` where there are too many positive pairs."""
    embeddings, labels = given["embeddings"], given["labels"]
    assert embeddings is not None
    assert labels is not None
    if labels.ndim != 1:
        return None
    embeddings, labels = embeddings.detach().cpu(), labels.cpu()
    _, search = _checked_search(
        embeddings, labels, queries=None, gallery=None, gallery_labels=None, metric=metric
    )
    sizes = _class_sizes(search.query_labels, search.gallery_labels)
    if sizes.max() > CROWDED * len(labels) or sizes.sum() > PAIRS_PER_ROW * len(labels):
        return None
    with torch.autocast("cpu", enabled=False), torch.no_grad():
        data, order = sorted_by_class(search)
        del search
        thresholds = thresholds_of(data, only_first=False)
        del data  # the processes have their own
        positives, cut = thresholds
        assert cut is not None
        files = {
            "embeddings": embeddings,
            "labels": labels,
            "start": positives.start,
            "threshold": positives.threshold,
            "query": positives.query,
            "cut": cut,
        }
        counts = _added([part or {} for part in _in_processes(files, count, metric)])
        return _per_query(ranking_of(thresholds, counts, order), chosen)


def _added(parts: Sequence[Columns]) -> Counts:
    """The counts of all shares of the tiles; where one is missing the sum would be too low."""
    first_before, tally = (torch.stack([part[name] for part in parts]).sum(dim=0) for name in Counts._fields)
    return Counts(first_before, tally)


@torch.no_grad()
def counted(given: Mapping[str, Tensor], share: int, of: int, metric: Metric) -> Columns:
    """What one process counts of the negatives."""
    _, search = _checked_search(
        given["embeddings"], given["labels"], queries=None, gallery=None, gallery_labels=None, metric=metric
    )
    data, _ = sorted_by_class(search)
    del search
    positives = Positives(given["start"], given["threshold"], given["query"])
    thresholds = Thresholds(positives, given["cut"])
    return count_negatives(data, thresholds, share=share, of=of)._asdict()


def _started(
    given: Mapping[str, Tensor | None], shares: Sequence[Tensor], metric: str
) -> list[Columns | None]:
    """What processes of this machine find, one per share of the queries."""
    files = {key: value for key, value in given.items() if value is not None}
    files |= {f"share-{number}": share for number, share in enumerate(shares)}
    return _in_processes(files, len(shares), metric)


def _in_processes(files: Mapping[str, Tensor], count: int, metric: str) -> list[Columns | None]:
    """What processes of this machine find, which map the same files into memory."""
    with tempfile.TemporaryDirectory(prefix="nearkin-scores-") as name:
        folder = Path(name)
        for key, value in files.items():
            np.save(folder / f"{key}.npy", _as_array(value.detach().cpu()))
        workers = [_start(folder, number, count, metric) for number in range(count)]
        try:
            ends = [worker.wait() for worker in workers]
        finally:
            for worker in workers:
                stop_worker(worker)
        return [_result(folder, number, code) for number, code in enumerate(ends)]


def _as_array(values: Tensor) -> NDArray[Any]:
    """NumPy has not every kind of half precision, all of which is computed in float32."""
    half = values.is_floating_point() and values.dtype != torch.float64
    return (values.float() if half else values).numpy()


def _start(folder: Path, number: int, count: int, metric: str) -> subprocess.Popen[bytes]:
    threads = max(1, available_cores() // count)
    return start_worker("nearkin.evaluation.ranking_worker", folder, number, count, metric, threads=threads)


def _result(folder: Path, number: int, code: int) -> Columns | None:
    error, file = folder / f"error-{number}.txt", folder / f"found-{number}.npz"
    if error.exists():
        raise ValueError(error.read_text(encoding="utf-8"))
    if code or not file.exists():
        raise RuntimeError(
            f"a process that ranked a share of the queries was lost: it ended with code {code}"
        )
    with np.load(file) as found:
        return {key: torch.from_numpy(found[key]) for key in found} or None
