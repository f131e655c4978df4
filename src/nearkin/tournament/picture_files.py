"""The thesis's Figures 27 to 31 as picture files, of published results or of anybody's runs.

Losses stand in the order of their year, as the thesis prints them: if papers reflected progress, the bars
would rise from left to right.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from nearkin.pictures.bars import grouped_bars, in_groups
from nearkin.tournament.chronology import in_order_of_year
from nearkin.tournament.outcomes import Experiment
from nearkin.tournament.standings import Leaderboard, Place, Standings

# As printed: what each figure of the thesis shows.
_PRINTED = {
    ("recall", "cub200 resnet50 128"): "figure_27",
    ("sizes", "cub200 resnet50"): "figure_28",
    ("sizes", "cub200 bninception"): "figure_29",
    ("sizes", "cub200 googlenet"): "figure_30",
    ("networks", "cub200 512"): "figure_31",
}
_NETWORKS = ("googlenet", "bninception", "resnet50")  # from the shallowest


def draw_figures(
    standings: Standings, folder: str | os.PathLike[str], *, extension: str = "svg"
) -> list[Path]:
    """Draw what the standings have: Recall@k of each experiment, embedding sizes, networks.

    Of the thesis's own results those files are called after its figures, ``figure_27.svg`` and so on; the
    others ``recall-cub200-resnet50-64.svg``, ``sizes-…`` and ``networks-…``.

    Args:
        standings: Published results or runs.
        folder: Made if it is not there.
        extension: ``svg``, ``png`` or ``pdf``.

    Returns:
        The files.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    boards, metric = standings.leaderboards, standings.metric
    drawn = [
        *(_draw_recall(board, folder, extension) for board in boards),
        *(_draw_sizes(group, metric, folder, extension) for group in _groups(boards, _without_size)),
        *(_draw_networks(group, metric, folder, extension) for group in _groups(boards, _without_network)),
    ]
    return [path for path in drawn if path is not None]


def _groups(
    boards: Sequence[Leaderboard], key: Callable[[Experiment], tuple[str, ...]]
) -> list[list[Leaderboard]]:
    """Boards that agree in everything but size or network, in the order of their first."""
    found: dict[tuple[str, ...], list[Leaderboard]] = {}
    for board in boards:
        found.setdefault(key(board.experiment), []).append(board)
    return list(found.values())


def _without_size(experiment: Experiment) -> tuple[str, ...]:
    return experiment.dataset, experiment.network, experiment.protocol, experiment.detail


def _without_network(experiment: Experiment) -> tuple[str, ...]:
    return experiment.dataset, str(experiment.embedding_dim), experiment.protocol, experiment.detail


def _draw_recall(board: Leaderboard, folder: Path, extension: str) -> Path | None:
    """Recall@k of every loss in one experiment (Figure 27); the first k in full colour."""
    names = [
        name
        for name in board.places[0].scores
        if name.startswith("recall_at_") and all(name in place.scores for place in board.places)
    ]
    if len(names) < 2:
        return None
    experiment = board.experiment
    rows = [
        (place.contender, _recall(name), 100 * place.scores[name])
        for place in _chronological([board])
        for name in names
    ]
    words = [experiment.dataset, experiment.network, str(experiment.embedding_dim or "")]
    path = folder / f"{_name('recall', words, experiment)}.{extension}"
    title = f"Retrieval quality on {', '.join(filter(None, words))}"
    grouped_bars(in_groups(rows), path, title=title, unit="Recall@k, %", highlighted=_recall(names[0]))
    return path


def _draw_sizes(boards: Sequence[Leaderboard], metric: str, folder: Path, extension: str) -> Path | None:
    """The score of every loss over embedding sizes (Figures 28 to 30)."""
    boards = sorted(boards, key=lambda board: board.experiment.embedding_dim)
    if len({board.experiment.embedding_dim for board in boards}) < 2:
        return None
    experiment = boards[0].experiment
    words = [experiment.dataset, experiment.network]
    path = folder / f"{_name('sizes', words, experiment)}.{extension}"
    series = {id(board): str(board.experiment.embedding_dim) for board in boards}
    title = f"Embedding sizes on {', '.join(words)}"
    grouped_bars(_by_board(boards, series, metric), path, title=title, unit=f"{_recall(metric)}, %")
    return path


def _draw_networks(boards: Sequence[Leaderboard], metric: str, folder: Path, extension: str) -> Path | None:
    """The score of every loss with each network (Figure 31)."""
    if len({board.experiment.network for board in boards}) < 2:
        return None
    boards = sorted(boards, key=lambda board: _network_order(board.experiment.network))
    experiment = boards[0].experiment
    words = [experiment.dataset, str(experiment.embedding_dim)]
    path = folder / f"{_name('networks', words, experiment)}.{extension}"
    series = {id(board): board.experiment.network for board in boards}
    title = f"Networks on {experiment.dataset}, embedding size {experiment.embedding_dim}"
    grouped_bars(_by_board(boards, series, metric), path, title=title, unit=f"{_recall(metric)}, %")
    return path


def _by_board(
    boards: Sequence[Leaderboard], series: dict[int, str], metric: str
) -> dict[str, dict[str, float]]:
    """Losses by year, each with its score on every board."""
    rows = []
    for name in in_order_of_year(_contenders(boards)):
        for board in boards:
            rows += [
                (name, series[id(board)], 100 * place.scores[metric])
                for place in board.places
                if place.contender == name
            ]
    return in_groups(rows)


def _contenders(boards: Iterable[Leaderboard]) -> list[str]:
    return list(dict.fromkeys(place.contender for board in boards for place in board.places))


def _chronological(boards: Sequence[Leaderboard]) -> list[Place]:
    places = {place.contender: place for board in boards for place in board.places}
    return [places[name] for name in in_order_of_year(places)]


def _network_order(name: str) -> tuple[int, str]:
    plain = name.removeprefix("timm:")
    return (_NETWORKS.index(plain) if plain in _NETWORKS else len(_NETWORKS)), name


def _name(kind: str, words: Sequence[str], experiment: Experiment) -> str:
    """The thesis's number of a figure, or what it shows."""
    if experiment.protocol == "standard_best_on_test" and (printed := _PRINTED.get((kind, " ".join(words)))):
        return printed
    told = "-".join([kind, *words, experiment.detail])
    return re.sub(r"[^\w.+-]+", "-", told).strip("-")


def _recall(metric: str) -> str:
    return f"Recall@{metric.removeprefix('recall_at_')}" if metric.startswith("recall_at_") else metric
