"""Processes that read samples need open files, of which a shell may allow few."""

from __future__ import annotations

import sys

_OF_A_PROCESS = 64  # libraries, pipes, checkpoints, and some to spare
_OF_A_WORKER = 16  # its pipes, and every tensor of the batches it has ready


def allow_open_files(workers: int) -> None:
    """Raise this process's limit of open files as far as so many workers need.

    Raises:
        ValueError: The system allows fewer.
    """
    if workers == 0 or sys.platform == "win32":
        return
    import resource  # noqa: PLC0415  (not on Windows)

    needed = _OF_A_PROCESS + _OF_A_WORKER * workers
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ValueError(
            f"data.workers={workers} needs about {needed} open files and the system allows {hard}: raise "
            "ulimit -n, or set data.workers=0"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
