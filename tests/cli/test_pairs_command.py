"""A table of pairs from the command line: train, evaluate, verify."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from PIL import Image

SMALL = ("-s", "network.name=convnet", "-s", "network.size=16", "-s", "network.width=4", "-s",
         "network.embedding_dim=8", "-s", "training.epochs=2", "-s", "sampler.batch_size=24")  # fmt: skip


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Forty colours, three pictures of each."""
    folder = tmp_path_factory.mktemp("pairs")
    draw = np.random.default_rng(0)
    for group in range(40):
        colour = draw.integers(20, 235, 3)
        for number in range(3):
            pixels = colour + draw.integers(-20, 20, (20, 20, 3))
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{group:02}-{number}.png")
    rows = [(f"{g:02}-0.png", f"{g:02}-{n}.png", 1) for g in range(40) for n in (1, 2)]
    rows += [(f"{g:02}-0.png", f"{(g + n) % 40:02}-1.png", 0) for g in range(40) for n in (1, 2)]
    with (folder / "pairs.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("a", "b", "same"), *rows])
    return folder / "pairs.csv"


def test_from_a_table_to_a_decision(nearkin, table, tmp_path, monkeypatch):
    monkeypatch.setattr("nearkin.cli.views.draw_run", lambda *_: [])  # pictures are drawn elsewhere
    run = tmp_path / "run"
    code, out, err = nearkin("train", table, *SMALL, "-o", run)
    assert code == 0, err
    assert "test pairs" in out
    assert "ROC AUC" in out
    assert "160 pairs of 120 samples: 80 the same, 80 different" in out
    result = json.loads((run / "result.json").read_text())
    assert result["verification"]["roc_auc"] > 0.5
    code, out, err = nearkin("evaluate", run)
    assert code == 0, err
    assert "accuracy_at_threshold" in out
    found = json.loads((run / "evaluation.json").read_text())
    assert found["verification"]["accuracy_at_threshold"] == result["verification"]["accuracy_at_threshold"]
    assert found["intervals"]["roc_auc"]["value"] == pytest.approx(result["verification"]["roc_auc"])
    code, out, _ = nearkin("verify", run, table.parent / "00-0.png", table.parent / "00-1.png")
    assert code == 0
    assert out.startswith(("same: ", "different: "))
    code, out, _ = nearkin("verify", run, table)
    assert code == 0
    assert "160 pairs" in out


def test_the_recipe_says_what_was_chosen_for_pairs(nearkin, table):
    code, out, _ = nearkin("train", table, *SMALL, "--show-recipe")
    assert code == 0
    for line in ('name = "contrastive"', 'name = "pairs"', 'select = "roc_auc"'):
        assert line in out


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            "a,b,same\n00-0.png,00-1.png,1\n00-1.png,00-0.png,0\n",
            "are said to be the same in line 2 and different",
        ),
        ("a\n00-0.png\n", "no column b in its first line"),
        ("a,b,same\n00-0.png,00-1.png,1\n", "no pair is different"),
        ("a,b\n00-0.png,00-1.png\n", "say data.others=different"),
    ],
)
def test_odd_tables_are_one_line(nearkin, table, lines, message):
    odd = table.parent / "odd.csv"
    odd.write_text(lines)
    code, out, err = nearkin("train", odd, *SMALL)
    assert (code, out) == (2, "opening pairs\n")
    assert message in " ".join(err.split())
    assert err.count("\n") == 1


def test_a_picture_that_is_missing_is_named(nearkin, table, tmp_path):
    gone = table.parent / "gone.csv"
    gone.write_text(table.read_text().replace("07-2.png", "nowhere.png"))
    code, _, err = nearkin("train", gone, *SMALL, "-o", tmp_path / "run")
    assert code == 2
    assert "nowhere.png" in err
    code, _, err = nearkin("train", table.parent / "no_table.csv", *SMALL)
    assert code == 2
    assert "there is no table" in err
