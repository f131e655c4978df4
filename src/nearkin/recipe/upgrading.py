"""Recipes of the first edition, read as what they mean today."""

from __future__ import annotations

from typing import Any

# Complete recipes used to write out keys of every schedule, whether the chosen one takes them or not.
_SCHEDULE_KEYS = {"every": 10, "milestones": [], "factor": 0.1}
_TAKEN = {"step": {"every", "factor"}, "multi_step": {"milestones", "factor"}}


def upgraded(values: dict[str, Any]) -> dict[str, Any]:
    """Plain values without what an old recipe wrote out and nothing takes.

    >>> upgraded({"schedule": {"name": "cosine", "every": 10, "milestones": [], "factor": 0.1}})
    {'schedule': {'name': 'cosine'}}
    """
    schedule = values.get("schedule")
    if isinstance(schedule, dict):
        taken = _TAKEN.get(str(schedule.get("name", "cosine")), set())
        kept = {
            key: value
            for key, value in schedule.items()
            if key in taken or key not in _SCHEDULE_KEYS or value != _SCHEDULE_KEYS[key]
        }
        values = {**values, "schedule": kept}
    return values
