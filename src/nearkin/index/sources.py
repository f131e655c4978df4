"""Inputs of any kind on their way into an index: what each is called, its label, a hash of its content."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from nearkin.data import ImageFiles, Samples, SampleSet, Texts
from nearkin.data.class_folders import files_below, labels_below
from nearkin.data.content_hashes import content_hashes
from nearkin.data.decoding import IMAGE_SUFFIXES
from nearkin.data.packed import is_packed, packed_images
from nearkin.data.sample_hashes import fingerprint
from nearkin.index.items import NewItem, checked_metadata
from nearkin.model import Model
from nearkin.model.inputs import as_samples

Progress = Callable[[int, int], None]
"""Called with the number of inputs done and the number of all."""
Labels = Sequence[Hashable] | Tensor | Mapping[str, Hashable]
"""One label per input, or labels by name."""
Metadata = Sequence[Mapping[str, Any]] | Mapping[str, Mapping[str, Any]]
"""One mapping per input, or mappings by name."""


@dataclass(frozen=True)
class Sources:
    """Samples with the items that they become.

    Attributes:
        samples: What is embedded.
        items: One per sample.
        unreadable: Files that could not be opened, each with the reason; they are in neither.
    """

    samples: Samples
    items: list[NewItem]
    unreadable: list[tuple[str, str]]


def gather(
    inputs: Any,
    model: Model,
    *,
    labels: Labels | None = None,
    metadata: Metadata | None = None,
    names: Sequence[str] | None = None,
    prefix: str = "",
) -> Sources:
    """Look at inputs, as :meth:`nearkin.Model.embed` takes them, without embedding anything.

    Args:
        inputs: A folder (or :class:`~nearkin.data.ImageFiles` in one), whose files are called by their paths
            below it and labelled by the folders that they lie in; a packed file (``.tar``, ``.parquet``);
            other paths, pictures, texts, arrays.
        model: Says what a list of words is.
        labels: One per input, or by name.
        metadata: One mapping per input, or by name.
        names: One per input, where they should be called something else.
        prefix: Put before every name.
    """
    samples, called, own_labels = _named(inputs, model)
    if names is not None:
        called = _one_each(names, len(samples), "names")
    called = None if called is None else [f"{prefix}{name}" for name in called]
    contents, unreadable = _contents(samples, called)
    if called is None:
        called = [f"{prefix}{content[:16] if content else ''}" for content in contents]
    classes = _by_input(labels, called, "labels")
    facts = _by_input(metadata, called, "metadata")
    items = []
    for place, (name, content) in enumerate(zip(called, contents, strict=True)):
        label = own_labels[place] if classes is None else classes[place]
        path = samples.path(place).absolute() if isinstance(samples, ImageFiles) else None
        known = {} if facts is None or facts[place] is None else checked_metadata(facts[place], name)
        items.append(NewItem(name, content or "", None if label is None else str(label), known, path))
    kept = [place for place, content in enumerate(contents) if content is not None]
    if len(kept) < len(items):
        samples, items = samples.select(kept), [items[place] for place in kept]
    return Sources(samples, items, unreadable)


def without_repeats(sources: Sources) -> tuple[Sources, int]:
    """Every name once, and how many inputs were given again.

    Raises:
        ValueError: Two inputs of one name differ.
    """
    first: dict[str, int] = {}
    for place, item in enumerate(sources.items):
        before = first.setdefault(item.name, place)
        if sources.items[before].content != item.content:
            raise ValueError(f"two inputs are called {item.name!r} and differ: give names=, one for each")
    kept = list(first.values())
    repeats = len(sources.items) - len(kept)
    if not repeats:
        return sources, 0
    once = [sources.items[place] for place in kept]
    return replace(sources, samples=sources.samples.select(kept), items=once), repeats


def _named(inputs: Any, model: Model) -> tuple[Samples, list[str] | None, Sequence[Any]]:
    """Samples, what they are called (``None``: by their content) and the labels that they bring."""
    if isinstance(inputs, SampleSet):
        own = [inputs.class_names[number] for number in inputs.labels.tolist()]
        return inputs.samples, _names_of(inputs.samples), own
    if is_packed(inputs) and Path(inputs).is_file():
        packed, told = packed_images(inputs)
        return packed, [f"{place.file.name}/{place.name}" for place in packed.places], told
    if _is_folder(inputs):
        root = Path(inputs)
        files = files_below(root)
        if not files:
            raise ValueError(f"{root} holds no image ({', '.join(sorted(IMAGE_SUFFIXES))})")
        inputs = ImageFiles(files, root)
    if isinstance(inputs, ImageFiles):
        files = [inputs.name(place) for place in range(len(inputs))]
        return inputs, files, labels_below(files)
    if not isinstance(inputs, str | os.PathLike | Mapping) and isinstance(inputs, Iterable):
        inputs = inputs if hasattr(inputs, "__getitem__") else list(inputs)
    samples = as_samples(inputs, **_expected(model))
    called = _names_of(samples)
    if isinstance(samples, ImageFiles):
        called = _as_given(inputs, samples)
    return samples, called, [None] * len(samples)


def _is_folder(inputs: Any) -> bool:
    return isinstance(inputs, str | os.PathLike) and Path(inputs).is_dir()


def _expected(model: Model) -> dict[str, Any]:
    expected = model.embedders[0].network.preprocessing
    return {
        "takes_images": None if model.has_two else expected is not None,
        "channels": None if expected is None else expected.channels,
    }


def _as_given(inputs: Any, files: ImageFiles) -> list[str]:
    """Paths as the user wrote them; files of folders in a list by their whole paths."""
    given = [inputs] if isinstance(inputs, str | os.PathLike) else list(inputs)
    if len(given) == len(files):
        return [Path(path).as_posix() for path in given]
    return [files.path(place).as_posix() for place in range(len(files))]


def _names_of(samples: Samples) -> list[str] | None:
    """What samples are called by themselves: files and texts have names, pictures and arrays do not."""
    if isinstance(samples, ImageFiles):
        return [samples.name(place) for place in range(len(samples))]
    return list(samples.texts) if isinstance(samples, Texts) else None


def _contents(samples: Samples, called: list[str] | None) -> tuple[list[str | None], list[tuple[str, str]]]:
    """A hash per sample, ``None`` for files that cannot be opened, which are listed with the reason."""
    if not isinstance(samples, ImageFiles):
        return [_content(samples, place) for place in range(len(samples))], []
    paths = [samples.path(place) for place in range(len(samples))]
    try:
        return list(content_hashes(paths)), []
    except OSError:
        pass  # one of them is gone or closed: which one?
    hashes: list[str | None] = []
    unreadable = []
    for place, path in enumerate(paths):
        try:
            hashes += content_hashes([path])
        except OSError as error:  # noqa: PERF203
            hashes.append(None)
            name = str(path) if called is None else called[place]
            unreadable.append((name, f"{path}: {error.strerror}"))
    return hashes, unreadable


def _content(samples: Samples, place: int) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the error below says the same
        found = fingerprint(samples.select([place]))
    if found.startswith("count-"):
        raise ValueError(
            f"samples of type {type(samples[place]).__name__} have no content to be known by: give paths, "
            "pictures, texts or arrays"
        )
    return found


def _by_input(given: Any, names: Sequence[str], what: str) -> list[Any] | None:
    if given is None:
        return None
    if isinstance(given, Mapping):
        return [given.get(name) for name in names]
    return _one_each(given.tolist() if isinstance(given, Tensor) else given, len(names), what)


def _one_each(values: Iterable[Any], count: int, what: str) -> list[Any]:
    listed = list(values)
    if len(listed) != count:
        raise ValueError(f"{count} inputs but {len(listed)} {what}")
    return listed
