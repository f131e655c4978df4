"""What choosing on test would have claimed: the test score of every epoch, after the selection is made.

While a run trains, the network of every epoch is kept apart. No test score exists until the selected network
has been tested; then all of them are scored, and ``audit.json`` has the scores. Selection cannot read what is
not there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearkin.networks.splitting import device_of
from nearkin.observer import Observer
from nearkin.protocols.sealed import SealedTest
from nearkin.training import NetworkResult, Run, Task

LABEL = (
    "test scores of every epoch, made after the selection: they choose nothing, and the best of them is too "
    "good to be reported"
)


def audit(
    task: Task, run: Run, trained: Sequence[NetworkResult], test: SealedTest, observer: Observer
) -> None:
    """Score the networks of all epochs, for each network of a run, and write ``audit.json`` beside it.

    Args:
        task: What was trained.
        run: Its directory.
        trained: The selected networks.
        test: The test split, opened for these before.
        observer: Hears about it.
    """
    for one in trained:
        home = run if one.run == "." else Run.existing(run.path / one.run)
        if home.audit_file.exists():
            continue
        epochs = home.kept_epochs()
        if epochs != list(range(task.settings.last_epoch + 1)):
            observer.warning("no audit: this run began without one, and its first epochs were not kept")
            home.remove_epochs()
            continue
        observer.stage("scoring every epoch on the test classes, after the selection")
        embedder = task.embedder.copy()
        assert one.embedder is not None
        embedder.network.to(device_of(one.embedder.network)).eval()
        rows = []
        for done, epoch in enumerate(epochs, 1):
            embedder.trained_part().load_state_dict(home.read_epoch(epoch))
            scores = test.score_opened(embedder, task.settings.recall_at)
            rows.append({"epoch": epoch, **scores.to_dict()})
            observer.progress(done, len(epochs))
        home.write_audit(
            {
                "label": LABEL,
                "rule": one.rule,
                "chosen": one.epoch,
                "first": 0 if task.pretrained else 1,
                "epochs": rows,
            }
        )


@dataclass(frozen=True)
class Audit:
    """What is in ``audit.json``.

    Attributes:
        chosen: The epoch that was selected without the test classes.
        first: The first epoch that could have been selected: 0 where the network starts pretrained.
        rows: Test scores by epoch.
    """

    chosen: int
    first: int
    rows: dict[int, dict[str, Any]]

    @classmethod
    def read(cls, folder: Path) -> Audit | None:
        """That of a run's directory; ``None`` if there is none, or it cannot be read."""
        try:
            values = json.loads((folder / "audit.json").read_text(encoding="utf-8"))
            rows = {int(row["epoch"]): row for row in values["epochs"]}
            return cls(int(values["chosen"]), int(values["first"]), rows)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def scores(self, metric: str) -> dict[int, float]:
        """Epoch → test score, of all epochs that could have been selected."""
        return {
            epoch: float(row[metric])
            for epoch, row in sorted(self.rows.items())
            if epoch >= self.first and metric in row
        }
