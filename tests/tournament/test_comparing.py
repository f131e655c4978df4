from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import tomli_w
import torch

import nearkin
from nearkin.recipe import starting_point
from nearkin.tournament import compare
from nearkin.tournament.comparing import read_results_of
from nearkin.tournament.grouping import group_outcomes
from nearkin.tournament.playing import publish
from nearkin.tournament.tables import is_results_table, read_results
from nearkin.training import Run


def write_table(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture
def others(tmp_path):
    return write_table(
        tmp_path / "others.csv",
        [
            {"loss": "circle", "dataset": "glyphs", "seed": seed, "R@1": recall, "map_at_r": 0.3}
            for seed, recall in enumerate((61.0, 63.0))
        ],
    )


def test_runs_paths_folders_and_tables_are_ranked_together(make_run, others):
    first, second = make_run("triplet", noise=0.6), make_run("npair", noise=1.2, folder="more")
    standings = compare([Run.existing(first), second.parent, others])
    (board,) = standings.leaderboards
    assert {place.contender: place.seeds for place in board.places} == {"triplet": 1, "npair": 1, "circle": 2}
    circle = standings.place(board.experiment, "circle")
    assert circle.scores["recall_at_1"] == pytest.approx(0.62)
    assert circle.spread["recall_at_1"] == pytest.approx(0.02**0.5 * 0.1)
    assert board.comparison("triplet", "npair") is not None
    assert board.comparison("triplet", "circle") is None  # nobody knows its queries
    (note,) = [note for note in standings.notes if "others.csv" in note]
    assert "recall_at_1 as per cent and map_at_r as shares of 1" in note


def test_one_path_is_enough_and_the_library_has_it_too(make_run):
    path = make_run("triplet", noise=0.6)
    assert compare(path).leaderboards == nearkin.compare([path]).leaderboards


def test_somebody_elses_figures_of_a_loss_are_not_averaged_with_ones_own(make_run, tmp_path):
    run = make_run("triplet", noise=0.6)
    table = write_table(
        tmp_path / "t.csv", [{"contender": "triplet", "dataset": "glyphs", "recall_at_1": 0.1}]
    )
    (board,) = compare([run, table]).leaderboards
    assert {place.contender for place in board.places} == {"triplet", "triplet (t.csv)"}


def test_other_data_or_networks_are_other_boards(make_run, tmp_path):
    run = make_run("triplet", noise=0.6)
    rows = [
        {"contender": "a", "dataset": "cub200", "network": "", "recall_at_1": 0.1},
        {"contender": "a", "dataset": "glyphs", "network": "resnet50", "recall_at_1": 0.1},
    ]
    boards = compare([run, write_table(tmp_path / "t.csv", rows)]).leaderboards
    assert [str(board.experiment) for board in boards] == [
        "cub200",
        "glyphs · convnet · 64 · fixed_validation",
        "glyphs · resnet50",
    ]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"name": "a", "recall_at_1": 1}], "no column contender .or loss.: it has name, recall_at_1"),
        ([{"loss": "a", "seed": 1}], "no column of scores"),
        ([{"loss": "a", "recall_at_1": "high"}], "line 2: recall_at_1 is 'high', not a number"),
        ([{"loss": "a", "recall_at_1": 0.2}, {"loss": "a", "recall_at_1": 120}], "line 3: .*0 and 100"),
    ],
)
def test_a_table_that_is_none_is_refused_in_a_sentence(rows, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        read_results(write_table(tmp_path / "t.csv", rows))


def test_tables_of_results_and_of_images_are_told_apart(others, tmp_path):
    assert is_results_table(others)
    assert not is_results_table(
        write_table(tmp_path / "i.csv", [{"path": "a.jpg", "label": "a", "loss": "b"}])
    )
    assert not is_results_table(tmp_path / "nowhere.csv")


def test_a_misspelt_score_is_told_before_baselines_run(make_run, tmp_path, monkeypatch):
    path = make_run("triplet", noise=0.6)
    monkeypatch.setattr(starting_point, "open_data", lambda *_: pytest.fail("baselines were begun"))
    with pytest.raises(ValueError, match="has no recal_at_1: did you mean recall_at_1"):
        compare(path, metric="recal_at_1", baselines=tmp_path / "kept")
    with pytest.raises(ValueError, match="--pool samplr"):
        compare(path, pool="samplr", baselines=tmp_path / "kept")


def test_what_is_nothing_is_refused(make_run, tmp_path):
    with pytest.raises(TypeError, match="42 is neither a run nor a path"):
        compare([42])
    with pytest.raises(ValueError, match="nowhere is not a directory"):
        compare(tmp_path / "nowhere")
    path = make_run("triplet", noise=0.6)
    (path / "result.json").unlink()
    with pytest.raises(ValueError, match=r"no finished run to rank: .*is left out \(not finished\)"):
        compare(path)
    with pytest.raises(ValueError, match="is not finished"):
        compare([Run.existing(path)])


def test_standings_show_themselves(make_run, tmp_path):
    make_run("triplet", noise=0.6)
    make_run("npair", noise=1.2, **{"sampler.name": "random"})
    standings = compare(tmp_path)
    rows = standings.rows()
    assert [row["contender"] for row in rows] == ["triplet", "npair"]
    assert rows[0]["recall_at_1_low"] < rows[0]["recall_at_1"] < rows[0]["recall_at_1_high"]
    assert rows[1]["rank"] == 2
    page = standings._repr_html_()
    assert "<td>triplet</td>" in page
    assert "glyphs · convnet · 64" in page
    assert "triplet" in str(standings).splitlines()[1]
    pandas = pytest.importorskip("pandas")
    assert isinstance(standings.to_pandas(), pandas.DataFrame)


def test_runs_of_the_first_edition_are_read(make_run, labels):
    """Their recipe.toml has all settings, their results count images, and nothing has a fingerprint."""
    new = make_run("triplet", noise=1.0, seed=0)
    old = make_run("triplet", noise=1.0, seed=1)
    terms = json.loads((old / "run.json").read_text())["terms"]
    del terms["loss"]["margin"]  # keywords by default were not written
    (old / "run.json").unlink()
    (old / "recipe.toml").write_text(tomli_w.dumps(terms))
    result = json.loads((old / "result.json").read_text())
    (network,) = result.pop("networks")
    splits = {"train": {"images": 100, "classes": 10}, "test": {"images": len(labels), "classes": 40}}
    (old / "result.json").write_text(
        json.dumps({**result, "selection": network["selection"], "data": splits, "recipe": terms})
    )
    (board,) = compare([new, old]).leaderboards
    assert [(place.contender, place.seeds) for place in board.places] == [("triplet", 2)]


def pull(embeddings, labels):
    same = labels[:, None] == labels
    return (1 - torch.nn.functional.normalize(embeddings) @ embeddings.T)[same].mean()


def test_runs_made_of_objects_are_ranked_and_reported(tmp_path):
    """What was given in Python cannot be opened again here; all that needs it says so and nothing stops."""
    draws = np.random.default_rng(0)
    labels = np.repeat(np.arange(12), 6)
    points = (draws.normal(size=(12, 5))[labels] + 0.5 * draws.normal(size=(72, 5))).astype(np.float32)
    common = {"batch_size": 10, "protocol": "standard", "epochs": 1, "progress": False}
    runs = [
        nearkin.train(
            (points, labels),
            network=torch.nn.Linear(5, 4),
            loss=loss,
            output=tmp_path / name,
            seed=seed,
            sampler="balanced",
            **common,
        )
        for name, loss, seed in (("a", "triplet", 0), ("b", "triplet", 1), ("c", pull, 0))
    ]
    standings = compare(runs, baselines=tmp_path / "baselines")
    (board,) = standings.leaderboards
    assert sorted(place.seeds for place in board.places) == [1, 2]
    assert board.experiment.network == "Linear"
    assert board.experiment.embedding_dim == 4
    assert any("No baselines for" in note and "given in Python" in note for note in standings.notes)
    published = publish(standings, tmp_path / "report", progress=False)
    assert "given in Python" in published.report.read_text()
    assert any("triplet: network given in Python" in note for note in board.notes)
    other = nearkin.train(
        (points + 1, labels),
        network=torch.nn.Linear(5, 4),
        loss="triplet",
        output=tmp_path / "d",
        sampler="balanced",
        **common,
    )
    assert len(compare([*runs, other]).leaderboards) == 2  # the same name, and other samples


def test_the_study_of_the_first_edition_is_read_as_it_was_made():
    study = Path(__file__).parents[2] / "docs" / "results" / "cub200"
    if not (study / "runs").is_dir():
        pytest.skip("the runs of the study are archived")
    outcomes, skipped, _ = read_results_of(study)
    assert not skipped
    boards = group_outcomes(outcomes)
    assert [board.experiment.embedding_dim for board in boards] == [128, 512]
    for board in boards:
        runs = [row for row in board.rows.values() if row[0].kind == "run"]
        assert [len(row) for row in runs] == [3] * 10
        assert sum(row[0].kind == "baseline" for row in board.rows.values()) == 8
        assert not any("(" in label for label in board.rows)


def test_shares_among_per_cents_are_pointed_out(tmp_path):
    rows = [
        {"loss": loss, "dataset": "cub", "recall_at_1": recall}
        for loss, recall in (("ours", 0.701), ("theirs", 69.0), ("others", 70.5))
    ]
    _, notes = read_results(write_table(tmp_path / "t.csv", rows))
    assert "1 of 3 values of recall_at_1 lie below 1 (line 2: 0.701)" in notes[-1]
    _, notes = read_results(write_table(tmp_path / "u.csv", rows[1:]))
    assert len(notes) == 1


def test_a_table_with_semicolons_and_a_missing_score_are_told(tmp_path):
    (tmp_path / "s.csv").write_text("loss;dataset;recall_at_1\nours;cub;70\n")
    with pytest.raises(ValueError, match="write it with commas between the columns"):
        compare(tmp_path / "s.csv")
    (tmp_path / "m.csv").write_text("loss,dataset,recall_at_1\nours,cub,\ntheirs,cub,71\n")
    with pytest.raises(ValueError, match=r"m\.csv has no recall_at_1: no score of ours is there"):
        compare(tmp_path / "m.csv")
