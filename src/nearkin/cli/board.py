"""What ``nearkin benchmark`` shows in the end: a short leaderboard, and what failed."""

from __future__ import annotations

import statistics
from collections import defaultdict
from pathlib import Path

from rich.table import Table
from rich.text import Text

from nearkin.benchmark.plan import Plan
from nearkin.benchmark.progress import Board, RunProgress
from nearkin.benchmark.watching import first_recall
from nearkin.display.console import console, shown_path

_SHOWN_FAILURES = 5
_EXPERIMENT = ("data", "network", "embedding_dim", "protocol", "extra")


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
        scores[progress.planned.labels["loss"]][_experiment(progress)].append(first_recall(result)[1])
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
