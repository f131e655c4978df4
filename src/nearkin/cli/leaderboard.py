"""Standings in a terminal: leaderboards with their intervals, the ranking, and what the tests say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

from rich.table import Table
from rich.text import Text

from nearkin.display.console import console
from nearkin.tournament.standings import Leaderboard, OverallRanking, Place, Standings

_BAR_WIDTH = 24
_SHORT_BAR_WIDTH = 8
_WIDE = 100  # columns that a terminal needs for everything
_MOST_BOARDS = 4
_RANK_WIDTH = 3
_RANKING_WIDTH = 44
_MOST_SKIPPED = 5

_LEGEND = (
    "Intervals draw test classes, hits averaged over seeds. beats: losses that it is ahead of on the same "
    "queries, by an interval without 0 and a permutation test with Holm's correction."
)


def print_standings(standings: Standings, *, every_experiment: bool = False) -> None:
    """Print everything; the leaderboards of many experiments only on request, or if no loss is in all."""
    if len(standings.leaderboards) <= _MOST_BOARDS or every_experiment or not standings.ranking.rows:
        for board in standings.leaderboards:
            _print_leaderboard(board, standings.metric)
        if any(board.comparisons for board in standings.leaderboards):
            console.print(Text(_LEGEND, style="dim"))
    if len(standings.ranking.experiments) > 1 and standings.ranking.rows:
        _print_ranking(standings.ranking)
    _print_sentences("tests", standings.test_notes)
    _print_sentences("how sure", standings.doubt_notes)
    _print_sentences("notes", standings.notes)
    skipped = [f"{path}: {reason}" for path, reason in standings.skipped]
    if len(skipped) > _MOST_SKIPPED:
        skipped[_MOST_SKIPPED:] = [f"and {len(skipped) - _MOST_SKIPPED} more"]
    _print_sentences("left out", skipped)


def score_name(metric: str) -> str:
    """A score as people write it.

    >>> score_name("recall_at_1"), score_name("map_at_r")
    ('Recall@1', 'MAP@R')
    """
    if metric.startswith("recall_at_"):
        return f"Recall@{metric.removeprefix('recall_at_')}"
    return {"roc_auc": "ROC AUC", "map_at_r": "MAP@R", "r_precision": "R-precision"}.get(
        metric, metric.replace("_", " ")
    )


class _Column(NamedTuple):
    """A column of a leaderboard: its head, what it says about a place, and how its cells are put.

    Words that are too long for the terminal go on in the next line; numbers stay whole.
    """

    head: str
    cell: Callable[[Place], str | Text]
    justify: Literal["left", "right"] = "right"
    words: bool = False


def _print_leaderboard(board: Leaderboard, metric: str) -> None:
    columns = list(_columns(board, metric))
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column.head, justify=column.justify, no_wrap=not column.words, overflow="fold")
    for place in board.places:
        style = "dim" if place.kind == "baseline" else "bold cyan" if place.rank == 1 else ""
        table.add_row(*(column.cell(place) for column in columns), style=style)
    console.print()
    console.print(Text.assemble((str(board.experiment), "bold"), (_classes(board), "dim")))
    console.print(table)
    for note in board.notes:
        console.print(Text(note, style="dim"))


def _columns(board: Leaderboard, metric: str) -> Iterator[_Column]:
    """The columns for which there is something to show."""
    places = board.places
    wide = console.width >= _WIDE
    published = any(place.published for place in places)
    yield _Column("", _rank)
    yield _Column("", lambda place: place.contender, "left", words=True)
    yield _Column(score_name(metric), lambda place: _percent(place.scores[metric]))
    if any(place.spread for place in places):
        yield _Column("± seeds", lambda place: _percent(place.spread.get(metric)))
    if any(place.interval for place in places):
        low, high = _ends(places, metric)
        width = _BAR_WIDTH if wide else _SHORT_BAR_WIDTH
        left, right = f"{100 * low:.0f}", f"{100 * high:.0f}"
        yield _Column("95% interval", _interval)
        if wide or not published:
            yield _Column(
                left + right.rjust(width - len(left)),
                lambda place: _bar(place, metric, (low, high), width),
                "left",
            )
    for name in ("recall_at_8", "map_at_r") if wide else ():
        if name != metric and all(name in place.scores for place in places):
            yield _Column(score_name(name), lambda place, name=name: _percent(place.scores[name]))  # type: ignore[misc]
    if board.comparisons:
        yield _Column("beats", lambda place: _beaten(board, place))
    if published:
        yield _Column("published", lambda place: _published(place, metric))
    if any(place.kind == "published" for place in places):
        yield _Column("reported by", lambda place: place.outcomes[0].source, "left", words=True)


def _classes(board: Leaderboard) -> str:
    found = {place.interval.classes for place in board.places if place.interval is not None}
    return f"   {max(found):,} test classes" if found else ""


def _rank(place: Place) -> str:
    return "" if place.rank is None else f"{place.rank:g}"


def _percent(score: float | None) -> str:
    return "" if score is None else f"{100 * score:.2f}"


def _interval(place: Place) -> str:
    interval = place.interval
    return "" if interval is None else f"{100 * interval.low:.1f} to {100 * interval.high:.1f}"


def _published(place: Place, metric: str) -> str:
    """The figure that others reported, or the lowest and the highest."""
    found = sorted(figure.scores[metric] for figure in place.published if metric in figure.scores)
    return "–".join(dict.fromkeys(f"{100 * score:.1f}" for score in (found[0], found[-1]))) if found else ""


def _beaten(board: Leaderboard, place: Place) -> str:
    """How many of the losses this one beats, out of those it was compared with."""
    ranked = [other.contender for other in board.places if other.rank is not None]
    found = [
        comparison.verdict
        for other in ranked
        if other != place.contender and (comparison := board.comparison(place.contender, other)) is not None
    ]
    return f"{found.count('win')} of {len(found)}" if found else ""


def _ends(places: Sequence[Place], metric: str) -> tuple[float, float]:
    """Whole percents around all scores and intervals."""
    low = min(place.interval.low if place.interval else place.scores[metric] for place in places)
    high = max(place.interval.high if place.interval else place.scores[metric] for place in places)
    return int(100 * low) / 100, -int(-100 * high // 1) / 100


def _bar(place: Place, metric: str, ends: tuple[float, float], width: int) -> Text:
    """The interval as a line with the score as a dot on it."""
    low, high = ends

    def column(score: float) -> int:
        return round((score - low) / max(high - low, 1e-9) * (width - 1))

    cells = [" "] * width
    if place.interval is not None:
        for i in range(column(place.interval.low), column(place.interval.high) + 1):
            cells[i] = "─"
    cells[column(place.scores[metric])] = "●"
    return Text("".join(cells))


def _print_ranking(ranking: OverallRanking) -> None:
    few = _RANK_WIDTH * len(ranking.experiments) <= console.width - _RANKING_WIDTH
    table = Table(box=None, pad_edge=False)
    for head in ("", "", "total", "average", "std", *(["ranks"] if few else [])):
        table.add_column(head, justify="left" if head == "ranks" else "right", no_wrap=True)
    contenders = table.columns[1]
    contenders.justify, contenders.no_wrap, contenders.overflow = "left", False, "fold"
    for row in ranking.rows:
        place = 1 + sum(other.total < row.total for other in ranking.rows)
        ranks = [f"{rank:{_RANK_WIDTH}g}" for rank in row.ranks.values()]
        cells = [f"{place}", row.contender, f"{row.total:g}", f"{row.average:.2f}", f"{row.deviation:.2f}"]
        table.add_row(*cells, *(["".join(ranks)] if few else []), style="bold cyan" if place == 1 else "")
    console.print()
    console.print(
        Text.assemble(
            ("ranks over ", "bold"), (f"{len(ranking.experiments)} experiments", "bold"), _common(ranking)
        )
    )
    console.print(table)


def _common(ranking: OverallRanking) -> str:
    """What all experiments share."""
    shared = [
        str(value)
        for name in ("dataset", "network", "embedding_dim", "protocol")
        if len({getattr(one, name) for one in ranking.experiments}) == 1
        and (value := getattr(ranking.experiments[0], name))
    ]
    return f"   {' · '.join(shared)}" if shared else ""


def _print_sentences(title: str, sentences: Sequence[str]) -> None:
    if sentences:
        console.print()
        console.print(f"[bold]{title}[/]")
        for sentence in sentences:
            console.print(Text(f"  {sentence}"))
