"""The process that carries out one run: ``python -m nearkin.benchmark.worker RUN``.

It holds the lock of the run's directory as long as it lives, and it ends when the process that started it
does, however that ended: a benchmark that is killed leaves nobody behind who trains on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock, Timeout

import nearkin
from nearkin.allocation import keep_freed_memory
from nearkin.atomic import write_text

LOCK = ".lock"
ERROR = "error.txt"
OUTPUT = "output.txt"
FAILED = 1
TAKEN = 75  # what sysexits.h calls a temporary failure: somebody else has the run
_PATIENCE = 5.0  # seconds for a worker whose benchmark was killed to notice and let go


def lock_of(run: Path) -> FileLock:
    """The lock that whoever trains a run holds; the system frees it when its holder dies."""
    return FileLock(run / LOCK)


def is_taken(run: Path) -> bool:
    """Whether somebody trains the run now."""
    try:
        with lock_of(run).acquire(timeout=0):
            return False
    except Timeout:
        return True


def start_worker(
    run: Path, *, threads: int, environment: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a process that carries out the run in a directory; it dies with this one.

    Args:
        run: A directory with a recipe.
        threads: That it may use.
        environment: Variables to set beside this process's own.
    """
    package = str(Path(nearkin.__file__).parents[1])
    python_path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    variables = {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": python_path, **(environment or {})}
    (run / ERROR).unlink(missing_ok=True)
    with (run / OUTPUT).open("ab") as output:
        return subprocess.Popen(  # noqa: S603  (this interpreter, this package)
            [sys.executable, "-m", "nearkin.benchmark.worker", str(run)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env=os.environ | variables,
        )


def stop_worker(process: subprocess.Popen[bytes]) -> None:
    """End a worker at once; everything it wrote is whole."""
    process.kill()
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def failure_of(run: Path, exit_code: int) -> str:
    """Why a worker ended with this code, in one line; for one that could not say so, its output is kept."""
    if exit_code != FAILED or not (run / ERROR).exists():
        output = (run / OUTPUT).read_text(encoding="utf-8", errors="replace")[-4000:]
        write_error(run, f"the process ended with {_code_in_words(exit_code)}", output)
    return read_error(run)


def _code_in_words(exit_code: int) -> str:
    if exit_code >= 0:
        return f"exit code {exit_code}"
    name = signal.Signals(-exit_code).name if -exit_code in set(signal.Signals) else "unknown"
    return f"signal {-exit_code} ({name})"


def write_error(run: Path, reason: str, details: str) -> None:
    """Keep in ``error.txt`` why a run failed: the reason is its first line."""
    write_text(run / ERROR, f"{reason}\n\n{details}")


def read_error(run: Path) -> str:
    """The reason that ``error.txt`` gives in its first line."""
    return (run / ERROR).read_text(encoding="utf-8").partition("\n")[0]


def main(arguments: Sequence[str]) -> int:
    """Carry out the run in the directory that is the only argument."""
    keep_freed_memory()
    _die_with_the_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the benchmark, which then ends its workers
    path = Path(arguments[0])
    lock = lock_of(path)
    try:
        lock.acquire(timeout=_PATIENCE)
    except Timeout:
        return TAKEN
    with lock:
        return _carry_out(path)


def _die_with_the_parent() -> None:
    """End this process when the pipe from its parent closes, which no kind of death can prevent."""

    def wait() -> None:
        os.read(sys.stdin.fileno(), 1)  # not sys.stdin.read, whose lock a process cannot end with
        os._exit(FAILED)

    threading.Thread(target=wait, daemon=True).start()


def _carry_out(path: Path) -> int:
    """Execute the run; what goes wrong is kept in ``error.txt``."""
    from nearkin.protocols import execute  # noqa: PLC0415  (seconds: the lock is taken first)
    from nearkin.training import Run  # noqa: PLC0415

    try:
        execute(Run.existing(path))
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        write_error(path, reason, traceback.format_exc())
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
