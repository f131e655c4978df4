"""What ``nearkin tune`` shows: a line per trial while it searches, and what was found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from nearkin.cli.display import console, shown_path
from nearkin.tuning.search import Search, SearchObserver, TrialRecord
from nearkin.tuning.strategy import importances

_SHOWN_TRIALS = 5


class SearchDisplay(SearchObserver):
    """A live bar of the trials in a terminal and a line for each that is over; silent in a pipe."""

    def __init__(self, search: Search) -> None:
        self._epochs = search.plan.recipe.training.epochs
        self._records = search.records()
        self._bar: Progress | None = None

    def epoch_end(self, row: dict[str, Any]) -> None:
        """Say how far the trial is."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], epoch=f"epoch {row['epoch']}/{self._epochs}")

    def search_begin(self, total: int) -> None:
        """Start the bar."""
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("[bold]trials"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[epoch]}"),
                TextColumn("{task.fields[best]}"),
                TimeRemainingColumn(elapsed_when_finished=True),
                console=console,
            )
            self._bar.add_task("", total=total, completed=len(self._records), epoch="", best=self._best())
            self._bar.start()

    def trial_end(self, trial: TrialRecord) -> None:
        """Print the trial's line."""
        self._records.append(trial)
        if self._bar is not None:
            self._bar.console.print(Text(_line(trial), style="" if trial.state == "done" else "dim"))
            self._bar.update(self._bar.task_ids[0], completed=len(self._records), best=self._best())

    def search_end(self) -> None:
        """Stop the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _best(self) -> str:
        scores = [trial.score for trial in self._records if trial.state == "done" and trial.score is not None]
        return f"best {100 * max(scores):.2f}" if scores else ""


def _line(trial: TrialRecord) -> str:
    score = "     " if trial.score is None else f"{100 * trial.score:5.2f}"
    values = "  ".join(f"{key.split('.')[-1]} {value}" for key, value in trial.values.items())
    end = "" if trial.state == "done" else f"  {trial.state}"
    if trial.state == "given up":
        end += f" after epoch {trial.epoch}"
    if trial.error:
        end += f": {trial.error}"
    return f"trial {trial.number:3d}  {score}  {values}{end}"


def print_search(search: Search, pictures: list[Path]) -> None:
    """Print the best trials, what mattered, and where everything is."""
    records = search.records()
    done = [record for record in records if record.state == "done" and record.score is not None]
    shown_trials = sorted(done, key=lambda record: (-(record.score or 0), record.number))[:_SHOWN_TRIALS]
    with search.study() as study:
        mattered = importances(study)
    table = Table(box=None, pad_edge=False)
    table.add_column("best trials")
    for record in shown_trials:
        best = record is shown_trials[0]
        table.add_column(f"{record.number}", justify="right", style="bold" if best else None)
    if mattered:
        table.add_column("explains", justify="right", style="dim")
    score = f"Recall@{search.plan.recipe.evaluation.recall_at[0]}"
    table.add_row(score, *(f"{100 * (record.score or 0):.2f}" for record in shown_trials))
    table.add_row("epoch", *(f"{record.epoch}" for record in shown_trials))
    for key in search.plan.space:
        share = [f"{mattered[key]:.0%}"] if key in mattered else []
        table.add_row(key, *(str(record.values[key]) for record in shown_trials), *share)
    console.print(table)
    states = [r.state for r in records]
    console.print(
        f"[dim]{len(records)} trials on validation classes: {states.count('done')} done, "
        f"{states.count('given up')} given up, {states.count('failed')} failed[/]"
    )
    console.print(f"search    {shown_path(search.path)}")
    for picture in pictures:
        console.print(f"picture   {shown_path(picture)}")
