"""Processes of one group for tests: forked, with everything imported, so that starting them takes no time."""

from __future__ import annotations

import multiprocessing
import os
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

_PATIENCE = 120


def found_together(work: Callable[..., Any], count: int, folder: Path, *arguments: Any) -> list[Any]:
    """What ``work(rank, *arguments)`` returns in each of ``count`` processes of a group."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking a process that may have threads
        processes = [
            multiprocessing.get_context("fork").Process(
                target=_one, args=(work, rank, count, folder, arguments)
            )
            for rank in range(count)
        ]
        for process in processes:
            process.start()
    for process in processes:
        process.join(_PATIENCE)
    assert [process.exitcode for process in processes] == [0] * count
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(count)]


def _one(work: Callable[..., Any], rank: int, count: int, folder: Path, arguments: tuple[Any, ...]) -> None:
    try:
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/meeting",
            rank=rank,
            world_size=count,
            timeout=timedelta(seconds=60),
        )
        torch.save(work(rank, *arguments), folder / f"{rank}.pt")
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)  # threads of gloo's may abort a process while Python shuts down
