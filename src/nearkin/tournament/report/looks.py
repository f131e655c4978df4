"""A look at what networks find: galleries, maps and confusions, from the best run and the worst."""

from __future__ import annotations

import base64
import io
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from nearkin.data import DataSet
from nearkin.networks import Embedder
from nearkin.observer import Observer
from nearkin.pictures.galleries import Retrieved, retrieved
from nearkin.pictures.maps import embedding_map
from nearkin.pictures.samples import LabelledSamples, portrait, shortened, strip_pixels
from nearkin.protocols import chooses_on_test, examine, score_test
from nearkin.recipe.reopening import data_of, networks_of
from nearkin.tournament.outcomes import Outcome
from nearkin.tournament.report.wording import Links, experiment_name, percent, score_name
from nearkin.tournament.standings import Leaderboard, Place, Standings
from nearkin.training import Run, TestEmbeddings

_DATA_SETS = 3
_QUERIES, _NEIGHBOURS = 8, 7
_THUMBNAIL = 72  # pixels: sharp enough at the size it is shown, and 130 of them stay below half a megabyte
_LETTERS = 280
_MAP_SIDE, _MAP_THUMBNAIL = 1100, 26
_CONFUSIONS = 8


@dataclass(frozen=True)
class Thumbnail:
    """A sample inside the page.

    Attributes:
        uri: Its picture, or the strip of colours of a vector; empty where there is neither.
        name: The name of its class.
        right: Whether it is of the query's class; ``None`` for the query.
        tiny: Enlarge it with hard edges: it has fewer pixels than the screen shows.
        text: Its words or its name, where it is no image.
    """

    uri: str
    name: str
    right: bool | None = None
    tiny: bool = False
    text: str = ""


@dataclass(frozen=True)
class Gallery:
    """Queries with what one run finds nearest to them."""

    contender: str
    target: str
    score: str
    rows: Sequence[tuple[Thumbnail, Sequence[Thumbnail]]]
    map_uri: str

    @property
    def has_words(self) -> bool:
        """Whether there is anything to read, which takes more room than images."""
        return any(one.text for query, found in self.rows for one in (query, *found))


@dataclass(frozen=True)
class Confusion:
    """Two classes that one run takes for each other, with a sample of each."""

    taken: Thumbnail
    for_: Thumbnail
    count: int
    share: str


@dataclass(frozen=True)
class Look:
    """What the report shows of one data set; ``missing`` says why there is nothing to see.

    Of samples of which only pairs are known (``of_pairs``), there are no confusions of classes.
    """

    name: str
    galleries: Sequence[Gallery]
    confusions: Sequence[Confusion]
    missing: str = ""
    of_pairs: bool = False


def looks(standings: Standings, links: Links, observer: Observer) -> list[Look]:
    """A look at each of the first few data sets, in its experiment with the best score."""

    def worth(board: Leaderboard) -> tuple[bool, float]:
        honest = not chooses_on_test(board.experiment.protocol)
        return honest, _trained(board)[0].scores[standings.metric]

    best: dict[str, Leaderboard] = {}
    for board in filter(_trained, standings.leaderboards):
        other = best.setdefault(board.experiment.dataset, board)
        best[board.experiment.dataset] = max(other, board, key=worth)
    return [_look(board, standings.metric, links, observer) for board in list(best.values())[:_DATA_SETS]]


def _trained(board: Leaderboard) -> list[Place]:
    return [place for place in board.places if place.kind == "run"]


def _look(board: Leaderboard, metric: str, links: Links, observer: Observer) -> Look:
    name = experiment_name(board.experiment)
    places = _trained(board)
    chosen = places[:1] + places[1:][-1:]
    try:
        opened = []
        confusions: list[Confusion] = []
        for place in chosen:
            outcome = max(place.outcomes, key=lambda one: one.scores[metric])
            run = _run_with_network(outcome)
            networks, data = networks_of(run), data_of(run, observer=observer)
            observer.stage(f"looking at what {place.contender} finds on {board.experiment.dataset}")
            if place is chosen[0]:
                seen, evaluation = _examined(run, networks, data, observer)
                confusions = [] if _unknown(seen) else _confusions(seen.queries, evaluation)
            else:
                seen = score_test(networks[0], data, tuple(run.result.test.recall_at), observer)
            opened.append(_gallery(outcome, seen, metric, links))
    except (ValueError, OSError, RuntimeError) as error:
        return Look(name, [], [], " ".join(str(error).split()))
    return Look(name, opened, confusions, of_pairs=_unknown(seen))


