"""Worker processes: how they are started and stopped, how they end with their parent, and how they fail.

A worker holds the lock of the directory it works in as long as it lives, and it ends when the process that
started it does, however that ended: whoever is killed leaves nobody behind who trains on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from nearkin.atomic import write_text

ERROR = "error.txt"
OUTPUT = "output.txt"
FAILED = 1
TAKEN = 75  # what sysexits.h calls a temporary failure: somebody else has the run


def start_worker(
    module: str,
    *arguments: object,
    threads: int,
    output: Path | None = None,
    answers: bool = False,
    environment: Mapping[str, str] | None = None,
    python_path: Sequence[str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start ``python -m module arguments…``; a worker that calls :func:`die_with_parent` dies with this one.

    It finds whatever this process can import: its own modules and those of the working directory.

    Args:
        module: Such as ``nearkin.benchmark.worker``.
        *arguments: Its command line.
        threads: That it may use.
        output: The file that what it prints is added to; by default it prints where this process does.
        answers: Whether this process reads what it prints, from the process's ``stdout``.
        environment: Variables to set beside this process's own.
        python_path: Folders to import from, by default those of this process.
    """
    path = python_path if python_path is not None else import_folders()
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    variables = {
        "OMP_NUM_THREADS": str(threads),
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(filter(None, [*path, *inherited]))),
        **(environment or {}),
    }
    command = [sys.executable, "-m", module, *map(str, arguments)]
    if output is None:
        return _popen(command, variables, subprocess.PIPE if answers else None, None)
    with output.open("ab") as file:
        return _popen(command, variables, file.fileno(), file.fileno())


def _popen(
    command: list[str], variables: Mapping[str, str], output: int | None, errors: int | None
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603  (this interpreter, this package)
        command, stdin=subprocess.PIPE, stdout=output, stderr=errors, env=os.environ | variables
    )


def import_folders() -> list[str]:
    """Where this process imports from, beside what comes with the interpreter: plug-ins may lie there."""
    package = str(Path(__file__).absolute().parents[1])
    own = [str(Path(entry or ".").absolute()) for entry in sys.path]
    found = [entry for entry in [package, *own, str(Path.cwd())] if not _comes_with_python(Path(entry))]
    return [entry for entry in dict.fromkeys(found) if Path(entry).exists()]


def _comes_with_python(folder: Path) -> bool:
    prefixes = {Path(prefix) for prefix in (sys.prefix, sys.base_prefix, sys.exec_prefix)}
    lib = [prefix / part for prefix in prefixes for part in ("lib", "lib64", "Lib", "DLLs")]
    return any(folder == one or one in folder.parents for one in lib)


def stop_worker(process: subprocess.Popen[bytes]) -> None:
    """End a worker at once; everything it wrote is whole."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def die_with_parent() -> None:
    """End this process when the pipe from its parent closes, which no kind of death can prevent."""

    def wait() -> None:
        os.read(sys.stdin.fileno(), 1)  # not sys.stdin.read, whose lock a process cannot end with
        os._exit(FAILED)

    threading.Thread(target=wait, daemon=True).start()


def failure_of(run: Path, exit_code: int) -> str:
    """Why a worker ended with this code, in one line; for one that could not say so, its output is kept."""
    if exit_code != FAILED or not (run / ERROR).exists():
        output = (run / OUTPUT).read_text(encoding="utf-8", errors="replace")[-4000:]
        write_error(run, f"the process ended with {code_in_words(exit_code)}", output)
    return read_error(run)


def code_in_words(exit_code: int) -> str:
    """How a process ended.

    >>> code_in_words(3), code_in_words(-9)
    ('exit code 3', 'signal 9 (SIGKILL)')
    """
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


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
