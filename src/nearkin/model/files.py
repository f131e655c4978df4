"""A network on disk: ``model.json`` says how to build it, a safetensors file holds its weights; no pickle."""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from nearkin import data, networks
from nearkin.atomic import write_json
from nearkin.data import Preprocessing
from nearkin.data.transform_registry import registry as transform_registry
from nearkin.data.transforms import Transform
from nearkin.evaluation import Threshold
from nearkin.networks import Embedder, Network, WrappedNetwork
from nearkin.networks.base import registry as network_registry
from nearkin.registry import shortened
from nearkin.tensor_files import DamagedFileError, read_tensors, write_tensors

_FORMAT = 1
MODEL_FILE = "model.json"
THRESHOLD_FILE = "threshold.json"
_WEIGHTS = ("weights.safetensors", "checkpoint/network.safetensors")  # of a saved model, of a run
_PARTS = (
    "model.safetensors",
    "head.safetensors",
)  # of a repository: the backbone under its own names, the rest
_BACKBONE = "backbone."


def is_model(path: Path) -> bool:
    """Whether a folder holds a network that can be read without anything else."""
    return (path / MODEL_FILE).is_file()


def describe(embedder: Embedder) -> dict[str, Any]:
    """How to build an embedder again, without its weights, in plain values."""
    network = embedder.network
    about: dict[str, Any] = {
        "format": _FORMAT,
        "network": network.spec or {"python": type(network.backbone).__qualname__},
        "embedding_dim": network.embedding_dim,
        "num_features": network.num_features,
        "has_head": isinstance(network.head, nn.Linear),
        "preprocessing": None if network.preprocessing is None else asdict(network.preprocessing),
        "transform": embedder.transform_spec or {"python": repr(embedder.evaluation_transform)},
        "trunk": embedder.trunk,
        "batch_size": embedder.batch_size,
    }
    return about | {"imports": _plugins(about)}


def _plugins(about: Mapping[str, Any]) -> list[str]:
    """The modules that register this network and transform, where they are not ours."""
    named = ((network_registry, about["network"]), (transform_registry, about["transform"]))
    makers = [registry.get(spec["name"]) for registry, spec in named if spec.get("name") in registry]
    modules = {getattr(maker, "__module__", None) or "" for maker in makers}
    return sorted(
        name for name in modules if name not in ("", "__main__") and not name.startswith("nearkin.")
    )


def write_embedder(folder: Path, embedder: Embedder) -> None:
    """Write a network into a folder: the weights first, so that what has a ``model.json`` is complete."""
    write_tensors(folder / _WEIGHTS[0], embedder.network.state_dict())
    write_json(folder / MODEL_FILE, describe(embedder))


def write_parts(folder: Path, embedder: Embedder) -> None:
    """Write a network in two files, so that others read the backbone's under its own names."""
    state = embedder.network.state_dict()
    backbone = {
        name.removeprefix(_BACKBONE): one for name, one in state.items() if name.startswith(_BACKBONE)
    }
    rest = {name: one for name, one in state.items() if not name.startswith(_BACKBONE)}
    for name in _WEIGHTS:
        (folder / name).unlink(missing_ok=True)
    for name, tensors in zip(_PARTS, (backbone, rest), strict=True):
        write_tensors(folder / name, tensors)
    write_json(folder / MODEL_FILE, describe(embedder))


def write_threshold(folder: Path, threshold: Threshold | None) -> None:
    """Write a model's threshold into its folder, or see to it that there is none."""
    file = folder / THRESHOLD_FILE
    if threshold is None:
        file.unlink(missing_ok=True)
    else:
        write_json(file, threshold.to_dict())


def read_threshold(folder: Path) -> Threshold | None:
    """The threshold in the folder of a model or run; ``None`` if it has none.

    Raises:
        ValueError: The file is damaged.
    """
    file = folder / THRESHOLD_FILE
    if not file.is_file():
        return None
    values = _read_json(file)
    try:
        return Threshold.from_dict(values)
    except ValueError as error:
        raise ValueError(f"{file} cannot be read: {error}") from None


