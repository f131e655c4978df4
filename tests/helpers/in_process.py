"""A workforce for tests that need no processes: a run is over as soon as it is handed over."""

from __future__ import annotations

from pathlib import Path

from nearkin.benchmark.worker import carry_out
from nearkin.benchmark.workforce import Event
from nearkin.training import Run
from nearkin.training.run import is_taken
from nearkin.workers import ERROR


class InProcess:
    jobs = 1

    def __init__(self) -> None:
        self.trained: list[str] = []
        self.stopped = False
        self._news: list[Event] = []

    def has_room(self) -> bool:
        return not self._news

    def start(self, run: Run) -> bool:
        if is_taken(run.path):
            return False
        self.trained.append(run.path.name)
        failed = carry_out(run.path)
        self._news.append(Event(run.path, "begun"))
        reason = (run.path / ERROR).read_text().partition("\n")[0] if failed else ""
        self._news.append(Event(run.path, "failed" if failed else "finished", reason))
        return True

    def events(self) -> list[Event]:
        news, self._news = self._news, []
        return news

    def stop(self) -> None:
        self.stopped = True


def tiny_plan(glyphs_root: Path, **changes) -> dict:
    """Plain values of a plan whose runs take about a second."""
    recipe = {
        "data": {
            "name": "glyphs",
            "root": str(glyphs_root),
            "num_classes": 60,
            "images_per_class": 8,
            "size": 16,
        },
        "network": {"size": 16, "width": 4},
        "sampler": {"batch_size": 40},
        "training": {"epochs": 2},
    }
    return {"recipe": recipe, "losses": ["nca", "proxy_anchor"], "embedding_dims": [16]} | changes