def _unknown(opened: TestEmbeddings) -> bool:
    """Whether of some pairs of the test samples nobody knows if they are the same."""
    known = opened.queries.pairs
    return known is not None and not known.are_classes


def _run_with_network(outcome: Outcome) -> Run:
    """The run itself, or the first fold of a cross-validation."""
    assert outcome.path is not None
    assert outcome.result is not None
    return Run.existing(outcome.path / outcome.result.networks[0].run)


def _examined(
    run: Run, networks: Sequence[Embedder], data: DataSet, observer: Observer
) -> tuple[TestEmbeddings, dict[str, Any]]:
    """The test split as a run sees it, and its ``evaluation.json``, made if it is not there."""
    file = run.path / "evaluation.json"
    if file.exists():
        opened = score_test(networks[0], data, tuple(run.result.test.recall_at), observer)
    else:
        opened = examine(run, networks, data, observer).opened
    evaluation: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return opened, evaluation


def _gallery(outcome: Outcome, opened: TestEmbeddings, metric: str, links: Links) -> Gallery:
    rows = retrieved(
        opened.queries,
        opened.query_embeddings,
        gallery=opened.gallery,
        gallery_embeddings=opened.gallery_embeddings,
        queries=_QUERIES,
        neighbours=_NEIGHBOURS,
    )
    searched = opened.gallery if opened.gallery is not None else opened.queries
    return Gallery(
        contender=outcome.contender,
        target=links.run(outcome) or "",
        score=f"{score_name(metric)} {percent(outcome.scores[metric])} %",
        rows=[_gallery_row(opened.queries, searched, row, _right(opened, row)) for row in rows],
        map_uri=_map(opened),
    )


def _right(opened: TestEmbeddings, row: Retrieved) -> Sequence[bool | None]:
    """Whether each neighbour is right; ``None`` where only pairs are known, and this one is not."""
    known = opened.queries.pairs
    if known is None or not _unknown(opened):
        return row.right
    answers = known.among(torch.tensor([row.query, *row.neighbours]))[0, 1:].tolist()
    return [None if answer == 0 else answer > 0 for answer in answers]


def _gallery_row(
    queries: LabelledSamples, searched: LabelledSamples, row: Retrieved, right: Sequence[bool | None]
) -> tuple[Thumbnail, list[Thumbnail]]:
    found = zip(row.neighbours, right, strict=True)
    return thumbnail(queries, row.query), [thumbnail(searched, index, right) for index, right in found]


def thumbnail(samples: LabelledSamples, index: int, right: bool | None = None) -> Thumbnail:
    """A sample as the page shows it: an image, or words, above a strip of colours if it is a vector."""
    name = samples.class_names[int(samples.labels[index])]
    seen = portrait(samples, index)
    pixels = seen.pixels if seen.strip is None else strip_pixels(seen.strip)
    if pixels is None:
        return Thumbnail("", name, right, text=shortened(seen.text, _LETTERS))
    picture = Image.fromarray(pixels)
    tiny = max(picture.size) < _THUMBNAIL
    picture.thumbnail((_THUMBNAIL, _THUMBNAIL))
    return Thumbnail(_data_uri(picture, lossless=tiny), name, right, tiny, shortened(seen.text, _LETTERS))


def _data_uri(picture: Image.Image, *, lossless: bool = False) -> str:
    buffer = io.BytesIO()
    picture.save(buffer, "webp", lossless=lossless, quality=82, method=6)
    return f"data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


def _map(opened: TestEmbeddings) -> str:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "map.png"
        embedding_map(
            opened.queries,
            opened.query_embeddings,
            file,
            classes=30,
            side=_MAP_SIDE,
            thumbnail=_MAP_THUMBNAIL,
        )
        with Image.open(file) as picture:
            return _data_uri(picture.convert("RGB"))


def _confusions(samples: LabelledSamples, evaluation: dict[str, Any]) -> list[Confusion]:
    """The most frequent ones; a class named in the file but not among the samples is passed over."""
    first: dict[str, int] = {}
    for index, label in enumerate(samples.labels.tolist()):
        first.setdefault(samples.class_names[label], index)
    return [
        Confusion(
            thumbnail(samples, first[entry["label"]]),
            thumbnail(samples, first[entry["taken_for"]]),
            entry["images"],
            percent(entry["share"], 0),
        )
        for entry in evaluation.get("confusions", [])[:_CONFUSIONS]
        if entry["label"] in first and entry["taken_for"] in first
    ]
