"""Anybody's loss as one of ours: a function, or a module such as those of pytorch-metric-learning."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from nearkin.losses.base import Loss, check_embeddings, check_finite, check_labels, get
from nearkin.losses.similarity import at_least_float32, full_precision
from nearkin.registry import shortened

LossFunction = Callable[..., Tensor]
"""``(embeddings, labels) -> scalar``."""

_MAY_BE_LEFT_OUT = ("ids",)
"""Keywords that a loss may ignore without changing what is meant; any other is refused if it is not taken."""


def as_loss(loss: Loss | nn.Module | LossFunction, *, compares_samples: bool | None = None) -> Loss:
    """A :class:`Loss` that gives what ``loss(embeddings, labels)`` gives.

    Args:
        loss: a ``Loss``, which is returned as it is; any ``nn.Module``, whose parameters are then found by
            ``param_groups``; or any function ``(embeddings, labels) -> scalar``.
        compares_samples: whether it compares the samples of a batch with each other, and so needs batches
            with several of each class; without it, what the attribute of that name says, else ``True``.

    Raises:
        ValueError: for anything that cannot be called so, a class and a name included.

    >>> import torch
    >>> def spread(embeddings, labels):
    ...     return embeddings.var()
    >>> loss = as_loss(spread)
    >>> loss(torch.eye(2), torch.tensor([0, 1]))
    tensor(0.3333)
    >>> as_loss(loss) is loss
    True
    """
    if isinstance(loss, Loss):
        return loss
    return WrappedLoss(loss, compares_samples=compares_samples)


def compares_samples(
    loss: str | Loss | nn.Module | LossFunction, hyperparameters: Mapping[str, Any] | None = None
) -> bool:
    """Whether a loss compares the samples of a batch with each other, so that batches need positive pairs.

    Losses over proxies do not. Of what is not ours, the attribute ``compares_samples`` tells; without one it
    is taken to compare.

    Args:
        loss: a registered name, a loss, or what :func:`as_loss` takes.
        hyperparameters: of a registered name, on which it may depend.

    >>> compares_samples("multi_similarity"), compares_samples("proxy_anchor")
    (True, False)
    >>> compares_samples("proxy_repulsion", {"relations": 0.5})
    True
    """
    if isinstance(loss, str) and hyperparameters:
        compares_with = getattr(get(loss), "compares_with", None)
        if compares_with is not None:
            return bool(compares_with(hyperparameters))
    return bool(getattr(get(loss) if isinstance(loss, str) else loss, "compares_samples", True))


class WrappedLoss(Loss):
    """A loss that was not written for nearkin; made by :func:`as_loss`.

    Half precision is computed in float32, with or without autocast, as all our losses do. Keywords of
    ``forward`` (``references``, ``reference_labels``, ``weights``, ``reduction``, ``ids``) reach it where it
    takes them; where it does not, ``ids`` is left out and any other is refused.

    Args:
        loss: a module or function ``(embeddings, labels) -> scalar``.
        compares_samples: see :func:`as_loss`.
    """

    def __init__(self, loss: nn.Module | LossFunction, *, compares_samples: bool | None = None) -> None:
        if isinstance(loss, str):
            raise ValueError(f"{loss!r} is a name, not a loss: nearkin.losses.build({loss!r}) makes one")
        if inspect.isclass(loss):
            raise ValueError(f"{loss.__name__} is a class, not a loss: give an instance, {loss.__name__}(…)")
        if not callable(loss):
            raise ValueError(f"a loss is a module or function (embeddings, labels) -> scalar, not {loss!r}")
        _refuse_other_arguments(loss)
        super().__init__()
        self.loss = loss
        told = getattr(loss, "compares_samples", True) if compares_samples is None else compares_samples
        self.compares_samples = bool(told)

    def forward(self, embeddings: Tensor, labels: Tensor, **keywords: Any) -> Tensor:
        """The loss of a batch, a scalar.

        Args:
            embeddings: ``(B, D)``, raw.
            labels: ``(B,)`` integers or multi-hot ``(B, L)``.
            keywords: passed on where the wrapped loss takes them.
        """
        check_embeddings(embeddings)
        check_labels(labels, embeddings, multi_hot=True)
        if keywords.get("reduction", self.reduction) in (None, "mean"):  # what it gives by itself
            keywords.pop("reduction", None)
        else:
            keywords["reduction"] = "none"
        taken = {keyword: value for keyword, value in keywords.items() if self.takes(keyword)}
        for keyword in sorted(keywords.keys() - taken.keys() - set(_MAY_BE_LEFT_OUT)):
            if keywords[keyword] is not None:
                raise ValueError(f"{self.name} takes no {keyword}")
        with full_precision(embeddings):
            rows = at_least_float32(embeddings)
            if self.validate:
                check_finite(rows.detach())
            value = self.loss(rows, labels.long() if labels.dim() == 1 else labels, **taken)
            wanted = 1 if taken.get("reduction") == "none" else 0
            if not isinstance(value, Tensor) or value.dim() != wanted:
                raise ValueError(f"{self.name} must give a scalar tensor, not {_described(value)}")
            if value.requires_grad or not rows.requires_grad:
                return value
            self._refuse_constant(value.detach())
            # Some give 0 where there is nothing to learn: backward must work all the same.
            return value + rows.sum() * 0

    def _refuse_constant(self, value: Tensor) -> None:
        """Say that nothing could be learnt from a value without a gradient, unless it is 0 or not finite."""
        if bool((value.isfinite() & (value != 0)).any()):
            raise ValueError(
                f"{self.name} gives {float(value.sum()):.4g} without a gradient, so that nothing would be "
                "learnt: compute it from the embeddings with torch, without detach, no_grad, item or numpy"
            )

    def takes(self, keyword: str) -> bool:
        """Whether the wrapped loss has this keyword."""
        return takes_keyword(self.loss, keyword)

    def asks(self, keyword: str) -> bool:
        """Whether it names this keyword; one that takes any keyword asks for none."""
        return takes_keyword(self.loss, keyword) and not takes_keyword(self.loss, "")

    @property
    def name(self) -> str:
        """Where the wrapped loss comes from, such as ``my_losses:circle``."""
        source = self.loss if hasattr(self.loss, "__qualname__") else type(self.loss)
        return f"{source.__module__}:{source.__qualname__}"

    def param_groups(self, lr: float) -> list[dict[str, Any]]:
        """One group per learnable parameter, under the name it has in the wrapped module."""
        groups = super().param_groups(lr)
        return [{**group, "name": group["name"].removeprefix("loss.")} for group in groups]

    def extra_repr(self) -> str:
        """What is wrapped; a module is printed below."""
        return self.name


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    return shortened(value)


_HANDED = ("ids", "features", "teacher")  # what a training hands to a loss that names it


def _refuse_other_arguments(loss: nn.Module | LossFunction) -> None:
    """Refuse what cannot be called with embeddings and labels, before a training does."""
    try:
        signature = inspect.signature(loss.forward if isinstance(loss, nn.Module) else loss)
    except (TypeError, ValueError):  # some functions written in C have none
        return
    try:
        handed = {name: None for name in _HANDED if name in signature.parameters}
        signature.bind(None, None, **handed)
    except TypeError as error:
        name = getattr(loss, "__qualname__", type(loss).__qualname__)
        raise ValueError(
            f"a loss is called with embeddings and labels, and {name}{signature} is not ({error}): wrap it "
            "in a function (embeddings, labels) -> scalar"
        ) from None


def takes_keyword(function: Any, keyword: str) -> bool:
    """Whether a function, or the ``forward`` of a module, has a parameter of this name or takes any keyword.

    >>> takes_keyword(lambda embeddings, labels, ids=None: None, "ids")
    True
    """
    function = function.forward if isinstance(function, nn.Module) else function
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # some functions written in C have none
        return False
    anything = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    return anything or keyword in parameters
