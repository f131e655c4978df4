"""A process of its own that does trials of a search: ``python -m nearkin.tuning.worker``.

``Search.run`` starts it; it ends when whoever started it does.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import torch

from nearkin.training import Observer
from nearkin.tuning.plan import SearchPlan
from nearkin.tuning.search import Search, do_trials


def main(path: str, total: str, jobs: str) -> None:
    """Do trials until there are ``total``, with this process's share of the cores."""
    threading.Thread(target=_die_with_parent, daemon=True).start()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // int(jobs)))
    search = Search(Path(path), SearchPlan.read(Path(path) / "search.json"))
    try:
        do_trials(search, int(total), Observer())
    except (ValueError, OSError, RuntimeError) as error:
        sys.exit(f"nearkin: {error}")


def _die_with_parent() -> None:
    """The parent writes nothing: reading from it comes to an end when it is gone, even by kill -9."""
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
