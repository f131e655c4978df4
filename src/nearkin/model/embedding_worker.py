"""A process that embeds parts of a large work beside others; it is told the folder of the work.

Whoever embeds a part holds its lock, which the system takes back when the process ends, however it ends: the
part of a lost worker is free for another one. A part is whole or not there.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

import torch

from nearkin.model.model import Model
from nearkin.model.vector_files import JOB, work_of


def main(folder: str) -> None:
    """Embed parts until all are there, or somebody else embeds them."""
    _end_with_parent()
    home = Path(folder)
    job = json.loads((home / JOB).read_text(encoding="utf-8"))
    torch.set_num_threads(int(job["threads"]))
    try:
        work_of(Model.read(home / "model"), job).embed_free_parts(skip_bad=bool(job["skip_bad"]))
    except (ValueError, OSError):  # a bad file, which the process that started this one comes to, and tells
        sys.exit(1)


def _end_with_parent() -> None:
    """End this process when the pipe from its parent closes, which no kind of death can prevent."""

    def wait() -> None:
        os.read(sys.stdin.fileno(), 1)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    main(sys.argv[1])
