"""What ``nearkin benchmark`` shows: a live table of runs, and a short leaderboard in the end."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from pathlib import Path

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from nearkin.benchmark.plan import Plan
from nearkin.benchmark.progress import Board, BoardObserver, RunProgress
from nearkin.cli.display import console, shown_path
from nearkin.training import Result

_BAR = 20
_SHOWN_FAILURES = 5
_EXPERIMENT = ("data", "network", "embedding_dim", "protocol", "extra")


class BoardDisplay(BoardObserver):
    """A live table in a terminal; elsewhere a line for every run that ends."""

    def __init__(self) -> None:
        self._live: Live | None = None

    def begin(self, board: Board) -> None:
        """Start the live table."""
        if console.is_terminal:
            self._live = Live(_table(board), console=console, refresh_per_second=4, transient=True)
            self._live.start()

    def look(self, board: Board) -> None:
        """Draw the table anew."""
        if self._live is not None:
            self._live.update(_table(board))

    def ended(self, board: Board, progress: RunProgress) -> None:
        """Print a line above the table."""
        ended = len(board.in_state("done", "failed"))
        console.print(_line(progress, f"{ended}/{len(board.runs)}"))

    def end(self, board: Board) -> None:
        """Take the table away."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def _line(progress: RunProgress, count: str) -> Text:
    result = progress.result
    outcome = (
        Text(f"failed: {progress.reason}", "red")
        if result is None
        else Text("Recall@{} {:.2f}".format(*_recall(result)), "cyan")
    )
    took = "" if progress.seconds is None else f"  {duration(progress.seconds)}"
    return Text.assemble((count, "dim"), f"  {progress.planned.name}  ", outcome, (took, "dim"))


def _recall(result: Result) -> tuple[int, float]:
    """The first k, and Recall@k in per cent."""
    k, recall = next(iter(result.test.recall_at.items()))
    return k, 100 * recall


def _table(board: Board) -> RenderableType:
    """The runs that are at work, with a line that counts all."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for justify in ("left", "left", "right", "right"):
        table.add_column(justify=justify, no_wrap=True)
    for progress in board.in_state("running", "elsewhere"):
        filled = round(_BAR * progress.epoch / progress.epochs)
        left = progress.seconds_left()
        table.add_row(
            progress.planned.name,
            Text("━" * filled, "cyan") + Text("━" * (_BAR - filled), "dim"),
            f"epoch {progress.epoch}/{progress.epochs}",
            "by another process" if progress.state == "elsewhere" else "" if left is None else duration(left),
        )
    return Group(table, Text(_counts(board), "bold"))


def _counts(board: Board) -> str:
    counts = Counter(progress.state for progress in board.runs)
    parts = [
        f"{counts[state]} {state}"
        for state in ("running", "elsewhere", "done", "failed", "waiting")
        if counts[state]
    ]
    left = board.seconds_left()
    return " · ".join(
        [*parts, "estimating the time left" if left is None else f"about {duration(left)} left"]
    )


def duration(seconds: float) -> str:
    """Seconds in words.

    >>> duration(42), duration(200), duration(9000)
    ('42 s', '3 min 20 s', '2 h 30 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def print_plan(plan: Plan, folder: str) -> None:
    """The runs of a plan, and where they would go."""
    runs = plan.runs()
    if plan.description:
        console.print(Text(plan.description))
    for run in runs:
        console.print(Text(run.name))
    console.print(f"[dim]{len(runs)} runs, in {folder}[/]")


def print_board(board: Board) -> None:
    """How the runs ended: a short leaderboard, what failed, and where everything is."""
    done = board.in_state("done")
    if done:
        console.print(_leaderboard(done))
    failed = board.in_state("failed")
    for progress in failed[:_SHOWN_FAILURES]:
        console.print(Text.assemble(("failed    ", "red"), f"{progress.planned.name}: {progress.reason}"))
    if failed:
        more = f"{len(failed)} failed: their error.txt says more; the same command tries them again"
        console.print(Text(more, "red"))
    folder = board.folder if "://" in board.folder else shown_path(Path(board.folder))
    console.print(f"runs      {folder} ({len(done)} of {len(board.runs)} done)")


def _leaderboard(done: list[RunProgress]) -> Table:
    """Recall@1 on the test classes by loss: a column per experiment, averaged over seeds; best on top."""
    scores: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for progress in done:
        result = progress.result
        assert result is not None
        scores[progress.planned.labels["loss"]][_experiment(progress)].append(_recall(result)[1])
    experiments = list(dict.fromkeys(_experiment(progress) for progress in done))
    averages = {
        loss: statistics.fmean(statistics.fmean(values) for values in by_experiment.values())
        for loss, by_experiment in scores.items()
    }
    table = Table(box=None, pad_edge=False)
    table.add_column("loss")
    for experiment in experiments:
        table.add_column(experiment, justify="right")
    if len(experiments) > 1:
        table.add_column("average", justify="right")
    for loss in sorted(averages, key=lambda loss: -averages[loss]):
        cells = [_cell(scores[loss].get(experiment, [])) for experiment in experiments]
        table.add_row(loss, *cells, *([f"{averages[loss]:.2f}"] if len(experiments) > 1 else []))
    return table


def _experiment(progress: RunProgress) -> str:
    labels = progress.planned.labels
    return " ".join(labels[axis] for axis in _EXPERIMENT if axis in labels)


def _cell(values: list[float]) -> str:
    """The average over seeds, with the standard deviation where there are several."""
    if not values:
        return "–"
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{spread}"
