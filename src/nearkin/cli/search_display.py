"""What ``nearkin tune`` shows when it is done: the best trials and what mattered."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table
from rich.text import Text

from nearkin.display import console, shown_path
from nearkin.tuning.search import Search
from nearkin.tuning.strategy import importances

_SHOWN_TRIALS = 5


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
    metric = shown_trials[0].metric if shown_trials else "recall_at_1"
    score = "MAP@R" if metric == "map_at_r" else f"Recall@{metric.rpartition('_')[2]}"
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
    console.print(Text(f"search    {shown_path(search.path)}"))
    for picture in pictures:
        console.print(Text(f"picture   {shown_path(picture)}"))
