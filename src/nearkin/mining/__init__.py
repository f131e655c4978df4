"""Which pairs and triplets of a batch count.

Every miner is a pure function of similarities and masks; ``build("semi_hard")`` makes one by its name.
"""

from nearkin.mining.all import All
from nearkin.mining.base import Masks, Mined, Miner, Triplets, as_masks, build, names, register
from nearkin.mining.multi_similarity import MultiSimilarity

__all__ = [
    "All",
    "Masks",
    "Mined",
    "Miner",
    "MultiSimilarity",
    "Triplets",
    "as_masks",
    "build",
    "names",
    "register",
]
