"""A search for hyperparameters on validation classes, then one training on all classes and one test."""

from __future__ import annotations

import json
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
from nearkin.recipe.searching import Values
from nearkin.training import Description, Run, RunError, TrainingError
from nearkin.tuning.plan import SearchPlan
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
        score: What selects the epoch, on validation classes, if it has one.
        epoch: The epoch of that score.
        error: Why it failed.
        map_at_r: MAP@R of the score's epoch: it decides between equals.
        epochs: Epochs that it was trained for.
        steps: Batches that it was trained for.
        metric: The name of the score, such as ``recall_at_1``.
    """

    number: int
    values: Values
    state: Literal["done", "given up", "failed"]
    score: float | None
    epoch: int | None
    error: str | None
    map_at_r: float = 0.0
    epochs: int = 0
    steps: int = 0
    metric: str = "recall_at_1"

    @property
    def order(self) -> tuple[float, float, int]:
        """The larger, the better: by score, then MAP@R, then the earlier."""
        return self.score or 0.0, self.map_at_r, -self.number


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
    ``trials.json`` what came of them, ``trials/`` has a run per trial, ``best/`` is the run on all training
    classes with what was found, and ``validated/``, on request, the one that leaves out the validation
    classes. Use :meth:`open` to begin a search or go on with it.
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
        total = self._total(trials)
        try:
            with FileLock(self.path / "search.lock", timeout=0):
                self._check(jobs, observer)
                self._recover(total)
                news = _News(self, observer)
                observer.search_begin(total)
                try:
                    for until, rung in self._stages(total):
                        self._promote(rung)
                        if jobs == 1:
                            do_trials(self, until, observer, news)
                        else:
                            self._work_in_processes(until, jobs, news)
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

    def _total(self, trials: int) -> int:
        plan = self.plan
        if plan.sampler == "grid":
            return min(trials, plan.grid_size)
        if plan.sampler == "coordinate":
            return plan.coordinates()[-1].until
        return plan.trials or trials

    def _stages(self, total: int) -> list[tuple[int, int]]:
        """Each stage's trials, up to which number and on which rung, are over before the next begins."""
        if self.plan.sampler == "coordinate":
            return [(coordinate.until, 0) for coordinate in self.plan.coordinates()]
        return [(total, rung) for rung in range(len(self.plan.rungs()))]

    def _promote(self, rung: int) -> None:
        """Queue the better trials of the rung before, unless that was done; forget the others' weights."""
        if rung == 0:
            return
        wanted = self.plan.rungs()[rung].trials
        with self.study() as study:
            trials = [one for one in study.get_trials(deepcopy=False) if "number" in one.user_attrs]
            ended: dict[int, tuple[TrialRecord, Values]] = {}
            for trial in trials:
                record = _ended(trial)
                if record is not None and record.state != "failed" and _rung(trial) == rung - 1:
                    ended[record.number] = record, trial.params
            begun = {trial.user_attrs["number"] for trial in trials if _rung(trial) >= rung}
            best = sorted(ended.values(), key=lambda one: one[0].order, reverse=True)[:wanted]
            for record, values in best:
                if record.number not in begun:
                    study.enqueue_trial(values, {"number": record.number, "rung": rung})
        for number in ended.keys() - {record.number for record, _ in best}:
            forget_weights(Run.existing(self.trial_path(number)))

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
        return max(done, key=lambda record: record.order)

    def best_run(self) -> Run:
        """The run on all training classes with the best trial's values, as far as its best epoch."""
        recipe = self.best_recipe()
        description = Description(recipe.to_toml(), recipe.complete())
        if self._best_path.exists():
            begun = Run.existing(self._best_path)
            if begun.terms != description.terms and not begun.finished:  # more trials found better values
                shutil.rmtree(self._best_path)
        return Run.open(self._best_path, description)

    def best_recipe(self) -> Recipe:
        """The recipe on all training classes with the best trial's values.

        Raises:
            RunError: Trials were stopped early, and no training in full has found the epoch yet.
        """
        best = self.best()
        epoch = best.epoch if self.plan.epochs is None else self._epoch_in_full(best)
        if epoch is None:
            raise RunError(f"the trials of {self.path} were stopped early: finish the search first")
        return self.plan.searched.of_retraining(best.values, epoch)

    def validated_recipe(self) -> Recipe:
        """The recipe with the best trial's values on the trial's classes, the validation classes left out."""
        return self.plan.searched.of_validated(self.best().values)

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

    def finish_validated(self, observer: Observer | None = None) -> Run:
        """Train without the validation classes, which choose the epoch, and open the test split, once.

        So did the thesis (Table 16).
        """
        recipe = self.validated_recipe()
        path = self.path / "validated"
        if path.exists():
            begun = Run.existing(path)
            if begun.finished:
                return begun
            if begun.terms != recipe.complete():  # more trials found better values
                shutil.rmtree(path)
        task = recipe.build(observer)
        return execute(task, Run.open(path, task.description), observer)

    def _epoch_in_full(self, best: TrialRecord) -> int | None:
        """The epoch that validation chose with these values in a training to the end, if there was one."""
        file = self.path / "full.json"
        if not file.exists():
            return None
        found = json.loads(file.read_text(encoding="utf-8"))
        return int(found["epoch"]) if found["values"] == best.values else None

    def _train_in_full(self, observer: Observer) -> None:
        """Let validation choose the epoch of the best values, where no trial went as far as it may lie."""
        best = self.best()
        if self.plan.epochs is None or self._epoch_in_full(best) is not None:
            return
        observer.stage("training with the best values to the end, to find the epoch")
        recipe = self.plan.searched.of_trial(best.values)
        data = open_data(recipe, observer).without_test()
        task = recipe.build(observer, data=data)
        path = self.path / "full"
        if path.exists() and Run.existing(path).terms != task.description.terms:
            shutil.rmtree(path)
        run = Run.open(path, task.description)
        seen = prepared(task.embedder, task.data, observer)
        outcome = run_trial(task, run, seen, lambda *_: False, observer)
        write_json(self.path / "full.json", {"values": best.values, "epoch": outcome.epoch})
        forget_weights(run)

    def finish(self, observer: Observer | None = None) -> Run:
        """Train on all training classes with the best trial's values, and open the test split, once."""
        self._train_in_full(observer or Observer())
        run = self.best_run()
        if run.finished:
            return run
        task = self.best_recipe().build(observer)
        return execute(task, Run.open(self._best_path, task.description), observer)

    def finish_as(self, keep: str, observer: Observer | None = None) -> list[Run]:
        """Test what is to be kept: ``all``, ``validation`` or ``both``; see :func:`nearkin.api.tune`."""
        refuse_unknown(keep)
        runs = []
        if keep in {"validation", "both"}:
            runs.append(self.finish_validated(observer))
        if keep in {"all", "both"}:
            runs.append(self.finish(observer))
        return runs

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
                    rung = {key: trial.user_attrs[key] for key in ("rung",) if key in trial.user_attrs}
                    study.enqueue_trial(trial.params if complete else {}, {"number": number, **rung})
        for folder in (self.path / "trials").iterdir():
            if int(folder.name) not in last:
                folder.rmdir()
        finished = any((self.path / name / "result.json").exists() for name in ("best", "validated"))
        if finished and len(last) < total:
            raise RunError(
                f"{self.path} has opened its test classes after {len(last)} trials, and more would let them "
                "choose: search in another output directory"
            )

    def _open_trials(self, until: int) -> int:
        """Trials that are queued, or whose number nobody has taken yet."""
        taken = sum(self.trial_path(number).exists() for number in range(until))
        with self.study() as study:
            waiting = study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
        return until - taken + len(waiting)

    def _work_in_processes(self, total: int, jobs: int, news: _News) -> None:
        command = [sys.executable, "-m", "nearkin.tuning.worker", self.path, total, jobs]
        workers = [
            subprocess.Popen([str(word) for word in command], stdin=subprocess.PIPE)  # noqa: S603
            for _ in range(min(jobs, self._open_trials(total)))
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


def refuse_unknown(keep: str) -> None:
    """Say at once what can be kept.

    Raises:
        ValueError: It is none of them.
    """
    if keep not in {"all", "validation", "both"}:
        raise ValueError(f"keep={keep!r} must be one of: all, validation, both")


def _rung(trial: FrozenTrial | optuna.Trial) -> int:
    return int(trial.user_attrs.get("rung", 0))


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _last_of_each(study: optuna.Study) -> dict[int, FrozenTrial]:
    """Number → Optuna's last trial of it: one that was killed has several."""
    trials = study.get_trials(deepcopy=False)
    return {trial.user_attrs["number"]: trial for trial in trials if "number" in trial.user_attrs}


def records_of(study: optuna.Study) -> list[TrialRecord]:
    """The trials that are over, in their order."""
    found = (_ended(trial) for _, trial in sorted(_last_of_each(study).items()))
    return [record for record in found if record is not None]


class _News:
    """Tells an observer about every trial that is over, once."""

    def __init__(self, search: Search, observer: SearchObserver) -> None:
        self._told = {(record.number, record.epochs) for record in search.records()}
        self._observer = observer

    def tell(self, study: optuna.Study) -> None:
        for record in records_of(study):
            if (record.number, record.epochs) not in self._told:
                self._told.add((record.number, record.epochs))
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
        study.sampler = sampler_of(self.plan, number, study)
        rungs, rung = self.plan.rungs(), _rung(trial)
        values = _readable({key: suggest(trial, key, where) for key, where in self.plan.space.items()})
        path = self.search.trial_path(number)
        try:
            task = self.plan.searched.of_trial(values).build(self.observer, data=self.data)
            run = Run.open(path, task.description)
            seen = prepared(task.embedder, task.data, self.observer)
            until = rungs[rung].epochs if self.plan.stops_trials else None
            outcome = run_trial(task, run, seen, _reporter(trial), self.observer, until=until)
        except (ValueError, TrainingError) as error:
            trial.set_user_attr("error", " ".join(str(error).split()))
            study.tell(trial, state=TrialState.FAIL)
            return
        over = outcome.given_up or rung + 1 == len(rungs)
        self._tell(study, trial, outcome, done=over and not outcome.given_up)
        if over:
            forget_weights(run)

    def _tell(self, study: optuna.Study, trial: optuna.Trial, outcome: TrialOutcome, *, done: bool) -> None:
        for name in ("score", "epoch", "map_at_r", "epochs", "steps", "metric"):
            trial.set_user_attr(name, getattr(outcome, name))
        if done:
            study.tell(trial, outcome.score)
        else:
            study.tell(trial, state=TrialState.PRUNED)

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


def _ended(trial: FrozenTrial) -> TrialRecord | None:
    """What came of a trial; ``None`` while it waits or runs."""
    if trial.state not in _STATES:
        return None
    attributes = trial.user_attrs
    return TrialRecord(
        attributes["number"],
        _readable(trial.params),
        _STATES[trial.state],
        attributes.get("score", trial.value) if trial.state != TrialState.COMPLETE else trial.value,
        attributes.get("epoch"),
        attributes.get("error"),
        attributes.get("map_at_r", 0.0),
        attributes.get("epochs", 0),
        attributes.get("steps", 0),
        attributes.get("metric", "recall_at_1"),
    )


def _readable(values: Values) -> Values:
    """Numbers that a person would write: four digits are finer than any trial can tell."""
    return {
        key: float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value
        for key, value in values.items()
    }
