"""Embeddings and labels in, one number out: every loss, one file each.

``build("multi_similarity")`` makes a loss by its name, ``names()`` lists them, ``describe(name)`` tells the
equation, the source and when to use it. A new loss is one file with ``@register("name")`` and one import
here.
"""

from nearkin.losses.base import Loss, build, get, names, register, unregister
from nearkin.losses.contrastive import Contrastive
from nearkin.losses.description import Description, describe
from nearkin.losses.multi_similarity import MultiSimilarity
from nearkin.losses.pair import MinedPairLoss, PairLoss, Pairs
from nearkin.losses.proxy import ProxyLoss
from nearkin.losses.proxy_anchor import ProxyAnchor
from nearkin.losses.similarity import Measured

__all__ = [
    "Contrastive",
    "Description",
    "Loss",
    "Measured",
    "MinedPairLoss",
    "MultiSimilarity",
    "PairLoss",
    "Pairs",
    "ProxyAnchor",
    "ProxyLoss",
    "build",
    "describe",
    "get",
    "names",
    "register",
    "unregister",
]
