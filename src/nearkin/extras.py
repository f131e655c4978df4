"""Packages that only some of nearkin needs: asked for where they are used, named where they are missing."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


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


def data_frame(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Rows as a ``pandas.DataFrame``, for everything that has ``to_pandas``.

    Raises:
        ModuleNotFoundError: pandas is not installed; the message says the command that installs it.
    """
    try:
        pandas = import_module("pandas")
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "to_pandas needs the package pandas, which is not installed: pip install pandas", name="pandas"
        ) from None
    return pandas.DataFrame(rows)
