"""A run directory over its life: begun, refused, held, moved, gone on with, finished."""

from __future__ import annotations

import copy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from interruptions import Interruption, StopAfterEpoch
from PIL import Image
from running import execute, new_run

from nearkin import protocols
from nearkin.recipe import Recipe, open_data
from nearkin.training import Description, Run, RunError
from nearkin.training.run import NEUTRAL_KEYS, first_difference, without_neutral_keys


def noise(path: Path, seed: int) -> None:
    """A picture whose file has the same size with any seed: nothing in it is compressed."""
    pixels = torch.randint(0, 256, (20, 20, 3), generator=torch.Generator().manual_seed(seed))
    Image.fromarray(pixels.to(torch.uint8).numpy()).save(path, compress_level=0)


@pytest.fixture
def photos(tmp_path, monkeypatch) -> dict:
    """Plain values of a recipe for a folder of eight classes with four tiny pictures each."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for number, name in enumerate("abcdefgh"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for picture in range(4):
            noise(tmp_path / "photos" / name / f"{picture}.png", seed=10 * number + picture)
    return {
        "data": {"name": "folder", "root": str(tmp_path / "photos"), "transform": "simple_crop"},
        "network": {"name": "convnet", "size": 16, "width": 4, "channels": 3, "embedding_dim": 8},
        "sampler": {"batch_size": 8},
        "training": {"epochs": 3},
        "protocol": {"name": "standard"},
    }


def broken_off(path: Path, values: dict) -> Run:
    run = new_run(path, values)
    with pytest.raises(Interruption):
        execute(run, StopAfterEpoch(2))
    return run


def test_a_replaced_file_of_the_same_size_is_noticed(photos, tmp_path):
    run = broken_off(tmp_path / "run", photos)
    file = Path(open_data(run.recipe).train.samples.path(1))
    before, size = file.read_bytes(), file.stat().st_size
    noise(file, seed=1234)
    assert file.stat().st_size == size
    with pytest.raises(RunError, match="as many samples, but a file or a label is not what it was"):
        execute(new_run(run.path, photos))
    file.write_bytes(before)
    assert execute(new_run(run.path, photos)).result.epoch == 3


def test_a_file_that_changes_its_class_is_noticed(photos, tmp_path):
    run = broken_off(tmp_path / "run", photos)
    train = open_data(run.recipe).train
    first, last = (Path(train.samples.path(place)) for place in (0, -1 + len(train)))
    kept = first.read_bytes()
    first.write_bytes(last.read_bytes())
    last.write_bytes(kept)
    with pytest.raises(RunError, match="the data has changed since this run began: as many samples"):
        execute(new_run(run.path, photos))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forking a process that may have threads
def test_a_run_goes_on_with_data_that_moved_and_other_workers(photos, tmp_path):
    whole = execute(new_run(tmp_path / "whole", photos)).result
    run = broken_off(tmp_path / "run", photos)
    (tmp_path / "photos").rename(tmp_path / "moved")
    data = photos["data"] | {"root": str(tmp_path / "moved"), "workers": 1}
    changed = photos | {"data": data, "evaluation": {"batch_size": 7}}
    again = execute(new_run(run.path, changed)).result
    assert again.test == whole.test
    assert again.data.train == whole.data.train
    assert (again.epoch, again.rule) == (whole.epoch, whole.rule)


def leaves(terms: dict) -> list[tuple[str, str | None]]:
    return [
        (section, key)
        for section, values in terms.items()
        for key in (values if isinstance(values, dict) and values else [None])
    ]


def test_every_key_but_the_neutral_ones_makes_another_run(tmp_path):
    given = {"data": {"root": "photos"}, "network": {"trunk_cache": "cache"}, "loss": {"memory_map": "here"}}
    terms = Recipe.parse(given).complete()
    run = Run.open(tmp_path / "run", Description("", terms))
    run.begin()
    run.write_metrics([{"epoch": 0}])
    neutral = set()
    for section, key in leaves(terms):
        other = copy.deepcopy(terms)
        if key is None:
            other[section] = "another"
        else:
            other[section][key] = "another"
        name = section if key is None else f"{section}.{key}"
        if name in NEUTRAL_KEYS:
            neutral.add(name)
            Run.open(run.path, Description("", other))
            continue
        with pytest.raises(RunError, match=rf"\({name} is .*, 'another' here\): choose another output"):
            Run.open(run.path, Description("", other))
    assert neutral == NEUTRAL_KEYS


def test_differences_are_found_at_any_depth():
    assert first_difference({"a": 1, "b": 2}, {"a": 1, "b": 3}) == "b is 2 there, 3 here"
    assert first_difference({"a": 1}, {"a": 1, "b": 3}) == "b is None there, 3 here"
    assert first_difference({"a": {"b": {"c": 1}}}, {"a": {"b": {}}}) == "a.b.c is 1 there, None here"
    assert first_difference({"a": {"b": 1}}, {"a": 2}) == "a is {'b': 1} there, 2 here"
    with pytest.raises(ValueError, match="do not differ"):
        first_difference({"a": {"b": 1}}, {"a": {"b": 1}})


def test_neutral_keys_are_left_out_where_they_are_keys_of_sections():
    terms = {"data": {"root": "x", "name": "y"}, "seed": 1, "data.root": 2}
    assert without_neutral_keys(terms) == {"data": {"name": "y"}, "seed": 1, "data.root": 2}


class Broken(Exception):
    pass


def broken(*_, **__):
    raise Broken


@pytest.mark.parametrize("protocol", ["standard", "cross_validation"])
def test_a_failed_start_leaves_no_directory(protocol, photos, tmp_path):
    folds = {"folds": 2} if protocol == "cross_validation" else {}
    run = new_run(tmp_path / "runs" / "first", photos | {"protocol": {"name": protocol, **folds}})
    task = replace(run.recipe.build(), loss=broken)
    with pytest.raises(Broken):
        protocols.execute(task, run)
    assert not run.path.exists()
    assert not run.path.parent.exists()  # which was made for it
    assert tmp_path.is_dir()


def test_a_failed_start_leaves_what_was_there_before(photos, tmp_path):
    run = new_run(tmp_path / "mine", photos)
    run.path.mkdir()
    with pytest.raises(Broken):
        protocols.execute(replace(run.recipe.build(), loss=broken), run)
    assert run.path.is_dir()
    other = new_run(run.path, photos | {"seed": 1})
    assert execute(other).finished


def test_a_start_that_got_somewhere_is_kept(photos, tmp_path):
    run = new_run(tmp_path / "run", photos)
    with pytest.raises(Interruption):
        execute(run, StopAfterEpoch(1))
    assert [row["epoch"] for row in run.metrics()] == [0, 1]


def test_other_files_outlive_a_failed_start(tmp_path):
    run = new_run(tmp_path / "run", {})
    run.begin()
    (run.path / "notes.md").write_text("mine")
    run.remove_failed_start()
    assert (run.path / "notes.md").read_text() == "mine"
    (run.path / "notes.md").unlink()
    run.remove_failed_start()
    assert not run.path.exists()
    run.remove_failed_start()


def test_a_directory_whose_run_never_started_may_be_taken_by_another_recipe(tmp_path):
    new_run(tmp_path / "run", {}).begin()
    other = new_run(tmp_path / "run", {"seed": 7})
    other.begin()
    assert Run.existing(tmp_path / "run").terms["seed"] == 7
    other.write_metrics([{"epoch": 0}])
    with pytest.raises(RunError, match="holds a run of another recipe \\(seed is 7 there, 0 here"):
        new_run(tmp_path / "run", {})


@pytest.mark.parametrize(
    "trace",
    [
        "metrics.jsonl",
        "result.json",
        "checkpoint/step-000000001.safetensors",
        "fold-03/metrics.jsonl",
    ],
)
def test_whatever_a_run_can_go_on_from_holds_its_directory(trace, tmp_path):
    run = new_run(tmp_path / "run", {})
    run.begin()
    file = run.path / trace
    file.parent.mkdir(exist_ok=True, parents=True)
    file.write_text("")
    with pytest.raises(RunError, match="another recipe"):
        new_run(tmp_path / "run", {"seed": 7})
    run.remove_failed_start()
    assert file.exists()


def test_opening_writes_nothing(tmp_path):
    new_run(tmp_path / "run", {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("protocol", [{"name": "standard"}, {"name": "cross_validation", "folds": 2}])
def test_a_finished_run_keeps_no_checkpoints(protocol, photos, tmp_path):
    run = execute(new_run(tmp_path / "run", photos | {"protocol": protocol, "training": {"epochs": 1}}))
    assert not list(run.path.rglob("step-*"))
    networks = [run.path / one.run / "checkpoint" / "network.safetensors" for one in run.result.networks]
    assert all(file.exists() for file in networks)
    assert len(networks) == protocol.get("folds", 1)


HOLDS = """
import sys, filelock
with filelock.FileLock(sys.argv[1]).acquire(timeout=0):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_two_processes_cannot_train_one_run(photos, tmp_path):
    run = new_run(tmp_path / "run", photos)
    run.path.mkdir()
    command = [sys.executable, "-c", HOLDS, str(run.path / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(RunError, match="another process is training in .*run: wait for it"):
            execute(run)
        other.stdin.close()
    with run.locked(), run.locked():
        done = subprocess.run(command, capture_output=True, text=True, check=False, input="\n")
        assert "Timeout" in done.stderr
    done = subprocess.run(command, capture_output=True, text=True, check=False, input="\n")
    assert done.stdout == "held\n"


def test_a_run_is_held_while_it_is_trained(photos, tmp_path):
    run = new_run(tmp_path / "run", photos)
    with pytest.raises(Interruption):
        execute(run, StopAfterEpoch(1))
    lock = FileLock(run.path / ".lock")
    with lock.acquire(timeout=0):
        assert lock.is_locked


def test_a_process_that_is_not_the_first_writes_nothing(tmp_path):
    run = new_run(tmp_path / "run", {})
    run.writes = False
    run.begin()
    run.write_metrics([{"epoch": 0}])
    run.remove_leftovers()
    with run.locked():
        pass
    assert list(tmp_path.iterdir()) == []


def test_what_a_run_says_of_itself(photos, tmp_path):
    run = new_run(tmp_path / "run", photos)
    assert repr(run) == f"Run({str(run.path)!r}, 0 epochs so far)"
    with pytest.raises(RunError, match="is not finished: run the same command again"):
        _ = run.result
    run.begin()
    run.write_metrics([{"epoch": 0}, {"epoch": 1}, {"epoch": 2}])
    assert str(run) == repr(run) == f"Run({str(run.path)!r}, 2 epochs so far)"
    assert "<p>2 epochs so far</p>" in run._repr_html_()
    run.result_file.write_text("{}")
    with pytest.raises(RunError, match=r"result.json cannot be read: KeyError\('recipe'\)"):
        _ = Run.existing(run.path).result


def test_a_description_of_the_first_edition_is_its_recipe(tmp_path):
    (tmp_path / "recipe.toml").write_text('seed = 3\n[loss]\nname = "nca"\n')
    run = Run.existing(tmp_path)
    assert run.terms == {"seed": 3, "loss": {"name": "nca"}}
    assert run.description.chosen == {}
    (tmp_path / "recipe.toml").write_text("seed = ")
    with pytest.raises(RunError, match="holds a run that cannot be read"):
        Run.existing(tmp_path)
