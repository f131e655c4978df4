from __future__ import annotations

import json

import pytest
import tomli_w
from in_process import InProcess
from running import finished

from nearkin.benchmark import execution
from nearkin.display.console import console
from nearkin.training import Description, Run


@pytest.fixture
def nearkin(nearkin, monkeypatch):
    """In a terminal of 120 columns."""
    monkeypatch.setattr(console, "_width", 120)
    return nearkin


def test_the_thesis_tournament_is_printed(nearkin):
    code, out, _ = nearkin("tournament", "--published", "thesis")
    assert code == 0
    lines = [line.split() for line in out.splitlines()]
    assert lines[3][:5] == ["1", "proxy_anchor", "12", "1.00", "0.00"]
    assert lines[11][:5] == ["9", "triplet", "103", "8.58", "0.51"]
    assert lines[2][-1] == "ranks"
    assert "prints 8.85 for the average rank of triplet" in out
    assert "critical difference 3.91 ranks: proxy_anchor is ahead of 5 of 9" in out


def test_weights_and_bad_images_are_said_as_for_a_training(nearkin, tmp_path, monkeypatch):
    asked = {}

    def play(what, **options):
        asked.update(options, what=what)
        raise ValueError("asked")

    monkeypatch.setattr("nearkin.tournament.playing.play", play)
    file = tmp_path / "it's mine.safetensors"
    nearkin("tournament", "birds", "--weights", file, "--skip-bad", "-s", "training.epochs=2")
    assert asked["what"] == ["birds"]
    assert asked["settings"] == {
        "training": {"epochs": 2},
        "network": {"weights": str(file)},
        "data": {"skip_bad": True},
    }


def test_every_experiment_is_printed_on_request(nearkin):
    _, out, _ = nearkin("tournament", "--published", "thesis", "--every")
    assert out.count("cub200 ·") == 13  # 12 leaderboards and the title of the ranking
    assert "cub200 · resnet50 · 512" in out


def test_runs_are_ranked_beside_their_baselines(nearkin, small_recipe, tmp_path):
    for loss in ("triplet", "npair"):
        sampler = {"name": "balanced", "batch_size": 40}
        finished(tmp_path / "runs" / loss, {**small_recipe, "loss": {"name": loss}, "sampler": sampler})
    output = tmp_path / "out"
    code, out, err = nearkin("tournament", tmp_path / "runs", "-o", output, "--no-report")
    assert (code, err) == (0, "")
    for name in ("triplet", "npair", "raw_pixels", "untrained_network", "pca", "lfda", "95% interval", "●"):
        assert name in out
    assert "30 test classes" in out
    assert "No test over experiments" in out
    kept = sorted(output.glob("baselines/*/*/result.json"))
    assert len(kept) == 8
    _, without, _ = nearkin("tournament", tmp_path / "runs", "--no-baselines", "--no-report")
    assert "raw_pixels" not in without


def test_baselines_that_cannot_be_run_are_told_and_stop_nothing(nearkin, small_recipe, tmp_path, monkeypatch):
    finished(tmp_path / "runs" / "a", small_recipe)

    def gone(*_: object) -> None:
        raise ValueError("the data is gone")

    monkeypatch.setattr("nearkin.recipe.starting_point.open_data", gone)
    code, out, _ = nearkin("tournament", tmp_path / "runs", "-o", tmp_path / "out", "--no-report")
    assert code == 0
    assert "No baselines for" in out
    assert "the data is gone" in out


