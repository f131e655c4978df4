"""Anybody's transform of one sample: torchvision's, albumentations', a tokenizer, a function."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import default_collate

from nearkin.data.pixels import is_image, to_pil, to_pixels
from nearkin.data.samples import Samples
from nearkin.data.seeding import seeded_generators


class PerSample:
    """A :class:`Transform` that applies a function to each sample and puts the results into a batch.

    What the function draws from the global generators of torch, numpy and Python depends on the sample's seed
    only, and leaves these generators as they were; so random transforms give the same with any number of
    workers and after a restart. A transform with generators of its own is seeded by its method
    ``set_random_seed`` where it has one (albumentations).

    A transform of albumentations is given ``image=`` an array ``(H, W, C)``, and what stands under ``image``
    in its answer is taken, as a tensor ``(C, H, W)``. A function with a keyword-only parameter ``image`` is
    called in the same way.

    Args:
        function: From a sample to anything; ``None`` changes nothing.
        collate: From the list of results to a batch's inputs. By default tensors, arrays and numbers are
            stacked by torch's ``default_collate``, texts stay a list, tuples and mappings keep their form.
        takes: What the function takes of an image: a PIL image (``"pil"``) or ``uint8`` ``(C, H, W)``
            (``"tensor"``); by default the sample as it is.

    >>> from nearkin.data import Texts
    >>> PerSample(str.upper)(Texts(["a", "b"]), [1, 0], seeds=[0, 0])
    ['B', 'A']
    """

    def __init__(
        self,
        function: Callable[[Any], Any] | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        *,
        takes: Literal["pil", "tensor"] | None = None,
    ) -> None:
        if takes not in (None, "pil", "tensor"):
            raise ValueError(f'takes={takes!r} must be "pil" or "tensor"')
        for name, given in (("transform", function), ("collate", collate)):
            if given is not None and not callable(given):
                raise TypeError(f"{name} must be a function, not {given!r}")
        self.function = function
        self.collate = collate
        self.takes = takes

    def __repr__(self) -> str:
        return f"PerSample({_told(self.function)}, {_told(self.collate)}, takes={self.takes!r})"

    def __call__(self, samples: Samples, indices: Sequence[int], seeds: Sequence[int]) -> Any:
        """The samples at ``indices``, each with its own seed, as the inputs of one batch."""
        results = []
        function = self.function
        if function is not None and _takes_image_keyword(function):
            function = _of_arrays(function)
        set_random_seed = getattr(self.function, "set_random_seed", None)
        with seeded_generators() as seed_all:
            for index, seed in zip(indices, seeds, strict=True):
                seed_all(seed)
                if set_random_seed is not None:
                    set_random_seed(seed & 0xFFFFFFFF)
                sample = self._taken(samples, index)  # may be random, where a Dataset transforms by itself
                results.append(sample if function is None else self._made(function, sample))
        return self.collate(results) if self.collate is not None else collated(results)

    def _made(self, function: Callable[[Any], Any], sample: Any) -> Any:
        """What the function makes of a sample; one that wants PIL images says so to whoever gives others."""
        try:
            return function(sample)
        except TypeError as error:
            if "PIL" not in str(error) or self.takes == "pil" or not is_image(sample):
                raise
            raise TypeError(
                f"{error}. Samples are of the type {type(sample).__name__}: give "
                'nearkin.data.PerSample(function, takes="pil"), which makes PIL images of them'
            ) from error

    def _taken(self, samples: Samples, index: int) -> Any:
        sample = samples[index]
        if self.takes is None:
            return sample
        if not is_image(sample):
            raise TypeError(
                f"takes={self.takes!r} is for images, and sample {samples.name(index)!r} is a "
                f"{type(sample).__name__}: leave takes out"
            )
        return to_pil(sample) if self.takes == "pil" else to_pixels(sample)


def as_transform(given: Any, collate: Callable[[list[Any]], Any] | None = None) -> Any:
    """A :class:`Transform` from anybody's function of one sample; one of whole batches comes back as it is.

    Args:
        given: A function of one sample, ``None`` for none, or a transform ``(samples, indices, seeds)``.
        collate: As of :class:`PerSample`.

    >>> as_transform(str.upper)
    PerSample(str.upper, None, takes=None)
    >>> as_transform(as_transform(str.upper))
    PerSample(str.upper, None, takes=None)
    """
    if {"indices", "seeds"} <= _parameters(given).keys():
        if collate is not None:
            raise ValueError("a transform of whole batches puts them together by itself: leave collate out")
        return given
    return PerSample(given, collate=collate)


def _parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # no function at all, or one written in C
        return {}


def _takes_image_keyword(function: Any) -> bool:
    """Whether a transform wants ``image=`` and nothing else, as all of albumentations do."""
    if any(base.__module__.partition(".")[0] == "albumentations" for base in type(function).__mro__):
        return True
    image = _parameters(function).get("image")
    return image is not None and image.kind is image.KEYWORD_ONLY


def _of_arrays(function: Callable[..., Mapping[str, Any]]) -> Callable[[Any], Any]:
    """A function of images from one of ``image=`` an array ``(H, W, C)``."""

    def transform(sample: Any) -> Any:
        if not is_image(sample):
            raise TypeError(f"{_told(function)} takes images, and this sample is a {type(sample).__name__}")
        array = to_pixels(sample).permute(1, 2, 0).contiguous().numpy()
        result = function(image=array)["image"]
        if not isinstance(result, np.ndarray):
            return result
        channels_last = result if result.ndim == 3 else result[..., None]
        return torch.from_numpy(np.ascontiguousarray(np.moveaxis(channels_last, -1, 0)))

    return transform


def _told(function: Any) -> str:
    """A function in words that are the same in every process: results hold them, addresses would differ."""
    return getattr(function, "__qualname__", None) or re.sub(r" at 0x[0-9a-fA-F]+", "", repr(function))


def collated(results: list[Any]) -> Any:
    """Stack what can be stacked; texts stay a list, tuples and mappings keep their form.

    >>> collated([("a", 1), ("b", 2)])
    (['a', 'b'], tensor([1, 2]))
    """
    first = results[0]
    if isinstance(first, str | bytes):
        return results
    if isinstance(first, Mapping):
        return {key: collated([result[key] for result in results]) for key in first}
    if isinstance(first, tuple):
        parts = [collated(list(part)) for part in zip(*results, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
    try:
        return default_collate(results)
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"samples ({type(first).__name__}) cannot be put into one batch: {error}. Bring them to one "
            "shape in the transform, or give PerSample a collate function"
        ) from None
