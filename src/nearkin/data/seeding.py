"""The global random generators, set for a moment: other people's code draws from them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch


def refuse_wrong_seed(seed: int) -> None:
    """Seeds are whole numbers that every generator takes."""
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed={seed} must be at least 0 and less than 2**63")


@contextmanager
def seeded_generators() -> Iterator[Callable[[int], None]]:
    """Gives a function that seeds torch's (CPU), numpy's and Python's global generators.

    Afterwards all three are as they were.

    >>> with seeded_generators() as seed:
    ...     seed(3)
    ...     first = random.random()
    ...     seed(3)
    ...     first == random.random()
    True
    """
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        yield _seed
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        random.setstate(states[2])


def _seed(seed: int) -> None:
    torch.default_generator.manual_seed(seed)
    np.random.seed((seed ^ seed >> 32) & 0xFFFFFFFF)  # noqa: NPY002
    random.seed(seed)