def test_unfinished_runs_are_listed(nearkin, small_recipe, tmp_path):
    finished(tmp_path / "runs" / "done", small_recipe)
    for number in range(7):
        Run.open(tmp_path / "runs" / f"begun-{number}", Description("seed = 0", {"seed": 0})).begin()
    _, out, _ = nearkin("tournament", tmp_path / "runs", "--no-baselines", "--no-report")
    assert out.count("not finished") == 5
    assert "and 2 more" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "nowhere is not a directory"),
        (["--published", "tesis"], "did you mean thesis"),
        ([".", "--published", "thesis"], "give runs or --published, not both"),
        (["."], "holds neither finished runs nor images: there is no finished run to rank"),
        (["/"], "is the whole disk"),
        (["--metric", "recal_at_1"], "would have no recal_at_1: did you mean recall_at_1?"),
        (["glyphs", "--loss", "tripet"], "unknown loss 'tripet': did you mean triplet?"),
    ],
)
def test_mistakes_are_one_line(nearkin, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    code, _, err = nearkin("tournament", *arguments, "--no-report")
    assert code == 2
    assert said in err
    assert err.count("\n") == 1


def test_a_narrow_terminal_gets_whole_cells(nearkin, monkeypatch, small_recipe, tmp_path):
    finished(tmp_path / "runs" / "a", small_recipe)
    monkeypatch.setattr(console, "_width", 80)
    _, out, _ = nearkin("tournament", tmp_path / "runs", "-o", tmp_path / "out", "--no-report")
    assert "…" not in out
    _, out, _ = nearkin("tournament", "--published", "thesis")
    assert "…" not in out


def test_long_names_leave_the_numbers_whole(nearkin, monkeypatch, small_recipe, tmp_path):
    samplers = ("balanced", "random")
    for name in samplers:
        terms = {"loss": {"name": "direction_multi_similarity"}, "training": {"epochs": 1}}
        sampler = {"sampler": {"name": name, "batch_size": 40}}
        finished(tmp_path / "runs" / name, {**small_recipe, **terms, **sampler})
    monkeypatch.setattr(console, "_width", 80)  # as in a pipe
    code, out, _ = nearkin("tournament", tmp_path / "runs", "--no-baselines", "--no-report")
    assert code == 0
    assert "…" not in out
    for name in samplers:
        found = json.loads((tmp_path / "runs" / name / "result.json").read_text())
        assert f"{100 * found['test']['recall_at_1']:.2f}" in out
        assert f"sampler.name={name}" in out
    assert "95% interval" in out


def test_without_runs_the_embedded_plan_is_executed_ranked_and_reported(
    nearkin, small_recipe, tmp_path, monkeypatch
):
    monkeypatch.setattr(execution, "_PAUSE", 0)
    monkeypatch.setattr(execution, "_workforce", lambda *_: InProcess())
    small = {"losses": ["triplet", "npair"], "recipe": small_recipe}
    file = tmp_path / "tournament.toml"
    file.write_text(tomli_w.dumps(small))
    monkeypatch.setattr("nearkin.benchmark.plan.packaged_plans", lambda: {"tournament": file})
    code, out, _ = nearkin("tournament", "-o", tmp_path / "out")
    assert code == 0
    assert "raw_pixels" in out
    assert (tmp_path / "out" / "report.html").exists()
    written = {file: file.stat().st_mtime_ns for file in tmp_path.glob("out/**/result.json")}
    assert len(written) == 10
    assert "report    " in out
    nearkin("tournament", "-o", tmp_path / "out", "--no-report")
    assert {file: file.stat().st_mtime_ns for file in tmp_path.glob("out/**/result.json")} == written


def test_terms_that_differ_are_rows_unless_they_are_pooled(nearkin, small_recipe, tmp_path):
    for sampler in ("balanced", "random"):
        values = {"loss": {"name": "triplet"}, "sampler": {"name": sampler, "batch_size": 40}}
        finished(tmp_path / "runs" / sampler, {**small_recipe, **values})
    arguments = ("tournament", tmp_path / "runs", "--no-baselines", "--no-report")
    _, out, _ = nearkin(*arguments)
    assert "triplet (sampler.name=balanced)" in out
    assert "triplet (sampler.name=random)" in out
    _, out, _ = nearkin(*arguments, "--pool", "sampler")
    assert "triplet (" not in out
    assert "Averaged over different terms on request (--pool sampler)" in out
    code, _, err = nearkin(*arguments, "--pool", "samplr")
    assert (code, "did you mean sampler?" in err) == (2, True)


def test_json_is_for_machines_and_nothing_else(nearkin, small_recipe, tmp_path):
    finished(tmp_path / "runs" / "a", small_recipe)
    code, out, _ = nearkin("tournament", tmp_path / "runs", "--no-baselines", "--no-report", "--json")
    found = json.loads(out)
    assert code == 0
    (row,) = found["rows"]
    assert (row["contender"], row["rank"], row["dataset"][:6]) == ("proxy_anchor", 1, "glyphs")
    assert any("trained" in note or "One seed" in note for note in found["board_notes"].popitem()[1])
