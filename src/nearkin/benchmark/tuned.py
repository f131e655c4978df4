"""Equal budgets: the settings of every loss of a plan are searched on validation classes before it is tested.

A search has its directory in the folder ``tuning`` beside the runs. What all of them found is written to
``tuning/found.json``, which another plan can use (``found = …``) without searching again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import Popen
from typing import TYPE_CHECKING, Any

from nearkin.benchmark.found import (
    FOUND,
    TUNING,
    Found,
    TriedValues,
    packaged_found,
    read_found,
    write_found,
)
from nearkin.benchmark.plan import Plan, PlanError, PlannedRun, Tuning
from nearkin.benchmark.progress import Board, BoardObserver, RunProgress
from nearkin.benchmark.searching import start_search
from nearkin.data import DataSet
from nearkin.extras import require
from nearkin.recipe import Recipe, open_data
from nearkin.recipe.building import batches_per_epoch
from nearkin.recipe.searching import searched
from nearkin.training import Description, Run
from nearkin.workers import available_cores, failure_of, stop_worker

if TYPE_CHECKING:
    from nearkin.tuning.plan import SearchPlan
    from nearkin.tuning.search import Search

DEFAULT, TUNED = "default", "tuned"
"""What a run's label ``settings`` says."""

_PAUSE = 0.2  # seconds between two looks at the searches


@dataclass(frozen=True)
class PlannedSearch:
    """The search for the settings of some runs, which differ in the seed alone.

    Attributes:
        name: Its directory.
        recipe: What a trial is, but for what is searched.
        runs: The runs with the plan's own settings.
    """

    name: str
    recipe: Recipe
    runs: tuple[PlannedRun, ...]


def planned_searches(plan: Plan, tuning: Tuning) -> list[PlannedSearch]:
    """One search for every loss, data set, network and whatever else the plan combines, but for seeds."""
    groups: dict[str, list[PlannedRun]] = {}
    for run in plan.runs():
        groups.setdefault(_without_seed(run.name), []).append(run)
    searches = []
    for name, runs in groups.items():
        recipe = runs[0].recipe
        protocol = {"name": "fixed_validation", "validation_share": tuning.validation_share}
        seed = recipe.seed if tuning.seed is None else tuning.seed
        recipe = recipe.changed({"protocol": None}).changed({"protocol": protocol, "seed": seed})
        searches.append(PlannedSearch(name, recipe, tuple(runs)))
    return searches


def _without_seed(name: str) -> str:
    return name.rpartition("-seed")[0]


def tuned_run(run: PlannedRun, values: Mapping[str, Any]) -> PlannedRun:
    """A run with what a search found, under a name of its own."""
    seed = run.name.removeprefix(_without_seed(run.name))
    name = f"{_without_seed(run.name)}-{TUNED}{seed}"
    return PlannedRun(name, run.recipe.changed(values), run.labels | {"settings": TUNED})


def runs_with(plan: Plan, found: Mapping[str, Found]) -> list[PlannedRun]:
    """All runs of a plan: with what was found and, if the plan wants them, with its own settings beside."""
    defaults = plan.tuning is not None and plan.tuning.defaults
    runs = []
    for run in plan.runs():
        search = found.get(_without_seed(run.name))
        if search is None or defaults:
            runs.append(replace(run, labels=run.labels | {"settings": DEFAULT}))
        if search is not None:
            runs.append(tuned_run(run, search.values))
    return runs


def found_for(plan: Plan) -> dict[str, Found]:
    """What the plan says was found before.

    Raises:
        PlanError: There is no such file, or it is none of these.
    """
    packaged = packaged_found()
    file = Path(plan.found)
    if not file.exists() and plan.found in packaged:
        file = packaged[plan.found]
    try:
        return read_found(file)
    except ValueError as error:
        known = f"; with the library come: {', '.join(packaged)}" if packaged else ""
        raise PlanError(f"found={plan.found}: {error}{known}") from None


@dataclass
class SearchProgress(RunProgress):
    """How far a search is, as a run's progress: instead of epochs it counts trials.

    Attributes:
        trials: How many it has.
    """

    trials: int = 1

    @property
    def epochs(self) -> int:
        """Trials in all; what is counted are those that are over or have begun."""
        return self.trials

    def look(self) -> None:
        """Count the trials that have begun."""
        folder = self.run.path / "trials"
        self.epoch = min(self.trials, len(list(folder.iterdir()))) if folder.is_dir() else 0

    def finish_if_done(self) -> bool:
        """Whether what it found is written, which ends it."""
        self.look()
        found = self.found
        if found is None:
            return False
        self.state, self.seconds = "done", self.seconds_so_far
        self.told = f"{found.metric} {100 * found.score:.2f} on validation classes"
        return True

    @property
    def found(self) -> Found | None:
        """What it found with its whole budget, if it is over."""
        file = self.run.path / FOUND
        if not file.exists():
            return None
        found = Found.from_dict(json.loads(file.read_text(encoding="utf-8")))
        return found if len(found.trials) >= self.trials else None


