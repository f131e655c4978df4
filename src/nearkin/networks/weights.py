"""Published weights into a backbone: every name must match, and what does not is listed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from nearkin.networks.base import Backbone
from nearkin.networks.pretrained import check_hash, find_weights, how_to_get_weights, hub_is_reachable
from nearkin.networks.timm_models import PREFIX

_SHOWN_KEYS = 8


def load_weights(backbone: Backbone, path: str | os.PathLike[str]) -> None:
    """Load a ``.safetensors`` or PyTorch file into a backbone.

    Weights of the classifier (``backbone.left_out``) are passed over. Everything else must match in name
    and shape.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: Names or shapes do not match; the message lists them.
    """
    load_state(backbone, read_state(path), str(path))


def load_state(backbone: Backbone, state: Mapping[str, Tensor], source: str) -> None:
    """Load weights that are in memory already; ``source`` says in an error where they came from."""
    wanted = backbone.module.state_dict()
    given = {key: value for key, value in state.items() if not key.startswith(backbone.left_out)}
    # Files older than PyTorch 0.4.1 do not count batches, and nothing depends on the count.
    missing = [key for key in wanted if key not in given and not key.endswith("num_batches_tracked")]
    unexpected = [key for key in given if key not in wanted]
    misshapen = [
        f"{key} {tuple(given[key].shape)} instead of {tuple(value.shape)}"
        for key, value in wanted.items()
        if key in given and given[key].shape != value.shape
    ]
    problems = [
        _listed(missing, "missing"),
        _listed(unexpected, "not in the network"),
        _listed(misshapen, "of another shape"),
    ]
    if any(problems):
        raise ValueError(
            "\n".join([f"the weights in {source} do not fit the network:", *filter(None, problems)])
        )
    backbone.module.load_state_dict(wanted | given)


def _listed(keys: Iterable[str], what: str) -> str:
    keys = list(keys)
    if not keys:
        return ""
    more = [f"… and {len(keys) - _SHOWN_KEYS} more"] if len(keys) > _SHOWN_KEYS else []
    return "\n    ".join([f"  {len(keys)} {what}:", *keys[:_SHOWN_KEYS], *more])


def read_state(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors in a ``.safetensors`` file or in a PyTorch file (loaded with ``weights_only=True``)."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no weights at {path}")
    check_hash(path)
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file  # noqa: PLC0415

        return load_file(path)
    state = torch.load(path, map_location="cpu", weights_only=True)
    for wrapper in ("state_dict", "model"):
        if isinstance(state, Mapping) and isinstance(state.get(wrapper), Mapping):
            state = state[wrapper]
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ValueError(f"{path} holds {type(state).__name__}, not a table of tensors")
    return {key.removeprefix("module."): value for key, value in state.items()}


def load_imagenet(backbone: Backbone, network: str) -> None:
    """Load the ImageNet weights of a backbone: from a file at hand, or downloaded by its library."""
    at_hand = find_weights(network)
    if at_hand is not None:
        load_weights(backbone, at_hand)
        return
    if backbone.download_imagenet is None:
        raise ValueError(
            f"{network} has no ImageNet weights to download: {how_to_get_weights(network)}; or give no "
            "weights to start afresh"
        )
    if network.startswith(PREFIX) and not hub_is_reachable():
        raise ConnectionError(
            f"there are no ImageNet weights of {network} at hand and no network to download them: "
            f"{how_to_get_weights(network)}"
        )
    try:
        state = backbone.download_imagenet()
    except Exception as error:  # whatever the library below says about a connection, a disk or a checksum
        raise ConnectionError(
            f"could not download the ImageNet weights of {network} ({error}): {how_to_get_weights(network)}"
        ) from error
    load_state(backbone, state, f"the download for {network}")


def add_weights(digest: hashlib._Hash, module: nn.Module) -> None:
    """Let a hash depend on every weight and buffer of a module."""
    for name, value in sorted(module.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
