"""Proxies that the processes of a training divide among themselves, and the one checkpoint of all of them.

Each process owns the proxies of a slice of the classes and the optimiser's state for them. The loss exchanges
sums between the processes, never similarities or proxies: see :meth:`nearkin.losses.ProxyLoss.shard`. A
checkpoint is that of a single process, with the proxies of all: a run may go on with more or fewer processes.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from nearkin.losses.base import Loss
from nearkin.losses.proxy import ProxyLoss
from nearkin.training.distributed import Processes

_PROXIES, _DRAWS, _ROWS = "proxies", "draws", "rows"


class ClassSlices:
    """The slice of one process; alone, or where classes are not divided, everything stays as it is.

    Args:
        loss: Keeps the proxies of this process's classes only, from now on.
        processes: Who divides the classes.
        divided: Whether they are to be divided.

    Raises:
        ValueError: If the loss has no proxies that can be divided.
    """

    def __init__(self, loss: Loss, processes: Processes, *, divided: bool) -> None:
        self._processes = processes
        self._loss: ProxyLoss | None = None
        if not divided or processes.count == 1:
            return
        if not isinstance(loss, ProxyLoss):
            raise ValueError(f"loss.sharded=true: {loss.name} has no classes to divide among processes")
        if loss.num_classes < processes.count:
            raise ValueError(
                f"loss.sharded=true: {loss.num_classes} classes cannot be divided among "
                f"{processes.count} processes"
            )
        self._owned = processes.share(loss.num_classes)
        loss.shard(processes.rank, processes.count)
        self._loss = loss

    def common(self, loss: nn.Module) -> list[nn.Parameter]:
        """The parameters of the loss that every process has."""
        divided = None if self._loss is None else self._loss.proxies
        return [parameter for parameter in loss.parameters() if parameter is not divided]

    def collect_loss(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The state of the loss, in the first process with the proxies of all."""
        return self._collect(state, _PROXIES)

    def own_loss(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Of such a state, what is this process's."""
        own = self._own(state, _PROXIES)
        if self._loss is not None and _DRAWS in own:  # each process draws from its own slice
            seed, step = own[_DRAWS].tolist()
            own[_DRAWS] = torch.tensor([seed + self._processes.rank, step])
        return own

    def collect_watched(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What the watchdogs keep, in the first process of all proxies."""
        return self._collect(tensors, _PROXIES)

    def own_watched(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Of that, what is about the proxies of this process."""
        return self._own(tensors, _PROXIES)

    def collect_moments(
        self, optimizer: torch.optim.Optimizer, moments: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """An optimiser's tensors, by ``parameter.name``; in the first process with those of all proxies."""
        if self._loss is None:
            return moments
        index = self._place_in(optimizer)
        rows = f"{index}.{_ROWS}"
        whole = dict(moments)
        for name, tensor in moments.items():
            if name.partition(".")[0] == index and tensor.dim():
                whole[name] = self._processes.collect(tensor + self._owned.start if name == rows else tensor)
        return whole

    def own_moments(
        self, optimizer: torch.optim.Optimizer, moments: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Of such tensors, those of this process."""
        if self._loss is None:
            return dict(moments)
        index = self._place_in(optimizer)
        rows = moments.get(f"{index}.{_ROWS}")
        first, end = self._owned.start, self._owned.stop
        mine = slice(first, end) if rows is None else ((rows >= first) & (rows < end)).nonzero().squeeze(1)
        own = dict(moments)
        for name, tensor in moments.items():
            if name.partition(".")[0] == index and tensor.dim():
                own[name] = tensor[mine]
        if rows is not None:
            own[f"{index}.{_ROWS}"] = rows[mine] - first
        return own

    def _place_in(self, optimizer: torch.optim.Optimizer) -> str:
        assert self._loss is not None
        parameters = (one for group in optimizer.param_groups for one in group["params"])
        return next(str(index) for index, one in enumerate(parameters) if one is self._loss.proxies)

    def _collect(self, tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
        if self._loss is None or name not in tensors:
            return dict(tensors)
        return {**tensors, name: self._processes.collect(tensors[name])}

    def _own(self, tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
        if self._loss is None or name not in tensors:
            return dict(tensors)
        return {**tensors, name: tensors[name][self._owned.start : self._owned.stop]}
