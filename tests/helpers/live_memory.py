"""How many bytes of tensors live at once: what an algorithm holds, whatever the allocator makes of it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveMemory(TorchDispatchMode):
    """Counts the bytes of all storages that operations inside its block made and that still live."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self._before: set[int] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = {one.untyped_storage()._cdata for one in tree_leaves((args, kwargs)) if torch.is_tensor(one)}
        result = function(*args, **(kwargs or {}))
        for one in tree_leaves(result):
            if torch.is_tensor(one):
                storage = one.untyped_storage()
                if storage._cdata not in given:
                    self._alive[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self._alive = {key: entry for key, entry in self._alive.items() if not entry[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self._alive.values()))
        return result


def peak_bytes(work: Callable[[], object]) -> int:
    """The most bytes of new tensors that lived at one time during the work."""
    with LiveMemory() as memory:
        work()
    return memory.peak
