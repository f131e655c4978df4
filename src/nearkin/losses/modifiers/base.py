"""What a modifier is: a loss around another loss, found by its name and applied in a fixed order."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar
from zlib import crc32

import torch
from torch import Tensor, nn

from nearkin.losses.base import Loss
from nearkin.losses.wrapping import LossFunction, WrappedLoss, as_loss
from nearkin.registry import Registry

HANDED = ("ids", "features", "teacher", "teacher_features", "clusters")
"""Keywords of ``forward`` that a training hands to whoever takes them, and that anybody else goes without."""

_OUTERMOST = 1000


class Modifier(Loss):
    """A loss around another one, which may be a modifier itself.

    A subclass states its ``forward``, whose keywords say what it needs beside embeddings and labels: a
    training hands ``ids`` (which sample each row is, ``(B,)``), ``features`` (what the head is given,
    ``(B, F)``) and ``teacher`` (embeddings by a moving average of the network, see :attr:`teacher_decay`) to
    a loss that takes them. :meth:`inner` calls the inner loss with what that one takes. Learnable parameters
    of a modifier, such as branches, belong to the loss: they are trained, saved and resumed with it, and no
    trained model has them.

    Args:
        loss: the inner loss, ours or anything :func:`~nearkin.losses.as_loss` takes.

    Attributes:
        loss: the inner loss.
        order: where a recipe puts it that names several: the smaller, the nearer to the loss itself.
        teacher_decay: the decay of a moving average of the network whose embeddings of the batch it wants as
            ``teacher=``; ``None`` if it wants none.
    """

    order: ClassVar[int] = _OUTERMOST
    teacher_decay: float | None = None

    def __init__(self, loss: Loss | nn.Module | LossFunction) -> None:
        super().__init__()
        self.loss = as_loss(loss)
        self.compares_samples = self.loss.compares_samples

    def inner(self, embeddings: Tensor, labels: Tensor, keywords: Mapping[str, Any]) -> Tensor:
        """The inner loss of a batch, a scalar or one value per sample; see :func:`call`."""
        return call(self.loss, embeddings, labels, keywords)

    def takes(self, keyword: str) -> bool:
        """What ``forward`` names, and what the inner loss takes."""
        return keyword in inspect.signature(self.forward).parameters or self.loss.takes(keyword)

    def asks(self, keyword: str) -> bool:
        """What ``forward`` names, and what the inner loss asks for."""
        return keyword in inspect.signature(self.forward).parameters or self.loss.asks(keyword)

    def resized(self, embedding_dim: int, generator: torch.Generator) -> Loss:
        """The same around a loss for embeddings of another size, with new parameters."""
        other = copy.deepcopy(self)
        other.loss = resized(self.loss, embedding_dim, generator)
        return other

    def param_groups(self, lr: float) -> list[dict[str, Any]]:
        """The inner loss's groups under their own names, and those of the modifier's own parameters."""
        own = super().param_groups(lr)
        return [
            *self.loss.param_groups(lr),
            *(group for group in own if not str(group["name"]).startswith("loss.")),
        ]

    def __getattr__(self, name: str) -> Any:
        """What is learnable in the loss inside (``proxies``, ``beta``), under its own name."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            inner = self.__dict__.get("_modules", {}).get("loss")
            parameters = {} if inner is None else base_of(inner)._parameters
            if name not in parameters:
                raise
            return parameters[name]


def call(loss: Loss, embeddings: Tensor, labels: Tensor, keywords: Mapping[str, Any]) -> Tensor:
    """The value of a loss inside a modifier.

    Args:
        loss: the loss.
        embeddings: ``(B, D)``, raw.
        labels: ``(B,)``, or what else it takes.
        keywords: of ``forward``; those that are ``None``, and what a training hands around without the loss
            taking it, are left out.
    """
    taken = {
        key: value
        for key, value in keywords.items()
        if value is not None and (key not in HANDED or loss.takes(key))
    }
    value: Tensor = loss(embeddings, labels, **taken)
    return value


