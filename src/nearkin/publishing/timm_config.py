"""``config.json``: what timm and the Hub read about a network."""

from __future__ import annotations

import math
from typing import Any

from nearkin.data import Preprocessing
from nearkin.networks import Network
from nearkin.networks.timm_models import PREFIX

_OWN_KEYS = frozenset({"name", "embedding_dim", "pooling", "layer_norm", "size"})
# Where published weights lie and which classes they tell apart: not true of these weights any more.
_OF_OTHER_WEIGHTS = frozenset(
    {
        "url",
        "file",
        "hf_hub_id",
        "hf_hub_filename",
        "source",
        "state_dict",
        "architecture",
        "tag",
        "label_offset",
        "label_names",
        "label_descriptions",
        "test_input_size",
        "test_crop_pct",
        "test_pool_size",
        "license",
        "description",
        "origin_url",
        "notes",
    }
)


def timm_name(network: Network) -> str | None:
    """The name by which timm knows a network's backbone, if it does."""
    name = str((network.spec or {}).get("name", ""))
    return name.removeprefix(PREFIX) if name.startswith(PREFIX) else None


def config_of(network: Network) -> dict[str, Any]:
    """What ``config.json`` says: of a timm backbone, all that timm needs to build it with its weights."""
    spec = network.spec or {}
    known = timm_name(network)
    told: dict[str, Any] = {
        "architecture": known or str(spec.get("name") or spec.get("object")),
        "num_classes": 0,
        "num_features": network.num_features,
        "embedding_dim": network.embedding_dim,
        "library_name": "nearkin",
    }
    if known is not None:
        told["model_args"] = {"num_classes": 0} | {
            key: value for key, value in spec.items() if key not in _OWN_KEYS
        }
    if network.preprocessing is not None:
        told["pretrained_cfg"] = _pretrained_cfg(network, network.preprocessing)
    return told


def _pretrained_cfg(network: Network, expected: Preprocessing) -> dict[str, Any]:
    """The keys of timm's ``pretrained_cfg``."""
    published: dict[str, Any] = getattr(network.backbone, "pretrained_cfg", None) or {}
    kept = {key: value for key, value in published.items() if key not in _OF_OTHER_WEIGHTS}
    return kept | {
        "tag": "nearkin",
        "custom_load": False,
        "input_size": [expected.channels, expected.size, expected.size],
        "interpolation": expected.interpolation,
        "crop_pct": 1.0 if expected.resize is None else crop_share(expected.size, expected.resize),
        "crop_mode": "center",
        "mean": list(expected.mean),
        "std": list(expected.std),
        "num_classes": 0,
    }


def crop_share(size: int, resize: int) -> float:
    """The share of the short side that is kept, from which timm computes the same short side again.

    >>> crop_share(224, 256), math.floor(299 / crop_share(299, 334))
    (0.875, 334)
    """
    share = size / resize
    return share if math.floor(size / share) == resize else size / (resize + 0.5)
