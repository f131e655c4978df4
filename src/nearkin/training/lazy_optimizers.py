"""Optimisers for proxies of very many classes: rows that a step does not compare cost it nothing.

A loss that samples its classes gives its proxies a sparse gradient, with rows for the compared classes only.
These optimisers are torch's in every other respect: dense gradients go the way they always went.

**The lazy update, exactly.** A row is treated as if it had an optimiser of its own that is called in the
steps whose gradient has the row, and in no other. Momentum, moments, weight decay and the count of steps by
which Adam corrects its moments belong to the row and rest while it rests; the learning rate is that of the
moment. If every step has every row, this is the dense optimiser.

State is kept for rows that had a gradient at least once, and a checkpoint holds these rows only. Rows in half
precision are updated in float32 and rounded to the nearest number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

__all__ = ["LAZY", "SGD", "Adam", "AdamW"]

_ROWS, _STEPS = "rows", "steps"


class RowState:
    """What an optimiser remembers of some rows of a parameter, in the order in which they first came.

    Args:
        parameter: ``(C, …)``.
        names: Of the tensors that are kept for each row, each of the shape of a row.
    """

    def __init__(self, parameter: Tensor, names: tuple[str, ...]) -> None:
        self._places = torch.full((len(parameter),), -1, dtype=torch.int32, device=parameter.device)
        self._count = 0
        self._rows = torch.empty(0, dtype=torch.long, device=parameter.device)
        self._steps = torch.empty(0, dtype=torch.int32, device=parameter.device)
        dtype = torch.float64 if parameter.dtype == torch.float64 else torch.float32
        empty = torch.empty(0, *parameter.shape[1:], dtype=dtype, device=parameter.device)
        self._moments = dict.fromkeys(names, empty)

    def __len__(self) -> int:
        return self._count

    def places(self, rows: Tensor) -> Tensor:
        """Where these rows are remembered; new ones get a place, with zeros."""
        places = self._places[rows]
        new = rows[places < 0]
        if len(new):
            self._make_room(len(new))
            end = self._count + len(new)
            self._rows[self._count : end] = new
            self._places[new] = torch.arange(self._count, end, dtype=torch.int32, device=rows.device)
            self._count = end
            places = self._places[rows]
        return places.long()

    def _make_room(self, more: int) -> None:
        """At least twice the memory, if there is not enough."""
        needed = self._count + more
        if needed <= len(self._rows):
            return
        size = min(max(needed, 2 * len(self._rows)), len(self._places))
        self._rows, self._steps = _grown(self._rows, size), _grown(self._steps, size)
        self._moments = {name: _grown(moment, size) for name, moment in self._moments.items()}

    def count_step(self, places: Tensor) -> Tensor:
        """How often these rows have been updated, this time included, ``(n,)`` in the moments' dtype."""
        steps = self._steps[places] + 1
        self._steps[places] = steps
        return steps.to(next(iter(self._moments.values())).dtype)

    def read(self, name: str, places: Tensor) -> Tensor:
        """A copy of what is remembered, ``(n, …)``."""
        return self._moments[name][places]

    def write(self, name: str, places: Tensor, values: Tensor) -> None:
        """Remember something else."""
        self._moments[name][places] = values

    def tensors(self) -> dict[str, Tensor]:
        """All of it, for a checkpoint."""
        kept = {_ROWS: self._rows, _STEPS: self._steps, **self._moments}
        return {name: tensor[: self._count] for name, tensor in kept.items()}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Take back what :meth:`tensors` gave."""
        rows = tensors[_ROWS].to(self._places.device)
        self._places.fill_(-1)
        self._places[rows] = torch.arange(len(rows), dtype=torch.int32, device=rows.device)
        self._rows, self._count = rows.clone(), len(rows)
        self._steps = tensors[_STEPS].to(self._steps).clone()
        self._moments = {name: tensors[name].to(one).clone() for name, one in self._moments.items()}


def _grown(tensor: Tensor, size: int) -> Tensor:
    larger = tensor.new_zeros(size, *tensor.shape[1:])
    larger[: len(tensor)] = tensor
    return larger


class _Lazy(Optimizer):
    """What is added to one of torch's optimisers."""

    moments: tuple[str, ...]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move the rows of sparse gradients by themselves, and everything else as torch does."""
        value = None
        if closure is not None:
            with torch.enable_grad():
                value = closure()
        sparse = [
            (group, parameter, parameter.grad)
            for group in self.param_groups
            for parameter in group["params"]
            if parameter.grad is not None and parameter.grad.is_sparse
        ]
        for group, parameter, gradient in sparse:
            self._move_rows(group, parameter, gradient)
            parameter.grad = None
        super().step()
        for _, parameter, gradient in sparse:
            parameter.grad = gradient
        return value

    @property
    def _row_states(self) -> dict[Tensor, RowState]:
        states: dict[Tensor, RowState] = self.__dict__.setdefault("_lazy_rows", {})
        return states

    @torch.no_grad()
    def _move_rows(self, group: dict[str, Any], parameter: Tensor, gradient: Tensor) -> None:
        gradient = gradient.coalesce()
        rows = gradient.indices()[0]
        if not len(rows):
            return
        if parameter not in self._row_states:
            self._row_states[parameter] = RowState(parameter, self.moments)
        state = self._row_states[parameter]
        places = state.places(rows)
        dtype = torch.promote_types(parameter.dtype, torch.float32)
        values, towards = parameter[rows].to(dtype), gradient.values().to(dtype)
        if group["maximize"]:
            towards = -towards
        self._update(group, values, towards, state, places)
        parameter[rows] = values.to(parameter.dtype)

    def _update(
        self, group: dict[str, Any], values: Tensor, gradient: Tensor, state: RowState, places: Tensor
    ) -> None:
        """Move ``values``, in place: rows of a parameter, whose gradient and state are given."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Torch's, with the remembered rows of parameters with sparse gradients."""
        whole = super().state_dict()
        for index, parameter in enumerate(self._parameters()):
            if parameter in self._row_states:
                whole["state"][index] = self._row_states[parameter].tensors()
        return whole

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
        of_rows = {index: kept for index, kept in state_dict["state"].items() if _ROWS in kept}
        others = {index: kept for index, kept in state_dict["state"].items() if index not in of_rows}
        super().load_state_dict({**state_dict, "state": others})
        self._row_states.clear()
        for index, parameter in enumerate(self._parameters()):
            if index in of_rows:
                self._row_states[parameter] = RowState(parameter, self.moments)
                self._row_states[parameter].load(of_rows[index])

    def _parameters(self) -> list[Tensor]:
        return [parameter for group in self.param_groups for parameter in group["params"]]


