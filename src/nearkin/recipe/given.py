"""What tells objects apart that were given in Python and cannot be named: their make, not their weights."""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
from typing import Any

from torch import nn

_PLAIN = (int, float, str, bool, type(None))


def digest_of(given: Any) -> str:
    """Eight characters that are the same for an object made by the same code in another process.

    Of a module they depend on its layers, sizes and settings, not on its weights, which a script may draw
    anew; of a function on its code and defaults.

    >>> digest_of(nn.Linear(2, 3)) == digest_of(nn.Linear(2, 3)), digest_of(nn.Dropout(0.1))[:0]
    (True, '')
    """
    return hashlib.sha256("\n".join(_told(given)).encode()).hexdigest()[:8]


def _told(given: Any) -> list[str]:
    if isinstance(given, functools.partial):
        return [*_told(given.func), *map(_plain, given.args), _plain(given.keywords)]
    if inspect.isfunction(given):
        cells = [_plain(cell.cell_contents) for cell in given.__closure__ or ()]
        return [given.__qualname__, _source(given), _plain(given.__defaults__), *cells]
    if isinstance(given, nn.Module):
        sizes = [f"{name} {tuple(value.shape)} {value.dtype}" for name, value in given.state_dict().items()]
        parts = [f"{name} {_settings(part)}" for name, part in given.named_modules()]
        return [*parts, *sizes]
    return [_settings(given)]


def _settings(given: Any) -> str:
    """The type of an object and its plain attributes."""
    own = vars(given) if hasattr(given, "__dict__") else {}
    plain = {key: _plain(own[key]) for key in sorted(own) if key != "training" and not key.startswith("_")}
    return f"{type(given).__module__}:{type(given).__qualname__} {plain}"


def _plain(value: Any) -> str:
    """A plain value in words, anything else by its type."""
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_plain, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_plain(value[key])}" for key in sorted(value, key=str)) + "}"
    return getattr(value, "__qualname__", type(value).__qualname__)


def _source(function: Any) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):  # typed into a session that keeps no text
        code = function.__code__
        constants = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(code.co_consts))
        return f"{code.co_code.hex()} {code.co_names} {constants}"