def tune_plan(
    plan: Plan,
    tuning: Tuning,
    folder: Path,
    *,
    jobs: int | None = None,
    observer: BoardObserver | None = None,
) -> tuple[dict[str, Found], list[RunProgress]]:
    """Do what is missing of a plan's searches, several at a time; a search that was killed goes on.

    Args:
        plan: The plan.
        tuning: Its budget.
        folder: Where runs go; the searches go into its folder ``tuning``.
        jobs: Searches at a time; as many as there are cores by default.
        observer: Hears what happens.

    Returns:
        What was found, by the name of the search, and the searches that failed.

    Raises:
        PlanError: before anything runs, if a search cannot be.
        RunError: before anything runs, if a directory holds another search.
    """
    require("optuna", extra="tune", purpose="tuning = … in a plan")
    home = folder / TUNING
    progresses = [_opened(search, home) for search in _searches(plan, tuning)]
    board = Board(progresses, str(home), what="searches")
    missing = [progress for progress in progresses if not progress.finish_if_done()]
    if missing:
        _Searching(board, missing, jobs, observer or BoardObserver()).run_to_the_end()
    found = {one.planned.name: one.found for one in progresses}
    known = {name: one for name, one in found.items() if one is not None}
    write_found(home / FOUND, list(known.values()), plan=plan.name, tuning=tuning.model_dump())
    return known, list(board.in_state("failed"))


def _searches(plan: Plan, tuning: Tuning) -> list[tuple[PlannedSearch, SearchPlan, int]]:
    """Every search with its plan and number of trials."""
    from nearkin.tuning.plan import plan_search  # noqa: PLC0415  (Optuna)

    found = []
    data: dict[str, DataSet] = {}
    for search in planned_searches(plan, tuning):
        try:
            trials = tuning.trials or _trials_within_steps(search, tuning, data)
            planned = plan_search(
                searched(search.recipe, tuning.ranges, rates=tuning.rates),
                sampler=tuning.sampler,
                pruner="none",
                trials=trials,
                epochs=tuning.epochs,
            )
        except ValueError as error:
            raise PlanError(f"{search.name}: {error}") from None
        if tuning.sampler == "coordinate":
            trials = planned.coordinates()[-1].until
        found.append((search, planned, trials))
    return found


def _trials_within_steps(search: PlannedSearch, tuning: Tuning, opened: dict[str, DataSet]) -> int:
    from nearkin.tuning.budget import trials_within  # noqa: PLC0415  (Optuna)

    assert tuning.steps is not None
    recipe = search.recipe
    key = json.dumps(recipe.complete()["data"], sort_keys=True, default=str)
    if key not in opened:
        opened[key] = open_data(recipe).without_test()
    return trials_within(
        tuning.steps,
        batches=batches_per_epoch(recipe, opened[key]),
        epochs=tuning.epochs or recipe.training.epochs,
        sampler=tuning.sampler,
    )


def _opened(one: tuple[PlannedSearch, SearchPlan, int], home: Path) -> SearchProgress:
    from nearkin.tuning.search import Search  # noqa: PLC0415  (Optuna)

    search, planned, trials = one
    path = home / search.name
    Search.open(path, planned)  # says if it holds another one
    run = PlannedRun(search.name, search.recipe, search.runs[0].labels)
    return SearchProgress(run, Run(path, Description()), trials=trials)


class _Searching:
    """Hands searches over to processes until all are done or have failed."""

    def __init__(
        self, board: Board, missing: Iterable[RunProgress], jobs: int | None, observer: BoardObserver
    ) -> None:
        self._board, self._observer = board, observer
        self._open: list[SearchProgress] = [one for one in missing if isinstance(one, SearchProgress)]
        self._jobs = jobs or available_cores()
        self._threads = max(1, available_cores() // self._jobs)
        self._busy: list[tuple[SearchProgress, Popen[bytes]]] = []
        board.jobs = self._jobs

    def run_to_the_end(self) -> None:
        try:
            self._observer.begin(self._board)
            while self._open or self._busy:
                while self._open and len(self._busy) < self._jobs:
                    self._start(self._open.pop(0))
                for progress, process in list(self._busy):
                    progress.look()
                    if (code := process.poll()) is not None:
                        self._busy.remove((progress, process))
                        self._end(progress, process, code)
                self._observer.look(self._board)
                time.sleep(_PAUSE)
        finally:
            self._observer.end(self._board)
            for _, process in self._busy:
                stop_worker(process)

    def _start(self, progress: SearchProgress) -> None:
        progress.begin()
        process = start_search(progress.run.path, progress.trials, threads=self._threads)
        self._busy.append((progress, process))

    def _end(self, progress: SearchProgress, process: Popen[bytes], code: int) -> None:
        stop_worker(process)
        if not progress.finish_if_done():
            progress.fail(failure_of(progress.run.path, code))
        self._observer.ended(self._board, progress)


def found_by(search: Search) -> Found:
    """What a search that is over found."""
    from nearkin.tuning.plan import plain_values  # noqa: PLC0415  (Optuna)

    best = search.best()
    own = search.plan.searched.nearest_values()
    return Found(
        name=search.path.name,
        values=best.values,
        score=best.score or 0.0,
        own=own,
        space={key: plain_values(values) for key, values in search.plan.space.items()},
        sampler=search.plan.sampler,
        metric=_called(best.metric),
        trials=[
            TriedValues(record.values, record.score, record.epochs, record.steps, record.state)
            for record in search.records()
        ],
    )


def _called(metric: str) -> str:
    """A score as people write it.

    >>> _called("recall_at_1"), _called("map_at_r")
    ('Recall@1', 'MAP@R')
    """
    return "MAP@R" if metric == "map_at_r" else f"Recall@{metric.rpartition('_')[2]}"


def keep_found(plan: Plan, folder: Path, found: Sequence[Found]) -> None:
    """Lay what was found before beside the runs, for whoever asks where their settings come from."""
    write_found(folder / TUNING / FOUND, found, plan=plan.name, tuning={"found": plan.found})
