"""∂L/∂S of any loss for any similarity matrix, also one that no embedding has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from nearkin.losses import DirectionProxyNCA, Loss, MinedPairLoss, NPair, PairLoss, Pairs, ProxyLoss
from nearkin.losses.pair import find_pairs


def pairs_of(labels: Tensor, embedding_dim: int) -> Pairs:
    """All pairs of a batch with labels ``(B,)``, no sample with itself."""
    return Pairs(lambda: find_pairs(labels), labels, embedding_dim, len(labels))


def check_weighs_pairs(loss: Loss) -> None:
    """Refuse a loss that is not a function of one similarity matrix.

    Raises:
        ValueError: that says why there is nothing to show.
    """
    if isinstance(loss, DirectionProxyNCA) and loss.gamma > 0:
        raise ValueError(
            "direction_proxy_nca looks at similarities between proxies as well, so that its weights are no "
            "function of samples and proxies alone: see its forces, or direction_proxy_nca:gamma=0"
        )
    if isinstance(loss, NPair) and loss.pairs != "all":
        raise ValueError('npair with pairs="one_per_class" sees a part of the matrix only: see npair')
    if isinstance(loss, PairLoss) and not loss.geometry.on_sphere:
        raise ValueError(
            f"metric={loss.geometry.name!r} is no function of cosines: see its forces, or another metric"
        )
    if not isinstance(loss, PairLoss | ProxyLoss):
        raise ValueError(f"{type(loss).__name__} is neither pair-based nor proxy-based: it has no ∂L/∂S")


def similarity_weights(loss: Loss, S: Tensor, labels: Tensor, embedding_dim: int = 2) -> Tensor:
    """∂L/∂S: below 0 where the loss pulls a pair together, above 0 where it pushes it apart.

    A random miner draws with seed 0 every time, so that what changes is due to S.

    Args:
        loss: Pair-based or proxy-based; of the latter, terms between proxies alone have no part in it.
        S: Similarities ``(B, B)``, or ``(B, C·K)`` to proxies, class after class; left as it is.
        labels: ``(B,)``.
        embedding_dim: D, for distance-weighted mining.

    >>> from nearkin import losses
    >>> S = torch.tensor([[1.0, 0.5, 0.9], [0.5, 1.0, 0.2], [0.9, 0.2, 1.0]])
    >>> similarity_weights(losses.build("triplet", mining="all"), S, torch.tensor([0, 0, 1]))[0]
    tensor([ 0., -1.,  1.])
    """
    check_weighs_pairs(loss)
    with torch.no_grad(), same_draws(loss):
        if isinstance(loss, PairLoss):
            weights = loss.measure(S.clone(), pairs_of(labels, embedding_dim), True).weights
        else:
            assert isinstance(loss, ProxyLoss)
            weights = loss.measure(S.clone(), labels, True).weights
    assert weights is not None
    return weights


@contextmanager
def same_draws(loss: Loss) -> Iterator[None]:
    """Seed 0 inside; afterwards the loss's generator is where it was."""
    if not isinstance(loss, MinedPairLoss):
        yield
        return
    state = loss.generator.get_state()
    loss.generator.manual_seed(0)
    yield
    loss.generator.set_state(state)
