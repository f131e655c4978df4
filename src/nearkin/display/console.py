"""The console that everything is printed on."""

from __future__ import annotations

import os
from pathlib import Path

from rich.console import Console

console = Console(highlight=False, soft_wrap=not Console().is_terminal)
"""Standard output; off a terminal lines are never broken."""


def is_live(place: Console) -> bool:
    """Whether lines there can be drawn again: in a terminal, not in a log with colours."""
    return place.is_terminal and not place.is_dumb_terminal and place.file.isatty()


def shown_path(path: Path) -> str:
    """A path as a person would type it from here."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
