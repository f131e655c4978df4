"""The process that carries out one run: ``python -m nearkin.benchmark.worker RUN``."""

from __future__ import annotations

import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

from filelock import Timeout

from nearkin.allocation import keep_freed_memory
from nearkin.workers import ERROR, FAILED, OUTPUT, TAKEN, die_with_parent, start_worker, write_error

_PATIENCE = 5.0  # seconds for a worker whose benchmark was killed to notice and let go


def start_run(
    run: Path,
    *,
    threads: int,
    environment: Mapping[str, str] | None = None,
    python_path: Sequence[str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process that carries out the run in a directory; it dies with this one.

    Args:
        run: A directory with a recipe.
        threads: That it may use.
        environment: Variables to set beside this process's own.
        python_path: Folders to import from, by default those of this process.
    """
    (run / ERROR).unlink(missing_ok=True)
    return start_worker(
        "nearkin.benchmark.worker",
        run,
        threads=threads,
        output=run / OUTPUT,
        environment=environment,
        python_path=python_path,
    )


def main(arguments: Sequence[str]) -> int:
    """Carry out the run in the directory that is the only argument."""
    keep_freed_memory()
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the benchmark, which then ends its workers
    from nearkin.training.run import lock_of  # noqa: PLC0415  (seconds)

    path = Path(arguments[0])
    try:
        lock = lock_of(path).acquire(timeout=_PATIENCE)
    except Timeout:
        return TAKEN
    with lock:
        return carry_out(path)


def carry_out(path: Path) -> int:
    """Execute the run; what goes wrong is kept in ``error.txt``."""
    from nearkin.protocols import execute  # noqa: PLC0415  (seconds: the lock is taken first)
    from nearkin.recipe import Recipe  # noqa: PLC0415
    from nearkin.training import Run  # noqa: PLC0415

    try:
        recipe = Recipe.read(path / "recipe.toml")
        begun = Run.existing(path)
        task = recipe.build(remembered=begun.chosen_before())
        execute(task, Run.open(path, task.description))
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        write_error(path, reason, traceback.format_exc())
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
