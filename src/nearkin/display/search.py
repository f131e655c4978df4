"""Progress of a search for hyperparameters: a line per trial that is over, and how many are left."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from nearkin.display.console import is_live
from nearkin.display.pace import Clock, StagePace, in_words
from nearkin.observer import Observer, PassingOn


class SearchListener(PassingOn):
    """Any observer, told about a search: what it does not listen to is left out."""

    def search_begin(self, total: int) -> None:
        """There will be so many trials, those of before included."""
        self._tell("search_begin", total)

    def trial_end(self, trial: Any) -> None:
        """A trial is over."""
        self._tell("trial_end", trial)

    def search_end(self) -> None:
        """There are enough trials, or the search broke off."""
        self._tell("search_end")

    def _tell(self, event: str, *news: Any) -> None:
        listen = getattr(self.observer, event, None)
        if listen is not None:
            listen(*news)


class SearchDisplay(SearchListener):
    """A line for each trial that is over; in a terminal a live bar as well.

    The trainings inside a search keep silent, but for their warnings; the one that follows it is shown.

    Args:
        training: Shows the training that follows.
        console: Where lines go.
        records: The trials that are over already.
        epochs: The number of epochs of a trial.
        clock: Seconds.
    """

    def __init__(
        self,
        training: Observer,
        console: Console,
        *,
        records: list[Any],
        epochs: int | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        super().__init__(training)
        self._console, self._epochs = console, epochs
        self._records = list(records)
        self._pace = StagePace(clock)
        self._searching, self._total = False, 0
        self._bar: Progress | None = None

    def search_begin(self, total: int) -> None:
        """Say how many trials there will be."""
        self._searching, self._total = True, total
        self._pace.left(len(self._records), total)
        before = f", {len(self._records)} of them done" if self._records else ""
        self._say(Text(f"searching: {total} trials{before}"))
        if is_live(self._console):
            self._bar = Progress(
                TextColumn("[bold]trials[/]"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[epoch]}"),
                TextColumn("{task.fields[best]}"),
                console=self._console,
                transient=True,
            )
            self._bar.add_task("", total=total, completed=len(self._records), epoch="", best=self._best())
            self._bar.start()

    def trial_end(self, trial: Any) -> None:
        """Print the trial's line."""
        # A trial that goes on after others were given up is told again.
        self._records = [*(one for one in self._records if one.number != trial.number), trial]
        left = self._pace.left(len(self._records), self._total)
        told = "" if left is None or self._bar is not None else f", {in_words(left)} left"
        style = "" if trial.state == "done" else "dim"
        self._say(Text(f"{trial_line(trial)}{told}", style=style))
        if self._bar is not None:
            best = self._best() + ("" if left is None else f"  {in_words(left)} left")
            self._bar.update(self._bar.task_ids[0], completed=len(self._records), best=best)

    def search_end(self) -> None:
        """Stop the bar."""
        self._searching = False
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _say(self, line: Text) -> None:
        (self._console if self._bar is None else self._bar.console).print(line, soft_wrap=True)
        self._console.file.flush()

    def _best(self) -> str:
        scores = [one.score for one in self._records if one.state == "done" and one.score is not None]
        return f"best {100 * max(scores):.2f}" if scores else ""

    def begin(self, *, epochs: int, batches: int, epoch: int, batch: int) -> None:
        """Show the training that follows the search."""
        if not self._searching:
            super().begin(epochs=epochs, batches=batches, epoch=epoch, batch=batch)

    def step(self, **news: Any) -> None:
        """Show the training that follows the search."""
        if not self._searching:
            super().step(**news)

    def epoch_end(self, row: dict[str, Any]) -> None:
        """Say how far the trial is."""
        if not self._searching:
            super().epoch_end(row)
        elif self._bar is not None:
            of = f"/{self._epochs}" if self._epochs else ""
            self._bar.update(self._bar.task_ids[0], epoch=f"epoch {row['epoch']}{of}")

    def warning(self, text: str) -> None:
        """Say what goes wrong, in a trial as well."""
        if self._bar is not None:
            self._bar.console.print(Text.assemble(("warning: ", "yellow"), text))
        else:
            super().warning(text)

    def note(self, text: str) -> None:
        """Say what is to be known about the data."""
        if self._bar is not None:
            self._bar.console.print(Text.assemble(("note: ", "cyan"), text))
        else:
            super().note(text)

    def stage(self, what: str) -> None:
        """Show what the training that follows does."""
        if not self._searching:
            super().stage(what)

    def progress(self, done: int, total: int) -> None:
        """Show how far it is."""
        if not self._searching:
            super().progress(done, total)

    def end(self) -> None:
        """Stop what is live."""
        if not self._searching:
            super().end()


def trial_line(trial: Any) -> str:
    """What came of a trial."""
    score = "     " if trial.score is None else f"{100 * trial.score:5.2f}"
    values = "  ".join(f"{key.split('.')[-1]} {value}" for key, value in trial.values.items())
    end = "" if trial.state == "done" else f"  {trial.state}"
    if trial.state == "given up":
        end += f" after epoch {trial.epoch}"
    if trial.error:
        end += f": {trial.error}"
    return f"trial {trial.number:3d}  {score}  {values}{end}"
