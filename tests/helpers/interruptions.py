"""Observers that break a training off, as a kill would, for tests that let it go on."""

from __future__ import annotations

from nearkin.training import Observer


class Interruption(Exception):
    pass


class StopAtBatch(Observer):
    """Breaks off after so many batches."""

    def __init__(self, batches: int) -> None:
        self.left = batches

    def step(self, **_) -> None:
        self.left -= 1
        if self.left == 0:
            raise Interruption


class StopAfterEpoch(Observer):
    """Breaks off when an epoch is scored and not yet saved."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def epoch_end(self, row: dict) -> None:
        if row["epoch"] == self.epoch:
            raise Interruption
