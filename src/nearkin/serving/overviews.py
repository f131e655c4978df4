"""What an index holds, at a glance: items, labels, clusters, the map."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from nearkin.serving import answers
from nearkin.serving.filters import bad_filter
from nearkin.serving.served import ServedIndex, Where

if TYPE_CHECKING:
    from nearkin.index import Index

_SHOWN_LABELS = 3
_SHOWN_ITEMS = 12


async def about(served: ServedIndex) -> answers.IndexAnswer:
    """An index in a few facts."""
    threshold = getattr(served.model, "threshold", None)
    return answers.IndexAnswer(
        name=served.name,
        items=await served.ask(len),
        model=repr(served.model),
        takes=served.takes,
        embedding_dim=served.model.embedding_dim,
        precision=served.index.precision,
        fingerprint=served.index.fingerprint,
        threshold=None if threshold is None else threshold_answer(threshold),
    )


def threshold_answer(threshold: Any) -> answers.ThresholdAnswer:
    """A model's threshold as it is answered."""
    return answers.ThresholdAnswer(
        similarity=threshold.similarity,
        wanted_false_accept_rate=threshold.wanted_false_accept_rate,
        false_accept_rate=threshold.false_accept_rate.value,
        false_reject_rate=threshold.false_reject_rate.value,
    )


async def items(served: ServedIndex, where: Where | None, offset: int, limit: int) -> answers.ItemsAnswer:
    """Some items, and whether there are more."""
    try:
        found = await served.ask(lambda index: index.items(where=where, offset=offset, limit=limit + 1))
    except ValueError as error:
        raise bad_filter(str(error)) from None
    shown = [answers.item_answer(item) for item in found[:limit]]
    return answers.ItemsAnswer(items=shown, offset=offset, more=len(found) > limit)


async def labels(served: ServedIndex) -> answers.LabelsAnswer:
    """The classes by name, with their sizes."""
    counts = await served.ask(lambda index: index.labels())
    return answers.LabelsAnswer(labels=_counted(sorted(counts.items())))


async def map_of(served: ServedIndex, most: int) -> answers.MapAnswer:
    """Every item as a point; of a large index, evenly chosen ones."""
    return await served.study("map", lambda index: _map(index, most))


def _map(index: Index, most: int) -> answers.MapAnswer:
    every = index.items()
    points = index.layout()
    if len(every) > most:
        step = len(every) / most
        chosen = [int(position * step) for position in range(most)]
        every, points = [every[position] for position in chosen], points[chosen]
    if not every:
        return answers.MapAnswer(ids=[], x=[], y=[], labels=[], names=[], total=0)
    low, high = points.min(dim=0).values, points.max(dim=0).values
    scaled = (points - low) / (high - low).clamp_min(1e-12)
    names = sorted({item.label for item in every if item.label is not None})
    numbers = {name: number for number, name in enumerate(names)}
    return answers.MapAnswer(
        ids=[item.id for item in every],
        x=[round(value, 4) for value in scaled[:, 0].tolist()],
        y=[round(value, 4) for value in scaled[:, 1].tolist()],
        labels=[-1 if item.label is None else numbers[item.label] for item in every],
        names=names,
        total=len(index),
    )


async def clusters(served: ServedIndex, limit: int) -> answers.ClustersAnswer:
    """Groups of items, the largest first."""
    found = await served.study("clusters", _clusters)
    return answers.ClustersAnswer(clusters=found[:limit])


def _counted(pairs: Iterable[tuple[str, int]]) -> list[answers.LabelAnswer]:
    return [answers.LabelAnswer(label=label, count=count) for label, count in pairs]


def _clusters(index: Index) -> list[answers.ClusterAnswer]:
    return [
        answers.ClusterAnswer(
            size=len(group),
            labels=_counted(list(group.labels.items())[:_SHOWN_LABELS]),
            items=[answers.item_answer(item) for item in group.items[:_SHOWN_ITEMS]],
        )
        for group in index.clusters()
    ]
