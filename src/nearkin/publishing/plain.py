"""What may leave the machine: settings without the paths of the computer that trained."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath, PureWindowsPath
from typing import Any

_PLACES = frozenset({"root", "trunk_cache", "memory_map"})
_PATH = re.compile(r"(?<![\w.:/~-])(?:~?/|\.{1,2}/|[A-Za-z]:\\)[^\s'\",;()]*")


def without_paths(value: Any) -> Any:
    """The same values without folders: keys that say where things lie are gone, files keep their names.

    >>> without_paths({"root": "/home/me/birds", "weights": "/home/me/net.safetensors", "lr": 0.1})
    {'weights': 'net.safetensors', 'lr': 0.1}
    >>> without_paths("start from weights, in ../mine/net.pth; a/b stays")
    'start from weights, in net.pth; a/b stays'
    """
    if isinstance(value, Mapping):
        return {key: without_paths(one) for key, one in value.items() if key not in _PLACES}
    if isinstance(value, list | tuple):
        return [without_paths(one) for one in value]
    if isinstance(value, PurePath):
        return value.name
    if isinstance(value, str):
        return _PATH.sub(lambda found: PureWindowsPath(found[0].rstrip("./\\")).name, value)
    return value
