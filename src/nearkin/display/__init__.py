"""Progress for people: in a terminal, in a pipe or log file, in a notebook."""

from __future__ import annotations

from typing import Any

from nearkin.observer import Observer


def observer_for(progress: bool | Observer, *, search: Any = None) -> Any:
    """Who is told about progress: the given observer, a display that fits the place, or nobody."""
    return progress if isinstance(progress, Observer) else Observer()
