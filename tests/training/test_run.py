from __future__ import annotations

import shutil

import pytest
import torch
from running import new_run

from nearkin.atomic import atomic_path
from nearkin.evaluation import retrieval_scores
from nearkin.recipe import Recipe, override
from nearkin.training.run import Checkpoint, Run, RunError


@pytest.fixture
def run(tmp_path) -> Run:
    run = new_run(tmp_path / "run", Recipe.parse({}))
    run.begin()
    return run


def checkpoint(value: float) -> Checkpoint:
    return Checkpoint({"weights": torch.full((3, 2), value), "scalar": torch.tensor(value)}, {"value": value})


def test_a_run_that_has_begun_to_train_is_continued_by_the_same_recipe_only(run):
    run.write_metrics([{"epoch": 0}])
    assert new_run(run.path, Recipe.parse({})).path == run.path
    with pytest.raises(
        RunError, match="another recipe \\(loss.name is 'proxy_anchor' there, 'contrastive' here"
    ):
        new_run(run.path, Recipe.parse(override({}, ["loss.name=contrastive"])))


def test_a_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(RunError, match="holds other files"):
        new_run(tmp_path, Recipe.parse({}))


def test_what_a_process_killed_at_its_beginning_left_is_no_hindrance(tmp_path):
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / ".unfinished-recipe-x1y2.toml").write_text("seed = ")
    new_run(tmp_path, Recipe.parse({})).begin()
    assert Run.existing(tmp_path).terms == Recipe.parse({}).complete()
    (tmp_path / "recipe.toml").unlink()
    (tmp_path / "checkpoint" / "step-1.safetensors").write_text("somebody's weights")
    with pytest.raises(RunError, match="holds other files"):
        new_run(tmp_path, Recipe.parse({}))


def test_what_a_kill_left_half_written_goes_when_training_begins_and_not_before(run):
    run.write_checkpoint(1, checkpoint(1))
    (run.path / ".gitignore").write_text("checkpoint/")
    with atomic_path(run.path / "checkpoint" / "step-000000002.safetensors") as half:
        half.write_bytes(b"")
        again = new_run(
            run.path, Recipe.parse({})
        )  # as a second benchmark does, while the first one is writing
        assert again.last_checkpoint().state == {"value": 1}
    shutil.move(run.path / "checkpoint" / "step-000000002.safetensors", half)
    again.remove_leftovers()
    assert not half.exists()
    assert sorted(path.name for path in run.path.iterdir()) == [
        ".gitignore",
        "checkpoint",
        "recipe.toml",
        "run.json",
    ]


def test_an_output_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write to"):
        new_run(tmp_path / "file" / "run", Recipe.parse({}))


@pytest.mark.parametrize(("folder", "message"), [("nowhere", "does not exist"), (".", "is not a run")])
def test_reading_what_is_no_run(folder, message, tmp_path):
    with pytest.raises(RunError, match=message):
        Run.existing(tmp_path / folder)


def test_checkpoints_round_trip_and_two_are_kept(run):
    assert run.last_checkpoint() is None
    for step in (1, 20, 300):
        run.write_checkpoint(step, checkpoint(step))
    last = run.last_checkpoint()
    assert last.state == {"value": 300}
    assert torch.equal(last.tensors["weights"], torch.full((3, 2), 300.0))
    assert [f.name for f in sorted((run.path / "checkpoint").iterdir())] == [
        "step-000000020.safetensors",
        "step-000000300.safetensors",
    ]


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_a_damaged_checkpoint_falls_back_with_a_warning(damage, run):
    run.write_checkpoint(1, checkpoint(1))
    run.write_checkpoint(2, checkpoint(2))
    newest = run.path / "checkpoint" / "step-000000002.safetensors"
    contents = bytearray(newest.read_bytes())
    if damage == "cut":
        contents = contents[:-3]
    elif damage == "flipped":
        contents[-1] ^= 1
    else:
        contents.clear()
    newest.write_bytes(contents)
    with pytest.warns(UserWarning, match="step-000000002.safetensors is damaged"):
        last = run.last_checkpoint()
    assert last.state == {"value": 1}


def test_metrics_leave_out_a_line_cut_short(run):
    run.write_metrics([{"epoch": 1}, {"epoch": 2}])
    with run.metrics_file.open("a") as file:
        file.write('{"epoch": 3, "lo')
    assert run.metrics() == [{"epoch": 1}, {"epoch": 2}]


def test_the_network_is_missing_until_the_run_is_done(run):
    with pytest.raises(RunError, match="no trained network yet"):
        run.read_network()
    run.write_network({"a": torch.ones(2)}, {})
    assert run.read_network()["a"].tolist() == [1, 1]


def test_a_run_makes_the_folders_above_it(tmp_path):
    new_run(tmp_path / "a" / "b" / "run", {}).begin()
    assert Run.existing(tmp_path / "a" / "b" / "run").terms["seed"] == 0
    with new_run(tmp_path / "c" / "d" / "run", {}).locked():
        assert (tmp_path / "c" / "d" / "run").is_dir()


def test_the_values_of_queries_are_kept_and_damage_is_noticed(run):
    generator = torch.Generator().manual_seed(0)
    embeddings, labels = torch.randn(12, 4, generator=generator), torch.arange(12) % 3
    scores = retrieval_scores(embeddings, labels, recall_at=(1, 2), per_query=True)
    assert (run.queries(), run.cost()) == (None, None)
    run.write_queries(scores, labels)
    kept, kept_labels = run.queries()
    assert kept == scores
    assert kept_labels.equal(labels)
    for name, values in vars(scores.per_query).items():
        assert vars(kept.per_query)[name].equal(values), name
    ((part, _),) = run.parts()
    assert part == scores
    file = run.path / "test_queries.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(RunError, match="test_queries.safetensors is damaged"):
        run.queries()


def test_damaged_weights_are_noticed(run):
    run.write_network({"a": torch.ones(200)}, {"name": "convnet"})
    assert (run.path / "model.json").read_text().startswith("{")
    run.network_file.write_bytes(run.network_file.read_bytes()[:-1])
    with pytest.raises(RunError, match="network.safetensors is damaged"):
        run.read_network()


def test_what_a_run_took_is_kept(run):
    run.write_cost({"training_seconds": 1.5})
    assert Run.existing(run.path).cost() == {"training_seconds": 1.5}


def test_numbers_that_json_does_not_know_are_not_written(run):
    with pytest.raises(ValueError, match="JSON compliant"):
        run.write_metrics([{"loss": float("nan")}])


def test_a_folder_that_cannot_be_written_to_is_said(tmp_path):
    run = new_run(tmp_path / "run", {})
    (tmp_path / "run").write_text("in the way")
    for start in (run.begin, lambda: run.locked().__enter__()):
        with pytest.raises(RunError, match="cannot write to .*run: "):
            start()