registry: Registry[Loss] = Registry("modifier")
register = registry.register
unregister = registry.unregister
names = registry.names
get = registry.get


def build(name: str, loss: Loss | nn.Module | LossFunction, **keywords: Any) -> Loss:
    """A modifier around a loss, by its name.

    Args:
        name: one of ``names()``.
        loss: the inner loss, ours or anything :func:`~nearkin.losses.as_loss` takes.
        keywords: of the modifier.

    Raises:
        ValueError: for an unknown name or keyword, or a wrong value.

    >>> from nearkin import losses
    >>> build("mixup", losses.build("contrastive"), weight=0.2)
    Mixup(
      weight=0.2, alpha=2.0
      (loss): Contrastive(margin=0.5, metric='cosine', mining='all')
    )
    """
    return registry.build(name, loss, **keywords)


def in_order(chosen: Iterable[str]) -> list[str]:
    """Names of modifiers as they are applied, from the loss outwards.

    >>> in_order(["distil", "memory", "mixup"])
    ['mixup', 'memory', 'distil']
    """
    return sorted(chosen, key=lambda name: (getattr(get(name), "order", _OUTERMOST), name))


def modifiers_in(loss: nn.Module) -> list[Modifier]:
    """All modifiers around and inside a loss, from the outermost."""
    return [part for part in loss.modules() if isinstance(part, Modifier)]


def teacher_decay(loss: nn.Module) -> float | None:
    """The decay of the moving average that a loss wants as its teacher, ``None`` where it wants none.

    Raises:
        ValueError: Two of its modifiers want two.
    """
    wanted = {part.teacher_decay for part in modifiers_in(loss)} - {None}
    if len(wanted) > 1:
        told = " and ".join(str(decay) for decay in sorted(wanted, key=str))
        raise ValueError(f"a training keeps one moving average as teacher, but decays of {told} are wanted")
    return next(iter(wanted), None)


def base_of(loss: Loss) -> Loss:
    """The loss inside all modifiers."""
    return base_of(loss.loss) if isinstance(loss, Modifier) else loss


def resized(loss: Loss, embedding_dim: int, generator: torch.Generator) -> Loss:
    """A new loss of the same kind and hyperparameters for embeddings of another size.

    Args:
        loss: one of ours, or somebody's function.
        embedding_dim: the other size.
        generator: draws its proxies.

    Raises:
        ValueError: for a module of somebody's own with parameters, which may depend on the size.

    >>> from nearkin import losses
    >>> small = losses.build("proxy_anchor", num_classes=3, embedding_dim=2, margin=0.2)
    >>> resized(small, 5, torch.Generator())
    ProxyAnchor(num_classes=3, embedding_dim=5, alpha=32.0, margin=0.2)
    """
    if isinstance(loss, Modifier):
        return loss.resized(embedding_dim, generator)
    if isinstance(loss, WrappedLoss) and next(loss.parameters(), None) is not None:
        raise ValueError(
            f"{loss.name} has parameters of its own and cannot be made for embeddings of another size "
            f"({embedding_dim}): choose a registered loss"
        )
    keywords = inspect.signature(type(loss)).parameters
    if "embedding_dim" not in keywords:
        return copy.deepcopy(loss)
    given = {key: getattr(loss, key) for key in keywords if key not in ("embedding_dim", "generator")}
    drawn = {"generator": generator} if "generator" in keywords else {}
    other = type(loss)(**given, embedding_dim=embedding_dim, **drawn)
    other.reduction, other.validate = loss.reduction, loss.validate
    return other


def own_generator(generator: torch.Generator | None, purpose: str) -> torch.Generator:
    """A generator for one purpose that depends on the given one's seed and takes no number from it.

    So a loss draws the same numbers with a modifier around it as without.
    """
    seed = 0 if generator is None else generator.initial_seed()
    return torch.Generator().manual_seed((seed * 1_000_003 + crc32(purpose.encode())) % 2**63)
