"""No transform: samples as they are, put into a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nearkin.data.per_sample import PerSample
from nearkin.data.preprocessing import Preprocessing
from nearkin.data.samples import ImageArray, Samples
from nearkin.data.transform_registry import registry
from nearkin.data.two_modalities import EachModality, TwoModalities
from nearkin.data.vectors import Vectors


class AsIs:
    """Samples as they are: texts stay a list of ``str``, vectors become float32 ``(B, F)``.

    >>> from nearkin.data import Texts
    >>> AsIs()(Texts(["a", "b"]), [1, 1], seeds=[0, 0])
    ['b', 'b']
    """

    def __init__(self) -> None:
        self._one_by_one = PerSample()

    def __repr__(self) -> str:
        return "AsIs()"

    def __call__(self, samples: Samples, indices: Sequence[int], seeds: Sequence[int]) -> Any:
        """The samples at ``indices``; the seeds matter only to a ``Dataset`` that transforms by itself."""
        if isinstance(samples, Vectors):
            return samples.batch(indices)
        if isinstance(samples, ImageArray):
            return samples.pixels[list(indices)]
        if isinstance(samples, TwoModalities):
            return EachModality()(samples, indices, seeds)
        return self._one_by_one(samples, indices, seeds)


@registry.register("as_is")
def as_is(preprocessing: Preprocessing | None = None, train: bool = True) -> AsIs:
    """Samples as they are: the choice for texts, vectors and data that is transformed already."""
    return AsIs()
