"""A made-up data set of as many identities as one likes: nothing is stored, every sample is computed.

For trying, testing and measuring what grows with the number of classes. An identity is a point in a latent
space, a sample is that point with noise, seen through a fixed random layer.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearkin.data.numbered_names import NumberedNames
from nearkin.data.registry import registry
from nearkin.data.samples import DataSet, SampleSet
from nearkin.data.seeding import refuse_wrong_seed
from nearkin.data.vectors import Vectors

VERSION = 1  # raise it when the samples of a seed change
_LATENT = 32
_PATTERN = "identity {}"


@registry.register("identities")
def identities(
    *,
    root: str | os.PathLike[str] | None = None,
    seed: int = 0,
    num_classes: int = 1_000_000,
    test_classes: int = 1_000,
    images_per_class: int = 2,
    features: int = 64,
    noise: float = 0.5,
) -> DataSet:
    """Up to millions of made-up identities, each sample a vector that is computed when it is read.

    Args:
        root: Not used: there are no files.
        seed: Draws identities and noise. The same seed gives the same samples.
        num_classes: Identities to learn from.
        test_classes: Further identities for testing.
        images_per_class: Samples of each.
        features: Length of a vector; a square number suits ``network.name = "mlp"``, whose ``size`` is its
            root.
        noise: Of a sample around its identity, whose own spread is 1.
    """
    refuse_wrong_seed(seed)
    for name, value, least in (
        ("num_classes", num_classes, 2),
        ("test_classes", test_classes, 2),
        ("images_per_class", images_per_class, 2),
        ("features", features, 1),
    ):
        if value < least:
            raise ValueError(f"{name}={value} must be at least {least}")
    if not 0 <= noise < float("inf"):
        raise ValueError(f"noise={noise} must be a finite number, at least 0")

    def split(first: int, classes: int) -> SampleSet:
        rows = np.arange(first * images_per_class, (first + classes) * images_per_class)
        samples = IdentityVectors(
            rows, seed=seed, images_per_class=images_per_class, features=features, noise=float(noise)
        )
        labels = torch.arange(classes).repeat_interleave(images_per_class)
        return SampleSet(samples, labels, NumberedNames(torch.arange(first, first + classes), _PATTERN))

    return DataSet("identities", train=split(0, num_classes), test=split(num_classes, test_classes))


class IdentityVectors(Vectors):
    """Samples of identities; row r is sample ``r mod n`` of identity ``r // n``, n = ``images_per_class``.

    Args:
        rows: Which rows are samples.
        seed: Draws identities and noise.
        images_per_class: Samples of each identity.
        features: Length of a vector.
        noise: Of a sample around its identity.
    """

    def __init__(
        self, rows: NDArray[np.int64], *, seed: int, images_per_class: int, features: int, noise: float
    ) -> None:
        self.path = None
        self._rows = rows
        self._seed, self._images_per_class, self._noise = seed, images_per_class, noise
        generator = torch.Generator().manual_seed(seed)
        self._layer = torch.randn(_LATENT, features, generator=generator) / _LATENT**0.5

    def __getstate__(self) -> dict[str, Any]:
        """Everything: there is no file to open again."""
        return dict(vars(self))

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def batch(self, indices: Sequence[int]) -> Tensor:
        """The vectors at ``indices``, float32 ``(B, F)``."""
        rows = self._rows[np.asarray(indices, dtype=np.int64)]
        identity = normal_numbers(self._seed, 0, rows // self._images_per_class, _LATENT)
        spread = normal_numbers(self._seed, 1, rows, _LATENT)
        latent = torch.from_numpy(identity + self._noise * spread).float()
        seen = torch.zeros(len(latent), self._layer.shape[1])
        for numbers, weights in zip(latent.T, self._layer, strict=True):
            seen.addcmul_(numbers.unsqueeze(1), weights)  # no product of matrices: it rounds as it is cut
        return seen.tanh_()

    def select(self, indices: Sequence[int]) -> IdentityVectors:
        """The vectors at ``indices``, in that order."""
        chosen = IdentityVectors.__new__(IdentityVectors)
        vars(chosen).update(vars(self), _rows=self._rows[np.asarray(indices, dtype=np.int64)])
        return chosen

    def name(self, index: int) -> str:
        """The identity, and which of its samples."""
        identity, sample = divmod(int(self._rows[index]), self._images_per_class)
        return f"{_PATTERN.format(identity)}, sample {sample}"

    def fingerprint(self) -> str:
        """Of what the samples follow from."""
        settings = [VERSION, self._seed, self._images_per_class, self._layer.shape[1], self._noise]
        digest = hashlib.sha256(json.dumps(settings).encode())
        digest.update(np.ascontiguousarray(self._rows).data)
        return digest.hexdigest()


def normal_numbers(seed: int, stream: int, rows: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """``count`` normal numbers for each row ``(n, count)``, which depend on seed, stream and row only.

    >>> one, both = (normal_numbers(0, 0, np.array(rows), 3) for rows in ([7], [5, 7]))
    >>> bool((one[0] == both[1]).all())
    True
    """
    with np.errstate(over="ignore"):
        start = _mixed(np.uint64(seed) * np.uint64(4) + np.uint64(stream))
        keys = _mixed(start + rows.astype(np.uint64))[:, None]
        places = np.arange(2 * count, dtype=np.uint64)
        words = _mixed(keys + places * np.uint64(0x9E3779B97F4A7C15))
    uniform = ((words >> np.uint64(11)).astype(np.float64) + 0.5) / 2**53
    radius, angle = np.sqrt(-2 * np.log(uniform[:, :count])), 2 * np.pi * uniform[:, count:]
    numbers: NDArray[np.float64] = radius * np.cos(angle)
    return numbers


def _mixed(words: Any) -> Any:
    """The finaliser of SplitMix64, for numpy's 64-bit words."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
