"""Packages that only some of nearkin needs: asked for where they are used, named where they are missing."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType


def require(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import a package of an extra.

    Args:
        module: What to import, such as ``optuna`` or ``fsspec.core``.
        extra: The extra of nearkin that brings it.
        purpose: What needs it, as the beginning of a sentence.

    Returns:
        The imported module.

    Raises:
        ModuleNotFoundError: it is not installed; the message says the command that installs it. A package
            that is installed, but misses something itself, speaks for itself.

    >>> require("json", extra="tune", purpose="an example").__name__
    'json'
    """
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        raise ModuleNotFoundError(
            f"{purpose} needs the package {package}, which is not installed: pip install 'nearkin[{extra}]'",
            name=package,
        ) from None
