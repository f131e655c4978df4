"""A process that embeds shards: ``python -m nearkin.model.embedding_worker FOLDER``.

Shards come by its standard input and chunks go back by its standard output: see
:mod:`nearkin.model.embedding_workers`. It ends when the other end of its input is closed, which no kind of
death of the process that started it can prevent.
"""

from __future__ import annotations

import json
import os
import pickle
import queue
import signal
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from nearkin.data import Samples
from nearkin.model.embedding_workers import JOB, MODEL, embed_shard, read_model
from nearkin.workers import FAILED


def main(folder: str) -> None:
    """Embed what comes in, for as long as something may."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    back = Connection(os.dup(1), readable=False)
    os.dup2(2, 1)  # what anybody prints is no answer
    shards: queue.SimpleQueue[tuple[int, bytes]] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(shards,), daemon=True).start()
    job = json.loads((Path(folder) / JOB).read_text(encoding="utf-8"))
    what = "this model"
    try:
        model = read_model(Path(folder) / MODEL, job["fingerprint"]).to(job["device"])
        what = "these samples"
        while True:
            number, pickled = shards.get()
            samples: Samples = pickle.loads(pickled)  # noqa: S301  (from the process that started this one)
            back.send_bytes(pickle.dumps((number, embed_shard(model, samples, job))))
    except Exception as error:
        with suppress(OSError):  # nobody reads any more
            back.send_bytes(pickle.dumps(f"{what}: {error}"))
        threading.Event().wait()  # for the end, which whoever reads this brings


def _receive(shards: queue.SimpleQueue[tuple[int, bytes]]) -> None:
    """Take shards in while others are embedded."""
    coming = Connection(0, writable=False)
    try:
        while True:
            shards.put(pickle.loads(coming.recv_bytes()))  # noqa: S301  (from the process that started this one)
    except (EOFError, OSError):
        os._exit(FAILED)


if __name__ == "__main__":
    main(sys.argv[1])
