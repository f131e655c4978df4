"""What every loss is, how it is found by its name, and what it refuses."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor, nn

from nearkin.losses.search_space import SearchSpace
from nearkin.registry import Registry

Function = TypeVar("Function", bound=Callable[..., Any])

REDUCTIONS = ("mean", "none")


def runs_eagerly(function: Function) -> Function:
    """Decorator: ``torch.compile`` calls the function as it is, between two graphs.

    For what no graph can hold: numbers of triplets that depend on the values, draws, tiles, a memory.
    """

    @functools.wraps(function)
    def run(*arguments: Any, **keywords: Any) -> Any:
        if torch.compiler.is_compiling():  # only then: torch.compiler takes seconds to import
            return torch.compiler.disable(function)(*arguments, **keywords)
        return function(*arguments, **keywords)

    return cast(Function, run)


class NotFiniteError(ValueError):
    """Embeddings hold NaN or infinity: the training that made them went wrong, not the call."""


class Loss(nn.Module):
    """Embeddings and labels in, one number out.

    ``loss(embeddings, labels)`` takes raw embeddings ``(B, D)`` of any float dtype and labels ``(B,)`` of any
    integer dtype. Half precision is computed in float32 inside, with or without autocast. A batch that offers
    nothing to learn from gives an exact 0 whose gradient is 0.

    ``loss(embeddings, labels, weights=w)`` counts each anchor ``w[i]`` times, in sums as in what they are
    divided by. With ``reduction="none"`` (here, in ``build``, or as the attribute) there is one value per
    sample, whose mean over the batch is the loss, weights and all; what a loss adds that belongs to no
    sample, such as a term between proxies, is in each of them.

    Attributes:
        reduction: "mean" or "none".
        needs_classes: whether the constructor takes ``num_classes`` and ``embedding_dim``.
        compares_samples: whether samples of a batch are compared with each other, so that batches need
            several of each class; losses over proxies do not.
        stops_gradients: whether a part of the value is a constant on purpose, so that the gradient is not the
            derivative of the value.
        search_space: where ``nearkin tune`` looks for the hyperparameters that are worth it.
        searches_rate: whether it looks for the learning rate of the loss's own parameters as well.
        validate: whether the *values* of the inputs are checked (finite embeddings, labels in range). Shapes
            and dtypes always are. On CUDA the check waits for the device once per call;
            ``loss.validate = False`` (or ``Loss.validate = False`` for all) switches it off. In a graph of
            ``torch.compile`` it is a part of the graph, and its error a ``RuntimeError``.
    """

    needs_classes: ClassVar[bool] = False
    compares_samples: bool = True
    stops_gradients: ClassVar[bool] = False
    search_space: ClassVar[SearchSpace] = {}
    searches_rate: ClassVar[bool] = False
    reduction: str = "mean"
    validate: bool = True

    @property
    def traceable(self) -> bool:
        """Whether ``torch.compile`` finds one graph for the whole loss.

        Where sizes or branches depend on values (listed triplets, ranks, sampled classes, tiles), it does
        not: such a part is computed as without it, between two graphs.
        """
        return True

    def pair_weights(
        self,
        embeddings: Tensor,
        labels: Tensor,
        *,
        references: Tensor | None = None,
        reference_labels: Tensor | None = None,
    ) -> Tensor:
        """∂L/∂S of the similarities of a batch, for losses over pairs.

        Raises:
            ValueError: for a loss that is no function of them.
        """
        raise ValueError(f"{type(self).__name__} is no function of the similarities of a batch")

    @classmethod
    def space_with(cls, keywords: Mapping[str, Any]) -> SearchSpace:
        """Where to look, given the keywords that are held: all of ``search_space``, for most losses."""
        return cls.search_space

    def param_groups(self, lr: float) -> list[dict[str, Any]]:
        """One optimiser group per learnable parameter of the loss, each with learning rate ``lr``.

        >>> import nearkin.losses
        >>> loss = nearkin.losses.build("proxy_anchor", num_classes=3, embedding_dim=2)
        >>> [(group["name"], group["lr"]) for group in loss.param_groups(0.01)]
        [('proxies', 0.01)]
        """
        return [
            {"params": [parameter], "lr": lr, "name": name}
            for name, parameter in self.named_parameters()
            if parameter.requires_grad
        ]

    @classmethod
    def compares_with(cls, hyperparameters: Mapping[str, Any]) -> bool:
        """:attr:`compares_samples` of a loss that is built with these hyperparameters."""
        return cls.compares_samples

    def findings(self) -> tuple[str, ...]:
        """What there is to say about the loss itself when a training has ended, a sentence each."""
        return ()

    @property
    def name(self) -> str:
        """What to call the loss in a sentence: its class, or where a wrapped one comes from."""
        return type(self).__name__

    def takes(self, keyword: str) -> bool:
        """Whether ``forward`` has this keyword, such as ``references`` or ``ids``."""
        return keyword in inspect.signature(self.forward).parameters

    def asks(self, keyword: str) -> bool:
        """Whether a training that has this keyword at hand should pass it: ``ids`` or ``features``."""
        return self.takes(keyword)

    def own_parameters(self) -> tuple[Tensor, ...]:
        """``tuple(self.parameters())``, without a walk where there are no modules inside."""
        if self._modules:
            return tuple(self.parameters())
        return tuple(parameter for parameter in self._parameters.values() if parameter is not None)

    def extra_repr(self) -> str:
        """The constructor's keywords and their values."""
        keywords = [k for k in inspect.signature(type(self)).parameters if k != "generator"]
        values = {keyword: getattr(self, keyword) for keyword in keywords if hasattr(self, keyword)}
        if self.reduction != "mean":
            values["reduction"] = self.reduction
        return ", ".join(f"{keyword}={_shown(value)}" for keyword, value in values.items())


