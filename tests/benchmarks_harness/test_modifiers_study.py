"""The study of modifiers: its plan takes tuned weights, and its page says what the runs say."""

from __future__ import annotations

import re

import pytest
import torch
from measured import BENCHMARKS

import modifiers as study

LABELS = torch.arange(40).repeat_interleave(5)


def cell(share: float, seed: int = 0) -> study.Cell:
    draws = torch.rand(len(LABELS), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return study.Cell({0: share, 1: share + 0.02}, (draws < share).double(), LABELS)


FOUND = {
    ("triplet", "none"): cell(0.5),
    ("triplet", "mixup"): cell(0.8),
    ("triplet", "s2sd"): cell(0.2),
    ("triplet", "distil"): cell(0.5),
}


def test_tuned_weights_reach_the_runs_of_their_loss_only():
    plan = study.plan_of("glyphs", ["recipe.training.epochs=2"], {"triplet": {"mixup": 0.7}})
    weights = {
        (run.labels["loss"], run.recipe.loss.mixup["weight"])
        for run in plan.runs()
        if run.labels["modifier"] == "mixup"
    }
    assert weights == {("triplet", 0.7), ("multi_similarity", 0.4), ("proxy_anchor", 0.4), ("margin", 0.4)}
    assert len(plan.runs()) == 60
    assert {run.recipe.training.epochs for run in plan.runs()} == {2}


@pytest.mark.parametrize("name", study.PLANS)
def test_every_grid_is_of_a_modifier_with_a_weight(name):
    labels = {run.labels["modifier"] for run in study.plan_of(name, [], {}).runs()}
    assert set(study.GRID) | {"none", "matryoshka"} == labels


def test_the_table_has_means_and_differences():
    header, _, row = study.table(FOUND)
    assert header == "| Recall@1, % | none | mixup | s2sd | distil |"
    assert row.startswith("| triplet | 51.00 | 81.00 (+")
    low, high = map(float, re.search(r"81\.00 \([^;]*; (\S+) to ([^)]+)\)", row).groups())
    gained = 100 * (FOUND["triplet", "mixup"].right - FOUND["triplet", "none"].right).mean().item()
    assert low < gained < high
    assert "51.00 (+0.00; +0.00 to +0.00)" in row


def test_the_verdicts_follow_the_intervals():
    assert study.verdicts(FOUND) == [
        "- **helps**: mixup around triplet",
        "- **hurts**: s2sd around triplet",
        "- **cannot be told from nothing**: distil around triplet",
    ]


@pytest.mark.slow
def test_a_small_study_from_its_command_to_its_page(tmp_path, monkeypatch, nearkin):
    assert (BENCHMARKS / "modifiers.py").exists()
    monkeypatch.chdir(tmp_path)
    study.main(["glyphs", "--small", "--jobs", "2", "--page", "page.md"])
    text = (tmp_path / "page.md").read_text()
    assert "## Glyphs" in text
    assert "Seeds 0, 1, 2." in text
    assert "- triplet: s2sd 1, mixup 0.1, distil 0.003" in text
    assert "beginnings" not in text
    tiny = [f"--set={one}" for one in study.SMALL]
    few = [
        "--set=recipe.network.embedding_dim=32",
        '--set=modifiers=["none"]',
        '--set=losses=["triplet"]',
        "--set=seeds=[0]",
    ]
    assert nearkin("benchmark", "modifiers", *tiny, *few, "-o", "studies/modifiers/glyphs/smaller")[0] == 0
    study.main(["--page", "page.md"])
    kept = study.read_outcomes([tmp_path / "studies/modifiers/glyphs/runs"]).outcomes
    first = [
        one.result.test_by_size[32].recall_at[1]
        for one in kept
        if one.loss == "triplet" and study.modifier_of(one) == "matryoshka"
    ]
    assert len(first) == 3
    assert f"| {100 * sum(first) / 3:.2f} |" in (tmp_path / "page.md").read_text().split("beginnings")[1]
    assert (
        len(re.findall(r"^\| (?:multi_similarity|proxy_anchor|margin|triplet) \|", text, re.MULTILINE)) == 4
    )
