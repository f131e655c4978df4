"""A tournament on data of pairs: ranked by the ROC AUC of held-out pairs, without what is about classes."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from PIL import Image

import nearkin
from nearkin.tournament.outcomes import default_metric, read_outcomes
from nearkin.tournament.playing import plan_for
from nearkin.training import Run

SMALL = {
    "network": {"name": "convnet", "size": 16, "width": 4, "embedding_dim": 8},
    "epochs": 1,
    "batch_size": 24,
}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Thirty colours, three pictures of each."""
    folder = tmp_path_factory.mktemp("pairs")
    draw = np.random.default_rng(0)
    for group in range(30):
        colour = draw.integers(20, 235, 3)
        for number in range(3):
            pixels = colour + draw.integers(-20, 20, (20, 20, 3))
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{group:02}-{number}.png")
    rows = [(f"{g:02}-0.png", f"{g:02}-{n}.png", 1) for g in range(30) for n in (1, 2)]
    rows += [(f"{g:02}-0.png", f"{(g + n) % 30:02}-1.png", 0) for g in range(30) for n in (1, 2)]
    with (folder / "pairs.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("a", "b", "same"), *rows])
    return folder / "pairs.csv"


@pytest.fixture(scope="module")
def folder(table, tmp_path_factory):
    """Two runs."""
    folder = tmp_path_factory.mktemp("runs")
    for loss in ("contrastive", "multi_similarity"):
        nearkin.train(table, loss=loss, output=folder / loss, progress=False, **SMALL)
    return folder


def test_runs_are_ranked_by_the_roc_auc_of_their_test_pairs(folder):
    found = nearkin.compare(folder)
    assert found.metric == "roc_auc"
    expected = {
        name: Run.existing(folder / name).result.verification.verification.roc_auc
        for name in ("contrastive", "multi_similarity")
    }
    (board,) = found.leaderboards
    assert {place.contender: place.scores["roc_auc"] for place in board.places} == expected
    assert [place.contender for place in board.places] == sorted(expected, key=lambda one: -expected[one])
    assert any("no verdict over single queries" in note for note in board.notes)
    assert not any("kept no queries" in note for note in board.notes)
    by_search = nearkin.compare(folder, metric="recall_at_1")
    assert by_search.leaderboards[0].comparisons


def test_the_report_leaves_out_what_is_about_classes(folder, tmp_path):
    page = nearkin.tournament(folder, output=tmp_path / "t", baselines=True, progress=False).report
    text = page.read_text(encoding="utf-8")
    assert "ROC AUC" in text
    assert "a neighbour without a mark is one of which nothing is known" in text
    assert "Most often taken for something else" not in text
    outcomes = read_outcomes([tmp_path / "t"]).outcomes
    assert {one.contender for one in outcomes} == {"raw_pixels", "pca", "untrained_network"}
    assert all(0 <= one.scores["roc_auc"] <= 1 for one in outcomes)
    assert default_metric(outcomes) == "roc_auc"


def test_the_losses_that_need_no_classes_take_part(table):
    plan = plan_for(str(table), settings=SMALL)
    assert {one.name for one in plan.losses} == {
        "contrastive", "triplet", "lifted_structure", "npair", "margin", "multi_similarity"
    }  # fmt: skip
    of_classes = plan_for(str(table), settings=SMALL | {"data": {"others": "different"}})
    assert "proxy_anchor" in {one.name for one in of_classes.losses}


def test_the_command_trains_and_ranks(nearkin, table, tmp_path, monkeypatch):
    monkeypatch.setattr("nearkin.tournament.playing.write_report", lambda *_, **__: None)  # written above
    settings = [f"--set=network.{key}={value}" for key, value in SMALL["network"].items()]
    code, out, err = nearkin(
        "tournament", table, "-l", "contrastive", "-l", "triplet", *settings, "-s", "training.epochs=1", "-s",
        "sampler.batch_size=24", "-j", "1", "--no-baselines", "--json", "-o", tmp_path / "t",
    )  # fmt: skip
    assert code == 0, err
    found = json.loads(out)
    assert found["metric"] == "roc_auc"
    assert {row["contender"] for row in found["rows"]} == {"contrastive", "triplet"}
    code, _, err = nearkin("tournament", table, "--metric", "roc_acu", *settings, "-o", tmp_path / "u")
    assert code == 2
    assert "did you mean roc_auc" in err
