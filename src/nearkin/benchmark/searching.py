"""The process that carries out one search of a tuned plan.

``python -m nearkin.benchmark.searching SEARCH TRIALS``
"""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from subprocess import Popen

from nearkin.allocation import keep_freed_memory
from nearkin.workers import ERROR, FAILED, OUTPUT, die_with_parent, start_worker, write_error


def start_search(path: Path, trials: int, *, threads: int) -> Popen[bytes]:
    """Start a process that carries out the search in a directory; it dies with this one."""
    (path / ERROR).unlink(missing_ok=True)
    return start_worker("nearkin.benchmark.searching", path, trials, threads=threads, output=path / OUTPUT)


def carry_out_search(path: Path, trials: int) -> int:
    """Do what is missing of a search, and write what it found; what goes wrong is kept in ``error.txt``."""
    from nearkin.atomic import write_json  # noqa: PLC0415  (seconds)
    from nearkin.benchmark.found import FOUND  # noqa: PLC0415
    from nearkin.benchmark.tuned import found_by  # noqa: PLC0415
    from nearkin.tuning.plan import SearchPlan  # noqa: PLC0415  (Optuna)
    from nearkin.tuning.search import Search  # noqa: PLC0415

    try:
        search = Search(path, SearchPlan.read(path / "search.json"))
        search.run(trials)
        write_json(path / FOUND, found_by(search).to_dict())
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        write_error(path, reason, traceback.format_exc())
        return FAILED
    return 0


def main(arguments: Sequence[str]) -> int:
    """Carry out the search in the directory that is the first argument, with as many trials as the second."""
    keep_freed_memory()
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the benchmark, which then ends its workers
    return carry_out_search(Path(arguments[0]), int(arguments[1]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