def _shown(value: Any) -> str:
    """A hyperparameter in words: a number that is learnt by its value, a larger tensor by its shape."""
    if isinstance(value, Tensor):
        return f"{value.item():.4g}" if value.dim() == 0 else f"tensor{tuple(value.shape)}"
    return repr(value)


registry: Registry[Loss] = Registry("loss")
register = registry.register
unregister = registry.unregister
names = registry.names
get = registry.get


def build(
    name: str,
    *,
    num_classes: int | None = None,
    embedding_dim: int | None = None,
    generator: torch.Generator | None = None,
    reduction: str = "mean",
    sample: float | None = None,
    tile: int | None = None,
    storage: str | None = None,
    memory_map: str | os.PathLike[str] | None = None,
    **hyperparameters: Any,
) -> Loss:
    """Make a loss by its name.

    Args:
        name: one of ``names()``.
        num_classes: C, for losses with proxies; the others ignore it.
        embedding_dim: D, for losses with proxies; the others ignore it.
        generator: starts the proxies, or draws the randomly mined pairs; without one, seed 0.
        reduction: "mean" for a scalar, "none" for one value per sample, whose mean is the scalar.
        sample: for losses with proxies, the share of the classes outside a batch that it is compared with,
            above 0; all by default. See ``ProxyLoss.sample_classes`` and docs/many_classes.md.
        tile: for losses with proxies, classes that are compared at a time; by default all, where they fit.
        storage: for losses with proxies, in which precision these are kept: "float32", "bfloat16", "float16".
        memory_map: for losses with proxies, a folder for a file to keep these in.
        hyperparameters: keywords of the loss, see ``describe(name)``.

    Raises:
        ValueError: for an unknown name or keyword, a wrong value, or a proxy loss without its sizes.

    >>> build("contrastive", margin=0.3)
    Contrastive(margin=0.3, metric='cosine', mining='all')
    >>> build("proxy_anchor")
    Traceback (most recent call last):
    ValueError: loss 'proxy_anchor' has learnable proxies: it needs num_classes and embedding_dim
    """
    known = registry.keywords(name)
    if generator is not None and "generator" in known:
        hyperparameters["generator"] = generator
    sizes = {"num_classes": num_classes, "embedding_dim": embedding_dim}
    for size, value in sizes.items():
        if size in known and value is not None:
            hyperparameters[size] = value
        elif size in known and known[size].default is inspect.Parameter.empty:
            raise ValueError(f"loss {name!r} has learnable proxies: it needs num_classes and embedding_dim")
    require_one_of(REDUCTIONS, reduction=reduction)
    loss = registry.build(name, **hyperparameters)
    if reduction != "mean":
        loss.reduction = reduction
    given = {"sample": sample, "tile": tile, "storage": storage, "memory_map": memory_map}
    _arrange_proxies(loss, name, generator, {key: value for key, value in given.items() if value is not None})
    return loss


def _arrange_proxies(loss: Any, name: str, generator: torch.Generator | None, given: dict[str, Any]) -> None:
    """What losses with proxies can do for very many classes."""
    if not given:
        return
    if not hasattr(loss, "sample_classes"):
        key, value = next(iter(given.items()))
        raise ValueError(f"{key}={value}: loss {name!r} has no proxies, which {key} is about")
    if "tile" in given:
        require_count(tile=given["tile"])
        loss.tile = given["tile"]
    if "storage" in given or "memory_map" in given:
        loss.store_proxies(given.get("storage", "float32"), given.get("memory_map"))
    if "sample" in given:
        loss.sample_classes(given["sample"], generator)


def require_positive(**values: float) -> None:
    """Refuse hyperparameters that are not above 0."""
    for name, value in values.items():
        if not 0 < value < float("inf"):
            raise ValueError(f"{name}={value} must be a finite number above 0")


def require_non_negative(**values: float) -> None:
    """Refuse hyperparameters below 0."""
    for name, value in values.items():
        if not 0 <= value < float("inf"):
            raise ValueError(f"{name}={value} must be a finite number, at least 0")


