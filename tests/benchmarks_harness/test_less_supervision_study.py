"""The page about fewer and wrong labels: what it says is what the runs say."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch
from measured import BENCHMARKS  # noqa: F401  (puts the benchmarks on the path)

import less_supervision as study
from modifiers import Cell

LABELS = torch.arange(40).repeat_interleave(5)


def cell(share: float, seed: int = 0) -> Cell:
    draws = torch.rand(len(LABELS), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return Cell({0: share, 1: share + 0.02}, (draws < share).double(), LABELS)


@dataclass(frozen=True)
class Found:
    """Stands for the outcomes of one contest, of which its cell is asked."""

    cell: Cell
    lines: list = field(default_factory=list)


@pytest.fixture
def made_up(monkeypatch):
    monkeypatch.setattr(study, "cell_of", lambda found: found.cell)
    monkeypatch.setattr(
        study, "lines_of", lambda found: [line for one in found.values() for line in one.lines]
    )


def line(recall: float, low: float, high: float, seed: int = 0) -> dict:
    known = {"recall_at_1": recall, "frozen_recall_at_1": 0.5, "gain_low": low, "gain_high": high}
    return known | {"seed": seed}


def test_methods_stand_beside_the_labelled_part_alone(made_up):
    found = {
        study.Contest("few_images", 3.0, "labels_only"): Found(cell(0.4)),
        study.Contest("semi_supervised", 0.25, "labels_only"): Found(cell(0.5)),
        study.Contest("semi_supervised", 0.25, "stml"): Found(cell(0.8)),
        study.Contest("unsupervised", 0.0, "stml"): Found(cell(0.3)),
        study.Contest("noisy_labels", 0.2, "triplet"): Found(cell(0.1)),
    }
    rows = study.fewer_labels(found)[2:]
    assert [row.split(" | ")[0] for row in rows] == [
        "| no labels",
        "| 25 % of the classes",
        "| 3 images of every class",
    ]
    gained = 100 * (cell(0.8).right - cell(0.5).right).mean().item()
    assert f"[{gained:+.2f}; +" in rows[1]
    assert rows[1].startswith("| 25 % of the classes | 51.00 (")
    assert "| 81.00 (" in rows[1]
    assert "[" not in rows[0] + rows[2], "there is nothing to stand beside"
    assert rows[2].endswith("| – | – | – |")


def test_a_method_without_labels_is_said_to_help_where_its_intervals_say_so(made_up):
    found = {
        study.Contest("unsupervised", 0.0, "instance"): Found(
            cell(0.5), [line(0.52, 0.01, 0.03), line(0.54, 0.02, 0.05, 1)]
        ),
        study.Contest("unsupervised", 0.0, "stml"): Found(cell(0.5), [line(0.505, -0.01, 0.02)]),
        study.Contest("unsupervised", 0.0, "pseudo_labels"): Found(cell(0.5), [line(0.4, -0.2, -0.05)]),
        study.Contest("semi_supervised", 0.1, "stml"): Found(cell(0.5), [line(0.9, 0.3, 0.5)]),
    }
    assert study.without_labels(found) == [
        "- **instance**: +3.00 points (+1.00 to +5.00), so it helps; that is at least 1 point.",
        "- **stml**: +0.50 points (-1.00 to +2.00), which may be chance; that is less than 1 point.",
        "- **pseudo_labels**: -10.00 points (-20.00 to -5.00), so it hurts; that is less than 1 point.",
    ]


def test_losses_come_in_the_order_of_what_wrong_labels_cost_them(made_up):
    found = {
        study.Contest("noisy_labels", share, loss): Found(cell(right))
        for loss, by_share in {"triplet": (0.8, 0.7, 0.2), "margin": (0.7, 0.7, 0.6)}.items()
        for share, right in zip((0.0, 0.2, 0.4), by_share, strict=True)
    }
    header, _, first, second = study.wrong_labels(found)
    assert header == "| loss | 0 % wrong | 20 % wrong | 40 % wrong | from first to last |"
    assert first.startswith("| margin | 71.00 (")
    assert second.startswith("| triplet | 81.00 (")
    lost = 100 * (cell(0.2).right - cell(0.8).right).mean().item()
    assert f"| {lost:+.2f}; -" in second
    del found[study.Contest("noisy_labels", 0.4, "margin")]
    assert study.wrong_labels(found)[-1].endswith("| – | – |"), "what is not there comes last"


def run(source: str, seed: int, **recipe):
    return SimpleNamespace(source=source, seed=seed, result=SimpleNamespace(recipe={"seed": seed, **recipe}))


def test_runs_that_differ_in_more_than_the_seed_are_never_averaged():
    contest = study.Contest("noisy_labels", 0.2, "triplet")
    study.refuse_mixture(contest, [run("a", 0, precision="bf16"), run("b", 1, precision="bf16")])
    with pytest.raises(SystemExit, match="a and c are both runs of .* differ in more than the seed"):
        study.refuse_mixture(contest, [run("a", 0, precision="bf16"), run("c", 1, precision="fp32")])
    with pytest.raises(SystemExit, match="a and d are both runs of .* have the same seed"):
        study.refuse_mixture(contest, [run("a", 0, precision="bf16"), run("d", 0, precision="bf16")])


@pytest.mark.slow
def test_from_the_runs_of_a_plan_to_the_page(tmp_path, nearkin):
    settings = [
        'data_sets=[{ name = "glyphs", num_classes = 40, images_per_class = 6, size = 16 }]',
        'networks=["convnet"]',
        "embedding_dims=[16]",
        "seeds=[0]",
        'protocols=[{ name = "unsupervised" }, { name = "semi_supervised", labelled_classes = 0.5 }]',
        'exclude=[{ protocol = "unsupervised", loss = "labels_only" }]',
        "adjust=[]",
        "recipe.data.transform=resized_crop",
        "recipe.network={ size = 16, width = 4 }",
        "recipe.training.epochs=1",
        "recipe.sampler.batch_size=20",
    ]
    told = [part for setting in settings for part in ("--set", setting)]
    code, output = nearkin("benchmark", "less_supervision", *told, "-o", str(tmp_path / "runs"))[:2]
    assert code == 0, output
    study.main([str(tmp_path / "runs"), "--page", str(tmp_path / "page.md")])
    text = (tmp_path / "page.md").read_text()
    with (tmp_path / "page.csv").open() as file:
        lines = {(one["protocol"], one["contender"]): one for one in csv.DictReader(file)}
    assert set(lines) == {
        *(("unsupervised", method) for method in study.METHODS[1:]),
        *(("semi_supervised", method) for method in study.METHODS),
    }
    for name, one in lines.items():
        assert f"{100 * float(one['recall_at_1']):.2f} (" in text, name
    assert len(re.findall(r"^- \*\*(?:instance|pseudo_labels|stml)\*\*: ", text, re.MULTILINE)) == 3
    assert "Wrong labels" not in text


def test_folders_without_finished_runs_are_refused(tmp_path):
    with pytest.raises(SystemExit, match="no finished runs"):
        study.main([str(tmp_path), "--page", str(tmp_path / "page.md")])
