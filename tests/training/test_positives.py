"""A loss that compares samples, on batches that hold few positives, cannot learn, and says so."""

from __future__ import annotations

import pytest
import torch
from running import execute, new_run

from nearkin import losses, sampling
from nearkin.recipe import Recipe
from nearkin.training import TrainingSettings
from nearkin.training.watchdogs import Watchdogs, share_with_positives

LABELS = torch.arange(200) // 4


def said(loss: losses.Loss, sampler: sampling.PlannedSampler, **settings: int) -> list[str]:
    heard: list[str] = []
    Watchdogs(TrainingSettings(**settings), loss, heard.append).begin(sampler, torch.nn.Linear(2, 2))
    return heard


def random_batches(batch_size: int = 10) -> sampling.PlannedSampler:
    return sampling.build("random", LABELS, batch_size=batch_size)


def test_the_share_is_that_of_a_plain_count():
    sampler = random_batches()
    met = [
        sum(int(LABELS[other] == LABELS[one]) for other in batch.tolist()) > 1
        for batch in sampler.plan(0)
        for one in batch.tolist()
    ]
    assert share_with_positives(sampler) == sum(met) / len(met)


def test_a_pair_loss_on_random_batches_is_warned_about_in_one_line():
    (text,) = said(losses.build("multi_similarity"), random_batches())
    assert "samples have a positive in their batch" in text
    assert "sampler.name=balanced" in text
    assert "\n" not in text


def test_a_function_that_says_nothing_about_itself_is_taken_to_compare():
    loss = losses.as_loss(lambda embeddings, labels: embeddings.sum())
    assert len(said(loss, random_batches())) == 1


@pytest.mark.parametrize(
    ("loss", "sampler", "settings"),
    [
        ("proxy_anchor", random_batches(), {}),
        ("multi_similarity", sampling.build("balanced", LABELS, batch_size=20, images_per_class=2), {}),
        ("multi_similarity", random_batches(150), {}),
        ("multi_similarity", random_batches(), {"views": 2}),
    ],
)
def test_what_can_learn_is_not_warned_about(loss, sampler, settings):
    sizes = {"num_classes": 50, "embedding_dim": 2} if loss == "proxy_anchor" else {}
    assert said(losses.build(loss, **sizes), sampler, **settings) == []


def test_a_memory_brings_positives_of_its_own():
    assert said(losses.CrossBatchMemory(losses.build("contrastive"), size=100), random_batches()) == []


def test_a_run_keeps_the_warning_in_its_result(small_recipe, tmp_path):
    values = {
        **small_recipe,
        "loss": {"name": "multi_similarity"},
        "sampler": {"name": "random", "batch_size": 8},
        "training": {"epochs": 1},
    }
    run = execute(new_run(tmp_path / "run", Recipe.parse(values)))
    assert any("have a positive in their batch" in text for text in run.result.warnings)
