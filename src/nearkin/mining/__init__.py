"""Which pairs and triplets of a batch count.

Every miner is a pure function of similarities and masks; ``build("semi_hard")`` makes one by its name.
"""

from nearkin.mining.all import All
from nearkin.mining.base import (
    Masks,
    Mined,
    Miner,
    Triplets,
    as_masks,
    build,
    names,
    register,
)
from nearkin.mining.distance_weighted import DistanceWeighted
from nearkin.mining.hard import Hard
from nearkin.mining.multi_similarity import MultiSimilarity
from nearkin.mining.random import Random
from nearkin.mining.semi_hard import SemiHard

__all__ = [
    "All",
    "DistanceWeighted",
    "Hard",
    "Masks",
    "Mined",
    "Miner",
    "MultiSimilarity",
    "Random",
    "SemiHard",
    "Triplets",
    "as_masks",
    "build",
    "names",
    "register",
]
