"""Executing a plan: what is missing is run, several at a time; one that fails does not stop the rest."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from nearkin.atomic import write_json
from nearkin.benchmark.found import FOUND, TUNING
from nearkin.benchmark.mirror import LOG, Mirror, mirrored
from nearkin.benchmark.plan import Plan, PlanError, PlannedRun, refuse_objects
from nearkin.benchmark.progress import Board, BoardObserver, RunProgress
from nearkin.benchmark.workforce import Event, LocalProcesses, Workforce
from nearkin.training import Run, RunError

_PAUSE = 0.1  # seconds between two looks at the workers
_LOOK_EVERY = 1.0  # seconds between two looks at everybody's metrics


def execute_plan(
    plan: Plan,
    folder: str | os.PathLike[str],
    *,
    jobs: int | None = None,
    ray: str | None = None,
    observer: BoardObserver | None = None,
) -> Board:
    """Execute those of a plan's runs that are not done, and say what became of all of them.

    A run that was broken off goes on from its last checkpoint; one that failed is tried again. Several
    benchmarks may share a local folder: none trains a run that another one is training.

    Args:
        plan: What to run.
        folder: Where the run directories go: a path, or an address such as ``s3://bucket/folder`` that
            fsspec can write to.
        jobs: Runs at a time; as many as there are cores or GPUs by default.
        ray: The address of a Ray cluster to run on (``auto``, or ``local`` for one that is started for the
            occasion) instead of processes of this machine.
        observer: Hears what happens.

    Raises:
        RunError: before anything runs, if one of the directories holds something else.
        PlanError: before anything runs, if a recipe holds objects that were given in Python.
    """
    refuse_objects(plan.runs())
    observer = observer or BoardObserver()
    planned, failed = _settled(plan, folder, jobs, ray, observer)
    with mirrored(folder, [run.name for run in planned]) as mirror:
        progresses = [
            RunProgress(run, _checked(Run(mirror.local / run.name, run.description()))) for run in planned
        ]
        board = Board(progresses, str(folder))
        summary = [{"name": run.name, **run.labels} for run in planned]
        write_json(mirror.local / "plan.json", {"plan": plan.name, "runs": summary})
        missing = [progress for progress in progresses if not progress.finish_if_done()]
        if missing:
            _Execution(board, missing, _workforce(plan, jobs, ray), observer, mirror).run_to_the_end()
    return replace(board, runs=[*board.runs, *failed])


def _settled(
    plan: Plan, folder: str | os.PathLike[str], jobs: int | None, ray: str | None, observer: BoardObserver
) -> tuple[list[PlannedRun], list[RunProgress]]:
    """The runs with their settings, after what is missing of the searches for them; and what failed of it."""
    if plan.tuning is None and not plan.found:
        return plan.runs(), []
    if "://" in str(folder):
        raise PlanError(f"a tuned plan needs a local folder for its searches, and {folder} is none")
    from nearkin.benchmark import tuned  # noqa: PLC0415  (only tuned plans need it)

    home = Path(folder)
    if plan.found:
        found, failed = tuned.found_for(plan), list[RunProgress]()
        tuned.keep_found(plan, home, list(found.values()))
    else:
        assert plan.tuning is not None
        if ray is not None and not (home / TUNING / FOUND).exists():
            raise PlanError(
                "searches run on this machine: tune without a Ray cluster first, and the same command with "
                "it then trains with what was found"
            )
        found, failed = tuned.tune_plan(plan, plan.tuning, home, jobs=jobs, observer=observer)
    return tuned.runs_with(plan, found), failed


def _workforce(plan: Plan, jobs: int | None, ray: str | None) -> Workforce:
    if ray is None:
        return LocalProcesses(jobs, cpus=plan.cpus)
    from nearkin.benchmark.cluster import RayTasks  # noqa: PLC0415  (an extra)

    return RayTasks(ray, jobs, cpus=plan.cpus, gpus=plan.gpus, retries=plan.retries)


def _checked(run: Run) -> Run:
    """The run, unless its directory holds another one or something else."""
    if run.path.exists():
        Run.open(run.path, run.description)
        _refuse_other_folder(run)
    return run


def _refuse_other_folder(run: Run) -> None:
    """A finished run is not read again to see what it was trained on: another folder is other data."""
    if not run.finished:
        return
    there, here = (_folder(one.terms) for one in (Run.existing(run.path), run))
    if there != here:
        raise RunError(
            f"{run.path} holds a finished run on {there or 'other data'}, not on {here or 'this data'}: "
            "choose another output directory"
        )


def _folder(terms: Mapping[str, Any]) -> str:
    """The folder or table of samples, where it is the data set; elsewhere it says only where that lies."""
    table = terms.get("data", {})
    is_data = table.get("name") in {"folder", "csv"} and table.get("root")
    return str(Path(table["root"]).resolve()) if is_data else ""


class _Execution:
    """Hands runs over to a workforce until all are done or have failed."""

    def __init__(
        self,
        board: Board,
        missing: Iterable[RunProgress],
        workforce: Workforce,
        observer: BoardObserver,
        mirror: Mirror,
    ) -> None:
        self._board, self._workforce, self._observer, self._mirror = board, workforce, observer, mirror
        self._open = deque(missing)
        self._looked = 0.0

    def run_to_the_end(self) -> None:
        try:
            self._board.jobs = self._workforce.jobs
            self._observer.begin(self._board)
            while self._board.in_state("waiting", "running", "elsewhere"):
                self._hand_over()
                for event in self._workforce.events():
                    self._take_note(event)
                self._look_around()
                time.sleep(_PAUSE)
        finally:
            self._observer.end(self._board)  # first: a second Ctrl-C must not leave the table behind
            self._workforce.stop()

    def _hand_over(self) -> None:
        """Start open runs while there is room; those that others have go to the end of the line."""
        for _ in range(len(self._open)):
            if not self._workforce.has_room():
                return
            progress = self._open.popleft()
            if progress.finish_if_done():  # by another benchmark, since the last look
                self._write_log("finished elsewhere", progress)
                self._observer.ended(self._board, progress)
            else:
                self._start(progress)

    def _start(self, progress: RunProgress) -> None:
        try:
            run = Run.open(progress.run.path, progress.run.description)
            run.begin()
            started = self._workforce.start(run)
        except (RunError, OSError) as error:  # of its directory or process: the others have theirs
            self._fail(progress, " ".join(str(error).split()))
            return
        if started:
            progress.state = "waiting"
        else:
            self._leave(progress)

    def _take_note(self, event: Event) -> None:
        progress = self._board.of(event.run)
        if event.kind == "begun":
            progress.begin()
            self._write_log("begun", progress)
        elif event.kind == "finished" and progress.finish_if_done():
            self._write_log("finished", progress)
            self._observer.ended(self._board, progress)
        elif event.kind == "taken":
            self._leave(progress)
        elif event.kind == "lost":
            progress.state = "waiting"
            self._write_log("lost", progress, event.reason)
        else:
            self._fail(progress, event.reason or "it ended without a result")

    def _leave(self, progress: RunProgress) -> None:
        """Another process has the run: ask again later."""
        progress.leave()
        self._open.append(progress)

    def _fail(self, progress: RunProgress, reason: str) -> None:
        progress.fail(reason)
        self._write_log("failed", progress, reason)
        self._observer.ended(self._board, progress)

    def _look_around(self) -> None:
        """Once in a while, see how far everybody is."""
        if time.monotonic() - self._looked < _LOOK_EVERY:
            return
        for progress in self._board.in_state("running", "elsewhere"):
            progress.look()
        self._board.jobs = self._workforce.jobs
        self._observer.look(self._board)
        self._mirror.push_now_and_then()
        self._looked = time.monotonic()

    def _write_log(self, event: str, progress: RunProgress, reason: str = "") -> None:
        """Add a line about a run to the folder's history."""
        line = {
            "time": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            "event": event,
            "run": progress.planned.name,
            "epoch": progress.epoch,
        }
        with (self._mirror.local / LOG).open("a", encoding="utf-8") as log:
            log.write(json.dumps(line | ({"reason": reason} if reason else {})) + "\n")