def read_embedder(
    folder: Path, *, network: nn.Module | None = None, transform: Transform | None = None
) -> Embedder:
    """The network in a folder: of a saved model, or of a run.

    Args:
        folder: With ``model.json``.
        network: The module, where it was given in Python and cannot be built from its description.
        transform: What samples go through, where it was given in Python.

    Raises:
        ValueError: The folder has no model, a damaged one, or one that needs what was given in Python.
    """
    about = _read_json(folder / MODEL_FILE)
    for module in about.get("imports", ()):
        import_module(module, needed_by=str(folder))
    built = _network(about, network, folder)
    files = _weights_in(folder)
    try:
        built.load_state_dict(_state(files))
    except (DamagedFileError, RuntimeError) as error:
        raise ValueError(
            f"{' or '.join(map(str, files))} cannot be loaded: {' '.join(str(error).split())[:500]}"
        ) from None
    seen = transform or _transform(about, built, folder)
    return Embedder(
        built.eval(),
        training_transform=seen,
        evaluation_transform=seen,
        transform_spec=about["transform"],
        batch_size=about.get("batch_size", 64),
    )


def _weights_in(folder: Path) -> list[Path]:
    """The file of a model's weights, or both files of a repository's."""
    whole = next((folder / name for name in _WEIGHTS if (folder / name).exists()), None)
    if whole is not None:
        return [whole]
    parts = [folder / name for name in _PARTS]
    if not all(part.exists() for part in parts):
        raise ValueError(f"{folder} has no weights: neither {' nor '.join(_WEIGHTS)}")
    return parts


def _state(files: list[Path]) -> dict[str, Tensor]:
    first, *rest = (read_tensors(file).tensors for file in files)
    if not rest:
        return first
    return {f"{_BACKBONE}{name}": one for name, one in first.items()} | rest[0]


def _network(about: Mapping[str, Any], module: nn.Module | None, folder: Path) -> Network:
    spec = dict(about["network"])
    if module is None and "python" in spec:
        raise ValueError(
            f"{folder} holds a network that was given in Python ({spec['python']}): pass it again, "
            "nearkin.load(path, network=my_module)"
        )
    if module is None and "object" not in spec:
        network: Network = networks.build(spec.pop("name"), **spec)
        return network
    if module is None:
        module = import_object(spec["object"])(**spec.get("keywords", {}))
    else:
        module = copy.deepcopy(module)  # it stays as it is, and several networks of a run do not share it
    if isinstance(module, Network):
        return module
    assert module is not None
    preprocessing = about["preprocessing"]
    wrapped = WrappedNetwork(
        module,
        about["num_features"],
        embedding_dim=about["embedding_dim"] if about["has_head"] else None,
        preprocessing=None if preprocessing is None else _preprocessing(preprocessing),
    )
    wrapped.spec = None if "python" in spec else spec
    return wrapped


def _preprocessing(values: Mapping[str, Any]) -> Preprocessing:
    plain: Any = {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}
    return Preprocessing(**plain)


def _transform(about: Mapping[str, Any], network: Network, folder: Path) -> Transform:
    spec = dict(about["transform"])
    if "python" in spec:
        raise ValueError(
            f"{folder} sees samples through what was given in Python ({spec['python']}): pass it again, "
            "nearkin.load(path, transform=my_function), and collate=my_collate where there was one"
        )
    name = spec.pop("object", None) or spec.pop("name")
    if ":" not in name:
        return data.transforms.build(name, preprocessing=network.preprocessing, train=False, **spec)
    found = import_object(name)
    if "train" in inspect.signature(found).parameters:
        made: Transform = found(preprocessing=network.preprocessing, train=False, **spec)
        return made
    return data.PerSample(functools.partial(found, **spec) if spec else found)


def import_object(path: str) -> Any:
    """What ``module:object`` names.

    >>> import_object("torch.nn:Linear").__name__
    'Linear'
    """
    module_name, _, name = path.partition(":")
    shown = shortened(path)[1:-1]
    importlib.import_module("nearkin.torchvision_import")  # the module may well import torchvision
    found = import_module(module_name, needed_by=path)
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueError(f"{shown}: {module_name} has no {shortened(name)[1:-1]}")
        found = getattr(found, part)
    return found


def import_module(name: str, *, needed_by: str) -> Any:
    """A module by its name; the working directory is looked into as well, as ``python -m`` does.

    Raises:
        ValueError: It cannot be imported; the message says by whom it is needed.
    """
    here = os.getcwd()  # noqa: PTH109
    if "" not in sys.path and here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except Exception as error:  # whatever a user's module raises while it is imported
        raise ValueError(f"{needed_by}: cannot import {name}: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"{path.parent} has no {path.name}: it is neither a finished run nor a saved model")
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    return values