class SGD(_Lazy, torch.optim.SGD):
    """``torch.optim.SGD`` that also takes sparse gradients with momentum, lazily.

    >>> weight = torch.nn.Parameter(torch.zeros(1000, 2))
    >>> optimizer = SGD([weight], lr=1.0, momentum=0.9)
    >>> weight.grad = torch.sparse_coo_tensor([[7]], torch.ones(1, 2), (1000, 2), check_invariants=True)
    >>> optimizer.step()
    >>> weight[7], optimizer.state_dict()["state"][0]["rows"]
    (tensor([-1., -1.], grad_fn=<SelectBackward0>), tensor([7]))
    """

    moments = ("momentum_buffer",)

    def _update(
        self, group: dict[str, Any], values: Tensor, gradient: Tensor, state: RowState, places: Tensor
    ) -> None:
        momentum = group["momentum"]
        if group["weight_decay"]:
            gradient = gradient.add(values, alpha=group["weight_decay"])
        if momentum:
            steps = state.count_step(places)
            first = _by_row(steps, values) == 1
            buffer = state.read("momentum_buffer", places).mul_(momentum)
            buffer.add_(gradient, alpha=1 - group["dampening"])
            buffer = torch.where(first, gradient, buffer)
            state.write("momentum_buffer", places, buffer)
            gradient = gradient.add(buffer, alpha=momentum) if group["nesterov"] else buffer
        values.add_(gradient, alpha=-float(group["lr"]))


class Adam(_Lazy, torch.optim.Adam):
    """``torch.optim.Adam`` that also takes sparse gradients, lazily."""

    moments = ("exp_avg", "exp_avg_sq")
    decoupled = False
    """Whether weights decay by themselves, and not through the gradient."""

    def _update(
        self, group: dict[str, Any], values: Tensor, gradient: Tensor, state: RowState, places: Tensor
    ) -> None:
        if group["amsgrad"]:
            raise ValueError("amsgrad=True: sampled classes have no AMSGrad, use amsgrad=False")
        lr, decay, (beta1, beta2) = float(group["lr"]), group["weight_decay"], group["betas"]
        if decay and self.decoupled:
            values.mul_(1 - lr * decay)
        elif decay:
            gradient = gradient.add(values, alpha=decay)
        steps = _by_row(state.count_step(places), values)
        average = state.read("exp_avg", places).lerp_(gradient, 1 - beta1)
        square = state.read("exp_avg_sq", places).mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        state.write("exp_avg", places, average)
        state.write("exp_avg_sq", places, square)
        denominator = square.sqrt_().div_((1 - beta2**steps).sqrt_()).add_(group["eps"])
        values.sub_(average.div_(denominator).mul_(lr / (1 - beta1**steps)))


class AdamW(Adam, torch.optim.AdamW):
    """``torch.optim.AdamW`` that also takes sparse gradients, lazily."""

    decoupled = True


LAZY = SGD | Adam
"""All of them, for ``isinstance``."""


def _by_row(numbers: Tensor, rows: Tensor) -> Tensor:
    """Numbers ``(n,)`` in a shape that can be compared with rows ``(n, …)``."""
    return numbers.view(-1, *[1] * (rows.dim() - 1))