def require_one_of(allowed: tuple[str, ...], **values: str) -> None:
    """Refuse a word that is not one of ``allowed``."""
    for name, value in values.items():
        if value not in allowed:
            raise ValueError(f"{name}={value!r} must be one of: {', '.join(allowed)}")


def check_embeddings(embeddings: Tensor, what: str = "embeddings") -> None:
    """Refuse anything but a float matrix; looks at shape and dtype only."""
    if embeddings.dim() != 2:
        raise ValueError(f"{what} must be a matrix (B, D), not of shape {tuple(embeddings.shape)}")
    if not embeddings.is_floating_point():
        raise ValueError(f"{what} must be of a float dtype, not {embeddings.dtype}")


def check_labels(
    labels: Tensor, embeddings: Tensor, what: str = "labels", *, multi_hot: bool = False
) -> None:
    """Refuse labels that cannot belong to ``embeddings``; looks at shape and dtype only."""
    if labels.is_floating_point() or labels.is_complex():
        raise ValueError(f"{what} must be of an integer dtype, not {labels.dtype}")
    if labels.dim() != 1 and not (multi_hot and labels.dim() == 2):
        allowed = "(B,) or multi-hot (B, L)" if multi_hot else "(B,)"
        raise ValueError(f"{what} must have shape {allowed}, not {tuple(labels.shape)}")
    if labels.dim() == 1 and labels.dtype == torch.bool:
        raise ValueError(f"{what} must be of an integer dtype, not {labels.dtype}")
    if len(labels) != len(embeddings):
        raise ValueError(f"{len(labels)} {what} for {len(embeddings)} embeddings")
    if labels.device != embeddings.device:
        raise ValueError(f"{what} are on {labels.device}, the embeddings on {embeddings.device}")


def check_weights(weights: Tensor, embeddings: Tensor) -> None:
    """Refuse weights that are not one number per embedding; looks at shape and device only."""
    if weights.shape != embeddings.shape[:1]:
        raise ValueError(
            f"weights must have shape ({len(embeddings)},), one per embedding, not {tuple(weights.shape)}"
        )
    if weights.device != embeddings.device:
        raise ValueError(f"weights are on {weights.device}, the embeddings on {embeddings.device}")


def check_weight_values(weights: Tensor) -> None:
    """Refuse weights that are negative or not finite."""
    if torch.compiler.is_compiling():
        usable = (weights >= 0) & (weights < float("inf"))
        torch._assert_async(usable.all(), "weights must be finite and not negative")
        return
    wrong = (~(weights >= 0) | (weights == float("inf"))).nonzero()
    if len(wrong):
        place = int(wrong[0, 0])
        raise ValueError(
            f"weights must be finite and not negative, not {weights[place].item()} (row {place})"
        )


def weighted(values: Tensor, weights: Tensor | None) -> Tensor:
    """Values ``(B,)`` whose mean is the weighted mean of the given ones; 0 where no weight is above 0.

    >>> weighted(torch.tensor([2.0, 4.0]), torch.tensor([3.0, 1.0]))
    tensor([3., 2.])
    """
    if weights is None:
        return values
    return torch.where(weights > 0, values, 0) * weights * (len(values) / or_one(weights.sum()))


def or_one(total: Tensor) -> Tensor:
    """What a sum is divided by: a total above 0, or 1 where there is nothing to divide."""
    return torch.where(total > 0, total, 1)


def check_finite(rows: Tensor, what: str = "embeddings") -> None:
    """Refuse rows, or lengths ``(B, 1)`` of rows, that are not finite: one sum, one look from the host."""
    if torch.compiler.is_compiling():
        torch._assert_async(torch.isfinite(rows).all(), f"{what} contain NaN or infinite values")
        return
    if isfinite(rows.sum().item()):
        return
    broken = (~torch.isfinite(rows)).any(dim=1, keepdim=True).nonzero()
    if len(broken):
        raise NotFiniteError(f"{what} contain NaN or infinite values (first in row {int(broken[0, 0])})")


def check_label_range(labels: Tensor, num_classes: int) -> None:
    """Refuse labels ``(B,)`` outside ``0 … num_classes − 1``."""
    if not len(labels):
        return
    if torch.compiler.is_compiling():
        inside = (labels >= 0) & (labels < num_classes)
        torch._assert_async(inside.all(), f"a label is out of range for num_classes={num_classes}")
        return
    lowest, highest = (extreme.item() for extreme in torch.aminmax(labels))
    if lowest < 0 or highest >= num_classes:
        wrong = lowest if lowest < 0 else highest
        raise ValueError(f"label {wrong} is out of range for num_classes={num_classes}")


def require_count(**values: int) -> None:
    """Refuse hyperparameters that are not whole numbers of at least 1."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}={value!r} must be a whole number of at least 1")
