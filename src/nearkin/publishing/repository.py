"""A repository of the Hugging Face Hub on disk, which nearkin and timm read."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearkin.atomic import write_json, write_text
from nearkin.model import Model, describe
from nearkin.model.files import write_parts, write_threshold
from nearkin.networks import Embedder
from nearkin.publishing.card import card
from nearkin.publishing.origin import Origin
from nearkin.publishing.plain import without_paths
from nearkin.publishing.timm_config import config_of

_MADE_BY_US = "card.json"
_LARGE_FILES = "*.safetensors filter=lfs diff=lfs merge=lfs -text\n"


@dataclass(frozen=True)
class Published:
    """What was published.

    Attributes:
        folder: The repository on disk.
        address: Where it was pushed to; ``None`` where it was not.
    """

    folder: Path
    address: str | None = None


def publish(
    model: Model,
    folder: str | os.PathLike[str],
    origin: Origin | None = None,
    *,
    name: str | None = None,
    license_: str = "unknown",
    repository: str | None = None,
) -> Path:
    """Write a model as a repository of the Hub, which ``nearkin.load`` reads and timm reads the backbone of.

    Args:
        model: Built from names or importable objects.
        folder: A new one, or one that an earlier call wrote.
        origin: The run that the card is made from.
        name: What the card calls the model; by default the folder's name.
        license_: As the Hub spells it, such as ``apache-2.0``.
        repository: Where it will be pushed to, for the card.

    Raises:
        ValueError: The folder holds other files, or somebody else could not load the model; the message says
            why.
    """
    path, origin = Path(folder), origin or Origin()
    for one in model.embedders:
        _refuse_unloadable(one)
    if path.exists() and any(path.iterdir()) and not (path / _MADE_BY_US).exists():
        raise ValueError(f"{path} holds other files: choose another folder")
    homes = [path]
    if len(model.embedders) > 1:
        homes = [path / f"network-{number:02d}" for number in range(len(model.embedders))]
    for home, one in zip(homes, model.embedders, strict=True):
        write_json(home / "config.json", config_of(one.network))
        write_parts(home, one)
    write_threshold(path, model.threshold)
    _write_result(path, origin)
    write_text(path / ".gitattributes", _LARGE_FILES)
    text = card(model, origin, name=name or path.resolve().name, license_=license_, repository=repository)
    write_text(path / "README.md", text)
    write_json(path / _MADE_BY_US, {"fingerprint": model.fingerprint, "about": {"published": True}})
    if Model.read(path).fingerprint != model.fingerprint:
        raise ValueError(f"{path} does not read back as the same model: this is a fault of nearkin")
    return path


def _write_result(path: Path, origin: Origin) -> None:
    file = path / "result.json"
    if origin.run is None:
        file.unlink(missing_ok=True)
        return
    told: dict[str, Any] = without_paths(origin.run.result.to_dict())
    write_json(file, told)


def _refuse_unloadable(embedder: Embedder) -> None:
    told = describe(embedder)
    for what, spec in (("network", told["network"]), ("transform", told["transform"])):
        if "python" in spec:
            raise ValueError(
                f"the {what} of this model was given in Python ({spec['python']}), and nobody else could "
                "load it: put it into a module and name it as module:object, then publish that"
            )
