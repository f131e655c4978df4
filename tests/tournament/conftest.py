from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from nearkin.evaluation import retrieval_scores
from nearkin.recipe import Recipe
from nearkin.training import DataSummary, Description, NetworkResult, Result, Run, SplitSummary

CLASSES, IMAGES = 40, 6


@pytest.fixture
def labels() -> Tensor:
    """Of the test images of every made-up run."""
    return torch.arange(CLASSES).repeat_interleave(IMAGES)


@pytest.fixture
def make_run(tmp_path, labels) -> Callable[..., Path]:
    """Writes a finished run as training would, around embeddings that are made up: noise around classes."""

    def make(
        loss: str, *, noise: float, seed: int = 0, folder: str = "runs", data: str = "", **changes: object
    ) -> Path:
        recipe = Recipe.parse({"seed": seed, "loss": {"name": loss}, "sampler": {"name": "balanced"}})
        if changes:
            recipe = recipe.changed(changes)
        draw = torch.Generator().manual_seed(seed + 1000 * sum(map(ord, loss)))
        centres = torch.randn(CLASSES, 8, generator=torch.Generator().manual_seed(0))
        points = centres[labels] + noise * torch.randn(len(labels), 8, generator=draw)
        scores = retrieval_scores(points, labels, per_query=True)
        place = "-".join([loss, *map(str, changes.values()), str(seed)])
        run = Run.open(tmp_path / folder / place, Description(recipe.to_toml(), recipe.complete()))
        run.begin()
        run.write_metrics([{"epoch": 0, "lr": 0.1, "recall_at_1": 0.1}])
        run.write_queries(scores, labels)
        run.write_cost({"training_seconds": 1.5, "seconds_per_epoch": 0.5, "peak_memory_bytes": 10**6})
        means = replace(scores, per_query=None)
        seen = DataSummary(SplitSummary(100, 10), None, SplitSummary(len(labels), CLASSES, (), data))
        network = NetworkResult("last epoch", 0, seen, validation=means, test=means)
        run.write_result(Result.of([network], recipe=run.terms, disclosure={"pooling": "avg"}))
        return run.path

    return make
