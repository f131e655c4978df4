"""Pretrained weights at hand: which files there are, and which network a file belongs to."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import socket
from pathlib import Path
from urllib.parse import urlsplit

from platformdirs import user_cache_dir

from nearkin.networks import timm_models

FOLDER_VARIABLE = "NEARKIN_WEIGHTS"
DEFAULT_NETWORK = "timm:tf_efficientnet_lite0"
"""What photographs are learnt with by default: small enough to be trained on two processor cores."""

# In the order in which a default is looked for: small ones first, which a processor can train.
PREFERRED = (
    DEFAULT_NETWORK,
    "timm:efficientnet_b0",
    "timm:mobilenetv3_large_100",
    "timm:resnet18",
    "timm:resnet50",
    "timm:convnext_tiny",
    "timm:resnet34",
    "timm:mobilenetv2_100",
    "bninception",
)
_SUFFIXES = (".safetensors", ".pth", ".pt", ".bin")
_OTHER_NAMES = {"bninception": "bn_inception"}  # what its published file is called
_PUBLISHED_FILES = {"bninception": "bn_inception-52deb4733.pth"}  # no library downloads these
_HASH_IN_NAME = re.compile(r"-([0-9a-f]{8,})$")


def weights_folders() -> list[Path]:
    """Where weights are looked for: the folders in ``NEARKIN_WEIGHTS``, then one in the user's cache."""
    named = os.environ.get(FOLDER_VARIABLE, "")
    told = [Path(part).expanduser() for part in named.split(os.pathsep) if part]
    return [*told, Path(user_cache_dir("nearkin")) / "weights"]


def find_weights(network: str) -> Path | None:
    """A file with the ImageNet weights of a network, where one is at hand.

    Args:
        network: ``timm:resnet50`` looks for ``resnet50.safetensors``, ``resnet50.a1_in1k.pth`` and the like,
            and then into what timm has downloaded before.
    """
    name = network.removeprefix(timm_models.PREFIX)
    for folder in weights_folders():
        for file in sorted(folder.glob("*")) if folder.is_dir() else ():
            if file.suffix in _SUFFIXES and file.is_file() and _belongs(file.stem, name):
                return file
    return _downloaded_before(name) if network.startswith(timm_models.PREFIX) else None


def _belongs(stem: str, name: str) -> bool:
    """Whether a file is named after a network, also with a tag (``resnet50.a1_in1k``) or a hash."""
    names = [name, *([_OTHER_NAMES[name]] if name in _OTHER_NAMES else [])]
    return any(stem == one or stem.startswith((f"{one}.", f"{one}-")) for one in names)


def check_hash(file: str | os.PathLike[str]) -> None:
    """Compare a file with the hash that its name ends in, as in ``bn_inception-52deb4733.pth``, if it does.

    Raises:
        ValueError: It is another file, or a damaged one.
    """
    path = Path(file)
    told = _HASH_IN_NAME.search(path.stem)
    if told is None:
        return
    with path.open("rb") as opened:
        found = hashlib.sha256()
        while block := opened.read(1 << 20):
            found.update(block)
    if not found.hexdigest().startswith(told[1]):
        raise ValueError(
            f"{path} is damaged or not what its name says: its SHA-256 begins with "
            f"{found.hexdigest()[: len(told[1])]}, not {told[1]}"
        )


def hub_is_reachable() -> bool:
    """Whether there is a network that leads to the Hugging Face Hub; asks no more than for its address."""
    if os.environ.get("HF_HUB_OFFLINE", "0").lower() in {"1", "true", "yes", "on"}:
        return False
    host = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co")).hostname
    try:
        socket.getaddrinfo(host, 443)
    except OSError:
        return False
    return True


def _downloaded_before(name: str) -> Path | None:
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "huggingface"
    hub = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()
    kept = [*hub.glob(f"models--timm--{name}.*"), *hub.glob(f"models--timm--{name}")]
    files = [file for one in sorted(kept) for file in sorted(one.glob("snapshots/*/model.safetensors"))]
    return files[0] if files else None


def default_network() -> str | None:
    """The first of the preferred networks whose weights are at hand."""
    return next((name for name in PREFERRED if find_weights(name) is not None), None)


def network_of(file: str | os.PathLike[str]) -> str | None:
    """The network that a file of weights belongs to, by the file's name or else by the weights' names.

    >>> network_of("weights/resnet50.a1_in1k.safetensors")
    'timm:resnet50'
    """
    stem = Path(file).stem
    own = [name for name in PREFERRED if _belongs(stem, name.removeprefix(timm_models.PREFIX))]
    if own:
        return own[0]
    timm = timm_models.import_timm()
    for end in (stem, stem.partition(".")[0], stem.rpartition("-")[0]):
        if end and timm.is_model(end):
            return f"{timm_models.PREFIX}{end}"
    return _by_names_of_weights(file)


def _by_names_of_weights(file: str | os.PathLike[str]) -> str | None:
    from nearkin.networks.weights import read_state  # noqa: PLC0415  (which imports this room's base)

    if not Path(file).is_file():
        return None
    given = {key: tuple(value.shape) for key, value in read_state(file).items()}
    for name in PREFERRED:
        wanted = _shapes(name)
        if all(given.get(key) == shape for key, shape in wanted.items()):
            return name
    return None


@functools.cache
def _shapes(network: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a network's weights, without those that count batches."""
    from nearkin.networks.base import registry  # noqa: PLC0415

    if network.startswith(timm_models.PREFIX):
        module = timm_models.timm_backbone(network.removeprefix(timm_models.PREFIX)).module
    else:
        module = registry.build(network).module
    state = module.state_dict().items()
    return {key: tuple(value.shape) for key, value in state if not key.endswith("num_batches_tracked")}


def how_to_get_weights(network: str = DEFAULT_NETWORK) -> str:
    """One sentence that says which file to fetch and where to put it."""
    name = network.removeprefix(timm_models.PREFIX)
    place = f"the Hugging Face Hub (repository timm/{name}, tagged by its training; file model.safetensors)"
    if not network.startswith(timm_models.PREFIX):
        place = "where its authors publish it"
    if network in _PUBLISHED_FILES:
        place = f"the pretrained-models collection for PyTorch (file {_PUBLISHED_FILES[network]})"
    file = weights_folders()[0] / _PUBLISHED_FILES.get(network, f"{name}.safetensors")
    return (
        f"on a machine with a network, fetch the ImageNet weights of {name} from {place}, and give their "
        f"path: --weights FILE; or save them as {file} (the folders in "
        f"{FOLDER_VARIABLE} are looked into first)"
    )
