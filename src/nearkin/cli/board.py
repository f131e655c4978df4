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
from nearkin.tournament.grouping import group_outcomes
from nearkin.tournament.outcomes import Outcome, contender_label, outcome_from

_SHOWN_FAILURES = 5
_EXPERIMENT = ("data", "network", "embedding_dim", "protocol")


def print_plan(plan: Plan, folder: str) -> None:
    """The runs of a plan, and where they would go."""
    runs = plan.runs()
    if plan.description:
        console.print(Text(plan.description))
    for run in runs:
        console.print(Text(run.name))
    console.print(f"[dim]{len(runs)} runs, in {folder}[/]")
    if plan.tuning is not None and not plan.found:
        budget = f"{plan.tuning.trials} trials" if plan.tuning.trials else f"{plan.tuning.steps:,} steps"
        beside = ", tuned and with the settings of the plan" if plan.tuning.defaults else ", tuned"
        console.print(f"[dim]every loss is searched for its settings first, {budget} each{beside}[/]")


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
    """Recall@k on the test classes by loss: a column per experiment, averaged over seeds; best on top."""
    by_name = {progress.planned.name: progress for progress in done}
    boards = group_outcomes(_outcome(progress) for progress in done)
    scores: dict[str, dict[int, list[float]]] = defaultdict(dict)
    heads = []
    for column, board in enumerate(boards):
        first = next(iter(board.rows.values()))[0]
        detail = f" {board.experiment.detail}" if board.experiment.detail else ""
        heads.append(_experiment(by_name[first.source]) + detail)
        for label, row in board.rows.items():
            assert all(one.result is not None for one in row)
            scores[label][column] = [first_recall(one.result)[1] for one in row if one.result is not None]
    averages = {
        label: statistics.fmean(statistics.fmean(values) for values in by_column.values())
        for label, by_column in scores.items()
    }
    table = Table(box=None, pad_edge=False)
    table.add_column("loss")
    for head in heads:
        table.add_column(head, justify="right")
    if len(heads) > 1:
        table.add_column("average", justify="right")
    for label in sorted(averages, key=lambda label: -averages[label]):
        cells = [_cell(scores[label].get(column, [])) for column in range(len(heads))]
        table.add_row(label, *cells, *([f"{averages[label]:.2f}"] if len(heads) > 1 else []))
    return table


def _outcome(progress: RunProgress) -> Outcome:
    assert progress.result is not None
    label = contender_label(progress.planned.labels)
    if progress.planned.labels.get("settings") == "tuned":
        label = f"{label}, tuned"
    return outcome_from(progress.result, progress.result.recipe, source=progress.planned.name, label=label)


def _experiment(progress: RunProgress) -> str:
    labels = progress.planned.labels
    return " ".join(labels[axis] for axis in _EXPERIMENT if axis in labels)


def _cell(values: list[float]) -> str:
    """The average over seeds, with the standard deviation where there are several."""
    if not values:
        return "–"
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{spread}"
