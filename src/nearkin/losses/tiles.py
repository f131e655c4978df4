"""Proxy losses over tiles of classes, and over classes that several processes share.

S of a million classes does not fit into memory. What a loss needs of it does: each sample's own
similarities, and sums of exponentials. They are found in one pass over tiles of classes; a second pass makes
each tile again and carries its weights ∂L/∂S to both sides. Memory is O(B · tile + C · D), of which C · D is
the gradient.

Where each process owns a slice of the classes, the same sums are exchanged between the processes, a few
numbers per sample, and the gradient of the embeddings; similarities and proxies are not.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from nearkin.losses.similarity import Side, full_precision, inverse_of, normalise, refuse_second_derivative

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from nearkin.losses.proxy import ProxyLoss

MOST_AT_ONCE = 1 << 26
"""Similarities of a batch up to which they are made at once, if a loss is not told otherwise."""
_DIGIT = 11
"""Binary digits of a key that are found in one pass."""
_TILE = 1 << 22
"""Similarities of a tile, if a loss is not told otherwise."""


class Slice(NamedTuple):
    """The classes that a process owns.

    Attributes:
        first: The first of them.
        size: How many they are.
        group: The processes that share all classes; none if this one has all.
        shared: Whether there are other processes.
    """

    first: int
    size: int
    group: ProcessGroup | None = None
    shared: bool = False

    def labels(self, labels: Tensor) -> Tensor:
        """Labels counted from the first class; −1 for the classes of others."""
        own = labels - self.first
        return torch.where((own >= 0) & (own < self.size), own, -1)

    def sum(self, numbers: Tensor) -> Tensor:
        """The sum over processes, in place."""
        if self.shared:
            dist.all_reduce(numbers, group=self.group)
        return numbers

    def largest(self, numbers: Tensor) -> Tensor:
        """The maximum over processes, in place."""
        if self.shared:
            dist.all_reduce(numbers, op=dist.ReduceOp.MAX, group=self.group)
        return numbers


class Tiled(NamedTuple):
    """What is compared.

    Attributes:
        loss: Says what becomes of similarities.
        classes: The labels, ``(B,)``.
        places: Of the labels' classes among the proxies, ``(B,)``; −1 where another process has them.
        tile: Classes of a tile.
        owned: The classes of this process.
        with_gradient: Whether it will be differentiated.
    """

    loss: ProxyLoss
    classes: Tensor
    places: Tensor
    tile: int
    owned: Slice
    with_gradient: bool


def classes_of_a_tile(samples: int, proxies_per_class: int) -> int:
    """How many classes a tile has, if a loss is not told."""
    return max(1, _TILE // (max(1, samples) * proxies_per_class))


def through_tiles(tiled: Tiled, samples: Side, proxies: Tensor) -> Tensor:
    """The value of a loss, differentiable in embeddings and proxies ``(C, D)`` or ``(C, K, D)``."""
    value: Tensor = _ThroughTiles.apply(tiled, *samples, proxies)  # type: ignore[no-untyped-call]
    return value


class _ThroughTiles(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tiled: Tiled, rows: Tensor, norms: Tensor | None, proxies: Tensor) -> Tensor:
        with full_precision(rows):
            samples = rows if norms is None else rows * inverse_of(norms)
            work = Work(tiled, samples, proxies, on_sphere=norms is not None)
            value, to_rows, to_proxies = work.run()
            if norms is not None:
                to_rows = _across(to_rows, work.samples).mul_(inverse_of(norms))
        ctx.save_for_backward(to_rows, to_proxies)
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        to_rows, to_proxies = ctx.saved_tensors
        return None, to_rows * gradient, None, to_proxies * gradient


class Work:
    """One batch against all tiles."""

    def __init__(self, tiled: Tiled, samples: Tensor, proxies: Tensor, *, on_sphere: bool) -> None:
        self.tiled, self.samples, self.on_sphere = tiled, samples, on_sphere
        self.proxies = proxies if proxies.dim() == 3 else proxies.unsqueeze(1)
        self.shape = proxies.shape
        self.mine = (tiled.places >= 0).nonzero().squeeze(1)
        self.own_places = tiled.places[self.mine]
        self.own_proxies = self._directions(self.proxies[self.own_places])
        products = (self.own_proxies @ samples[self.mine].unsqueeze(2)).squeeze(2)
        own = samples.new_zeros(len(samples), self.proxies.shape[1]).index_copy_(0, self.mine, products)
        self.own = tiled.owned.sum(own)
        tiled.loss.look_ahead(self)

    def run(self) -> tuple[Tensor, Tensor, Tensor]:
        """The value; and gradients by unit rows and by proxies, where wanted."""
        with_gradient = self.tiled.with_gradient
        by_rows = self.tiled.loss.tiling == "rows"
        value, weights_of_own, tiles = self._softmax() if by_rows else self._anchors()
        to_samples = torch.zeros_like(self.samples)
        towards = torch.zeros_like(self.proxies) if with_gradient else self.proxies[:0]
        for start, others in self._tiles():
            S = self.samples @ others.flatten(0, 1).T
            added, weights = tiles(S, start)
            value = value + added
            if with_gradient:
                to_samples.addmm_(weights, others.flatten(0, 1))
                towards[start : start + len(others)] = (weights.T @ self.samples).view(others.shape)
        if with_gradient:
            self._add_own(weights_of_own, to_samples, towards)
            if self.on_sphere:
                self._leave_the_sphere(towards)
        if not by_rows:
            value = self.tiled.owned.sum(value)
        if self.tiled.loss.training:
            self.tiled.loss.remember(self.tiled.loss.own_class(self.own.detach()))
        return value, self.tiled.owned.sum(to_samples), towards.view(-1, *self.shape[1:])

    def _tiles(self) -> Iterator[tuple[int, Tensor]]:
        for start in range(0, len(self.proxies), self.tiled.tile):
            yield start, self._directions(self.proxies[start : start + self.tiled.tile])

    def _directions(self, proxies: Tensor) -> Tensor:
        return normalise(proxies) if self.on_sphere else proxies

    def _softmax(self) -> tuple[Tensor, Tensor, Any]:
        """Of ``mean (log Σ_c e^logit − own logit)``: the value, the own weights, and what a tile gives."""
        loss, B = self.tiled.loss, len(self.samples)
        with torch.enable_grad():
            leaf = self.own.requires_grad_()
            own = loss.own_class(leaf)
            own_logits = loss.own_logits(own)
        cosine, logits = own.detach(), own_logits.detach()
        others = self._sum_of_others(cosine)
        total = torch.logaddexp(others, logits) if loss.own_in_sum else others
        value = (total - logits).mean()
        to_own = (logits - total).exp_().sub_(1) if loss.own_in_sum else -torch.ones_like(logits)
        if not loss.own_in_sum and bool((others == -inf).all()):  # a single class: nothing to learn
            value, to_own, total = torch.zeros_like(value), torch.zeros_like(logits), torch.zeros_like(total)
        (weights_of_own,) = torch.autograd.grad(own_logits, leaf, to_own / B)

        def of_tile(S: Tensor, start: int) -> tuple[Tensor, Tensor]:
            if not self.tiled.with_gradient:
                return value.new_zeros(()), S
            with torch.enable_grad():
                S.requires_grad_()
                others = loss.other_logits(loss.by_class(S), cosine)
            shares = (others.detach() - total).exp_().div_(B)
            self._drop_own_(shares, start, 0)
            (weights,) = torch.autograd.grad(others, S, shares)
            return value.new_zeros(()), weights

        return value, weights_of_own, of_tile

    def _sum_of_others(self, cosine: Tensor) -> Tensor:
        """``log Σ e^logit`` over all classes but the own, of all processes, ``(B, 1)``."""
        loss = self.tiled.loss
        parts = [torch.full_like(cosine, -inf)]
        for start, others in self._tiles():
            logits = loss.other_logits(loss.by_class(self.samples @ others.flatten(0, 1).T), cosine)
            self._drop_own_(logits, start, -inf)
            parts.append(logits.logsumexp(dim=1, keepdim=True))
        log = torch.cat(parts, dim=1).logsumexp(dim=1, keepdim=True)
        largest = self.tiled.owned.largest(log.clone())
        shift = torch.where(largest == -inf, 0, largest)
        return shift + self.tiled.owned.sum((log - shift).exp_()).log_()

    def _anchors(self) -> tuple[Tensor, Tensor, Any]:
        """Of a term of the own similarities and a mean over classes: value, own weights, and a tile's."""
        loss, owned = self.tiled.loss, self.tiled.owned
        compared = self.compared()
        value, weights_of_own = loss.own_term(self.own, self.tiled.classes)
        if owned.shared and dist.get_rank(owned.group):
            value = torch.zeros_like(value)  # it is in the first process's sum

        def of_tile(S: Tensor, start: int) -> tuple[Tensor, Tensor]:
            with_gradient = self.tiled.with_gradient
            among = torch.ones_like(S, dtype=torch.bool)
            self._drop_own_(among, start, False)
            with torch.set_grad_enabled(with_gradient):
                S.requires_grad_(with_gradient)
                terms = loss.column_terms(S, among).sum() / compared
            weights = torch.autograd.grad(terms, S)[0] if with_gradient else S
            return terms.detach(), weights

        return value, weights_of_own, of_tile

    def compared(self) -> int:
        """How many classes are compared, of all processes."""
        return int(self.tiled.owned.sum(torch.tensor(len(self.proxies), device=self.samples.device)))

    def nth_largest(self, n: int) -> Tensor:
        """The keys, by :func:`in_order`, of each sample's n-th largest similarity to other classes' proxies.

        Found digit after digit, each by a pass over the tiles that counts; ``(B, 1)``, above all others for
        n = 0.
        """
        width = torch.finfo(self.samples.dtype).bits
        B, K = len(self.samples), self.proxies.shape[1]
        if n == 0:
            return torch.full((B, 1), torch.iinfo(torch.int64).max, device=self.samples.device)
        found = torch.zeros(B, 1, dtype=torch.int64, device=self.samples.device)
        missing = torch.full_like(found, n)
        for shift in reversed(range(0, width, _DIGIT)):
            counts = torch.zeros(B, 1 << (_DIGIT + 1), dtype=torch.int64, device=found.device)
            for start, others in self._tiles():
                keys = in_order(self.samples @ others.flatten(0, 1).T).view(B, -1, K)
                self._drop_own_(keys, start, torch.iinfo(torch.int64).min)
                keys = keys.flatten(1) >> shift
                first = shift + _DIGIT >= width  # whose digit has a sign
                digits = keys + (1 << _DIGIT) if first else keys & ((1 << _DIGIT) - 1)
                inside = digits >= 0 if first else keys >> _DIGIT == found
                counts.scatter_add_(1, digits.clamp_(min=0), inside.long())
            above = self.tiled.owned.sum(counts).flip(1).cumsum(1)
            place = (above < missing).sum(dim=1, keepdim=True)
            before = torch.where(place > 0, above.gather(1, (place - 1).clamp_(min=0)), 0)
            missing -= before
            digit = counts.shape[1] - 1 - place
            found = digit - (1 << _DIGIT) if shift + _DIGIT >= width else (found << _DIGIT) + digit
        return found

    def _drop_own_(self, numbers: Tensor, start: int, value: float) -> None:
        """Overwrite the entries of the own classes in a tile ``(B, c)``."""
        columns = self.tiled.places - start
        inside = ((columns >= 0) & (columns < numbers.shape[1])).nonzero().squeeze(1)
        numbers[inside, columns[inside]] = value

    def _add_own(self, weights: Tensor, to_samples: Tensor, towards: Tensor) -> None:
        """Add what the own similarities give, to both sides."""
        weights = weights[self.mine].unsqueeze(2)
        to_samples.index_add_(0, self.mine, (weights * self.own_proxies).sum(dim=1))
        towards.index_add_(0, self.own_places, weights * self.samples[self.mine].unsqueeze(1))

    def _leave_the_sphere(self, towards: Tensor) -> None:
        """From gradients of directions to those of proxies, in place, tile after tile."""
        for start, directions in self._tiles():
            part = slice(start, start + len(directions))
            lengths = torch.linalg.vector_norm(self.proxies[part], dim=-1, keepdim=True)
            towards[part] = _across(towards[part], directions).mul_(inverse_of(lengths))


def in_order(numbers: Tensor) -> Tensor:
    """Keys, int64, that are in the order of the numbers.

    >>> in_order(torch.tensor([-1.0, -0.5, 0.0, 2.0])).diff() > 0
    tensor([True, True, True])
    """
    of_width = torch.int32 if numbers.dtype == torch.float32 else torch.int64
    bits = numbers.contiguous().view(of_width).to(torch.int64)
    return bits ^ ((bits >> 63) & (torch.iinfo(of_width).max))


def _across(towards: Tensor, directions: Tensor) -> Tensor:
    """Gradients ``(…, D)`` less their part along unit vectors."""
    return towards - directions * (towards * directions).sum(dim=-1, keepdim=True)
