"""A search for hyperparameters on validation classes, then one training on all classes and one test."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import optuna
from filelock import FileLock, Timeout
from optuna.trial import FrozenTrial, TrialState

from nearkin.atomic import write_json
from nearkin.data import DataSet
from nearkin.extras import data_frame
from nearkin.observer import Observer
from nearkin.protocols import execute, prepared
from nearkin.recipe import Recipe, open_data
from nearkin.training import Description, Run, RunError, TrainingError
from nearkin.tuning.plan import SearchPlan, Values
from nearkin.tuning.strategy import pruner_of, sampler_of, suggest
from nearkin.tuning.trial import Report, TrialOutcome, forget_weights, run_trial

if TYPE_CHECKING:
    import pandas as pd

_LOCK_SECONDS = 60.0
_POLL_SECONDS = 0.5
_DIGITS = 4
_STATES: dict[TrialState, Literal["done", "given up", "failed"]] = {
    TrialState.COMPLETE: "done",
    TrialState.PRUNED: "given up",
    TrialState.FAIL: "failed",
}


@dataclass(frozen=True)
class TrialRecord:
    """A trial that is over.

    Attributes:
        number: Its directory below ``trials``, and its place in the search.
        values: What was tried, by recipe key.
        state: ``done``, ``given up`` (hopeless) or ``failed``.
        score: The first Recall@k on validation classes, if it has one.
        epoch: The epoch of that score.
        error: Why it failed.
        map_at_r: MAP@R of the score's epoch: it decides between equals.
    """

    number: int
    values: Values
    state: Literal["done", "given up", "failed"]
    score: float | None
    epoch: int | None
    error: str | None
    map_at_r: float = 0.0


class SearchObserver(Observer):
    """Hears what a search does; of its trainings, too, where they run in this process."""

    def search_begin(self, total: int) -> None:
        """There will be so many trials, those of before included."""

    def trial_end(self, trial: TrialRecord) -> None:
        """A trial is over."""

    def search_end(self) -> None:
        """There are enough trials, or the search broke off."""


class Search:
    """A search's directory.

    ``search.json`` says what is searched, ``search.db`` (Optuna's, SQLite) holds the trials and
    ``trials.json`` what came of them, ``trials/`` has a run per trial, and ``best/`` is the run on all
    training classes with what was found. Use :meth:`open` to begin a search or go on with it.
    """

    def __init__(self, path: Path, plan: SearchPlan) -> None:
        self.path, self.plan = path, plan
        self._is_new = False
        self._missing: list[Path] = []  # the search's directory and those above it, as far as it made them

    @classmethod
    def open(cls, path: str | os.PathLike[str], plan: SearchPlan) -> Search:
        """Begin a search in a new directory, or go on with the one that is there if its plan is the same."""
        path = Path(path)
        missing = [place for place in (path, *path.parents) if not place.exists()]
        is_new = not (path / "search.json").exists()
        if is_new and path.is_dir() and any(path.iterdir()):
            raise RunError(f"{path} holds other files and no search: choose another output directory")
        try:
            (path / "trials").mkdir(parents=True, exist_ok=True)
            plan.write(path / "search.json")
        except OSError as error:
            raise RunError(f"cannot write to {path}: {error.strerror or error}") from None
        search = cls(path, plan)
        search._is_new, search._missing = is_new, missing
        return search

    def run(self, trials: int, *, jobs: int = 1, observer: SearchObserver | None = None) -> list[TrialRecord]:
        """Go on until there are so many trials, some of them in each of ``jobs`` processes.

        A trial that was killed goes on from its last checkpoint. No trial can reach the test split.

        Raises:
            RunError: Another process is at it, or the test split has been opened and more trials would have
                to be chosen from.
        """
        observer = observer or SearchObserver()
        total = min(trials, self.plan.grid_size) if self.plan.sampler == "grid" else trials
        try:
            with FileLock(self.path / "search.lock", timeout=0):
                self._check(jobs, observer)
                self._recover(total)
                news = _News(self, observer)
                observer.search_begin(total)
                try:
                    if jobs == 1:
                        do_trials(self, total, observer, news)
                    else:
                        self._work_in_processes(total, jobs, news)
                finally:
                    observer.search_end()
                records = self.records()
                write_json(self.path / "trials.json", [asdict(record) for record in records])
        except Timeout:
            raise RunError(f"another process is searching in {self.path}") from None
        except BaseException:
            self._remove_failed_start()
            raise
        return records

    def _remove_failed_start(self) -> None:
        """Leave nothing of a search that this object began and that has no trial yet."""
        if not self._is_new or any((self.path / "trials").iterdir()):
            return
        shutil.rmtree(self.path)  # it was empty, or not there
        if self.path not in self._missing:
            self.path.mkdir()
        with suppress(OSError):  # a folder that others have begun to use is not empty
            for folder in self._missing[1:]:
                folder.rmdir()

    def _check(self, jobs: int, observer: Observer) -> None:
        """Build a trial's task once, so that what cannot be is told before any trial."""
        if jobs > 1 and self.plan.recipe.objects:
            given = ", ".join(sorted(self.plan.recipe.objects))
            raise RunError(
                f"{given} given in Python cannot be sent to other processes: use jobs=1, or name it as "
                "module:object"
            )
        if len(self.records()) == 0:
            self.plan.recipe.build(observer)

    def best(self) -> TrialRecord:
        """The trial with the best validation score; of equals that with the better MAP@R, then the earlier.

        Raises:
            RunError: No trial came to its end.
        """
        done = [record for record in self.records() if record.state == "done"]
        if not done:
            failed = next((record.error for record in self.records() if record.error), "none was finished")
            raise RunError(f"no trial of {self.path} came to its end: {failed}")
        return max(done, key=lambda record: (record.score or 0.0, record.map_at_r, -record.number))

    def best_run(self) -> Run:
        """The run on all training classes with the best trial's values, as far as its best epoch."""
        best = self.best()
        assert best.epoch is not None
        recipe = self.plan.final_recipe(best.values, best.epoch)
        description = Description(recipe.to_toml(), recipe.complete())
        if self._best_path.exists():
            begun = Run.existing(self._best_path)
            if begun.terms != description.terms and not begun.finished:  # more trials found better values
                shutil.rmtree(self._best_path)
        return Run.open(self._best_path, description)

    def best_recipe(self) -> Recipe:
        """The recipe on all training classes with the best trial's values."""
        best = self.best()
        assert best.epoch is not None
        return self.plan.final_recipe(best.values, best.epoch)

    def rows(self) -> list[dict[str, Any]]:
        """A row per trial that is over: its number, what was tried, and what came of it."""
        return [
            {
                "trial": one.number,
                **one.values,
                "state": one.state,
                "score": one.score,
                "epoch": one.epoch,
                "map_at_r": one.map_at_r,
            }
            for one in self.records()
        ]

    def to_pandas(self) -> pd.DataFrame:
        """What :meth:`rows` gives, as a table."""
        return data_frame(self.rows())

    def __repr__(self) -> str:
        return f"Search({str(self.path)!r}, {len(self.records())} trials)"

    def __str__(self) -> str:
        records = self.records()
        if not any(record.state == "done" for record in records):
            return repr(self)
        best = self.best()
        values = ", ".join(f"{key}={_short(value)}" for key, value in best.values.items())
        told = (
            f"{self.path}\nbest of {len(records)} trials: {values}, "
            f"{100 * (best.score or 0):.2f} % on validation classes"
        )
        finished = (self._best_path / "result.json").exists()
        return f"{told}\n{Run.existing(self._best_path).result}" if finished else told

    def finish(self, observer: Observer | None = None) -> Run:
        """Train on all training classes with the best trial's values, and open the test split, once."""
        run = self.best_run()
        if run.finished:
            return run
        task = self.best_recipe().build(observer)
        return execute(task, Run.open(self._best_path, task.description), observer)

    @property
    def _best_path(self) -> Path:
        return self.path / "best"

    def records(self) -> list[TrialRecord]:
        """The trials that are over, in their order."""
        with self.study() as study:
            return records_of(study)

    @contextmanager
    def study(self) -> Iterator[optuna.Study]:
        """Optuna's view of the search."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        storage = optuna.storages.RDBStorage(
            f"sqlite:///{self.path / 'search.db'}", engine_kwargs={"connect_args": {"timeout": _LOCK_SECONDS}}
        )
        try:
            yield optuna.create_study(
                storage=storage,
                study_name="search",
                direction="maximize",
                load_if_exists=True,
                pruner=pruner_of(self.plan),
            )
        finally:
            storage.remove_session()
            storage.engine.dispose()

    def trial_path(self, number: int) -> Path:
        """Where a trial's run is."""
        return self.path / "trials" / f"{number:04d}"

    def _recover(self, total: int) -> None:
        """Queue the trials that were killed, and give numbers back that were taken and not used."""
        with self.study() as study:
            for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
                study.tell(trial.number, state=TrialState.FAIL)
            last = _last_of_each(study)
            for number, trial in last.items():
                if trial.state == TrialState.FAIL and "error" not in trial.user_attrs:
                    complete = trial.params.keys() == self.plan.space.keys()
                    study.enqueue_trial(trial.params if complete else {}, {"number": number})
        for folder in (self.path / "trials").iterdir():
            if int(folder.name) not in last:
                folder.rmdir()
        finished = (self._best_path / "result.json").exists()
        if finished and len(last) < total:
            raise RunError(
                f"{self.path} has opened its test classes after {len(last)} trials, and more would let them "
                "choose: search in another output directory"
            )

    def _work_in_processes(self, total: int, jobs: int, news: _News) -> None:
        command = [sys.executable, "-m", "nearkin.tuning.worker", self.path, total, jobs]
        workers = [
            subprocess.Popen([str(word) for word in command], stdin=subprocess.PIPE)  # noqa: S603
            for _ in range(min(jobs, total - len(self.records())))
        ]
        try:
            with self.study() as study:
                while any(worker.poll() is None for worker in workers):
                    time.sleep(_POLL_SECONDS)
                    news.tell(study)
        finally:
            for worker in workers:
                worker.terminate()
                worker.communicate()
        if any(worker.returncode for worker in workers):
            raise RuntimeError(f"a worker of {self.path} died: the same command goes on where it stopped")


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _last_of_each(study: optuna.Study) -> dict[int, FrozenTrial]:
    """Number → Optuna's last trial of it: one that was killed has several."""
    trials = study.get_trials(deepcopy=False)
    return {trial.user_attrs["number"]: trial for trial in trials if "number" in trial.user_attrs}


def records_of(study: optuna.Study) -> list[TrialRecord]:
    """The trials that are over, in their order."""
    last = _last_of_each(study)
    return [_record(number, trial) for number, trial in sorted(last.items()) if trial.state in _STATES]


class _News:
    """Tells an observer about every trial that is over, once."""

    def __init__(self, search: Search, observer: SearchObserver) -> None:
        self._told = {record.number for record in search.records()}
        self._observer = observer

    def tell(self, study: optuna.Study) -> None:
        for record in records_of(study):
            if record.number not in self._told:
                self._told.add(record.number)
                self._observer.trial_end(record)


def do_trials(search: Search, total: int, observer: Observer, news: _News | None = None) -> None:
    """Do one trial after the other, in this process, until there are ``total``."""
    _Worker(search, total, observer, news).work()


class _Worker:
    """Does one trial after the other until all are done."""

    def __init__(self, search: Search, total: int, observer: Observer, news: _News | None = None) -> None:
        self.search, self.plan, self.total = search, search.plan, total
        self.observer, self.news = observer, news
        self._data: DataSet | None = None

    def work(self) -> None:
        with self.search.study() as study:
            while (claimed := self._next_trial(study)) is not None:
                self._do(study, *claimed)
                if self.news is not None:
                    self.news.tell(study)

    def _next_trial(self, study: optuna.Study) -> tuple[int, optuna.Trial] | None:
        """A trial that was killed, or a new one; ``None`` if there are enough."""
        waiting = study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
        number = None if waiting else self._claim()
        if not waiting and number is None:
            return None
        trial = study.ask()
        if "number" in trial.user_attrs:
            return trial.user_attrs["number"], trial
        if number is None and (number := self._claim()) is None:  # another worker took what was waiting
            study.tell(trial, state=TrialState.FAIL)
            return None
        trial.set_user_attr("number", number)
        return number, trial

    def _claim(self) -> int | None:
        """The first number that nobody has: making a directory succeeds for one process only."""
        for number in range(self.total):
            try:
                self.search.trial_path(number).mkdir()
            except FileExistsError:
                continue
            return number
        return None

    def _do(self, study: optuna.Study, number: int, trial: optuna.Trial) -> None:
        study.sampler = sampler_of(self.plan, number)
        values = _readable({key: suggest(trial, key, where) for key, where in self.plan.space.items()})
        path = self.search.trial_path(number)
        try:
            task = self.plan.trial_recipe(values).build(self.observer, data=self.data)
            run = Run.open(path, task.description)
            seen = prepared(task.embedder, task.data, self.observer)
            outcome = run_trial(task, run, seen, _reporter(trial), self.observer)
        except (ValueError, TrainingError) as error:
            trial.set_user_attr("error", " ".join(str(error).split()))
            study.tell(trial, state=TrialState.FAIL)
            return
        self._tell(study, trial, outcome)
        forget_weights(run)

    def _tell(self, study: optuna.Study, trial: optuna.Trial, outcome: TrialOutcome) -> None:
        trial.set_user_attr("epoch", outcome.epoch)
        trial.set_user_attr("map_at_r", outcome.map_at_r)
        if outcome.given_up:
            study.tell(trial, state=TrialState.PRUNED)
        else:
            study.tell(trial, outcome.score)

    @property
    def data(self) -> DataSet:
        """The training classes; the test split is let go of before anybody could look."""
        if self._data is None:
            self._data = open_data(self.plan.recipe, self.observer).without_test()
        return self._data


def _reporter(trial: optuna.Trial) -> Report:
    def report(epoch: int, score: float) -> bool:
        trial.report(score, epoch)
        return trial.should_prune()

    return report


def _record(number: int, trial: FrozenTrial) -> TrialRecord:
    attributes = trial.user_attrs
    return TrialRecord(
        number,
        _readable(trial.params),
        _STATES[trial.state],
        trial.value,
        attributes.get("epoch"),
        attributes.get("error"),
        attributes.get("map_at_r", 0.0),
    )


def _readable(values: Values) -> Values:
    """Numbers that a person would write: four digits are finer than any trial can tell."""
    return {
        key: float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value
        for key, value in values.items()
    }
