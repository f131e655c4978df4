from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from photographs import write_photos
from PIL import Image

from nearkin import losses
from nearkin.cli.app import app
from nearkin.display import LineDisplay
from nearkin.recipe import Recipe

SMALL = {
    "data.name": "glyphs",
    "data.num_classes": 60,
    "data.images_per_class": 8,
    "data.size": 16,
    "network.size": 16,
    "network.width": 4,
    "network.embedding_dim": 16,
    "sampler.batch_size": 40,
    "training.epochs": 2,
}


@pytest.fixture
def small_settings(glyphs_root) -> list[str]:
    settings = SMALL | {"data.root": glyphs_root}
    return [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("kept") / "run"


@pytest.fixture
def trained(nearkin, small_settings, kept, tmp_path) -> Path:
    """A finished run with its pictures: trained by the first test that needs it, and copied."""
    if not kept.exists():
        assert nearkin("train", *small_settings, "-o", kept)[0] == 0
    return Path(shutil.copytree(kept, tmp_path / "run"))


def test_train_then_train_again_then_evaluate(nearkin, small_settings, tmp_path):
    code, out, err = nearkin("train", *small_settings, "-o", tmp_path / "run")
    assert (code, err) == (0, "")
    assert "Recall@1" in out
    assert "epoch  1/2  loss" in out
    assert "epoch  2/2  loss" in out
    for picture in ("learning_curve.png", "gallery.png", "map.png"):
        assert (tmp_path / "run" / picture).exists()
        assert picture in out
    code, again, _ = nearkin("train", *small_settings, "-o", tmp_path / "run")
    assert code == 0
    told, _, result = again.partition("\n")
    assert told == f"note: {tmp_path / 'run'} is finished: its result is read, and nothing is trained again"
    assert out.endswith(result)
    (tmp_path / "run" / "map.png").unlink()
    code, out, err = nearkin("evaluate", tmp_path / "run", "--rerank", "query_expansion")
    assert (code, err) == (0, "")
    for part in (
        "re-ranking",
        "MAP@R before",
        "95% interval over classes",
        "recall_at_1",
        "nmi",
        "hardest classes",
        "most confused",
        "map.png",
    ):
        assert part in out
    assert (tmp_path / "run" / "map.png").exists()
    written = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert written["scores"] == result["test"]
    assert written["classes"][0]["label"].startswith("U+")


def test_what_is_not_read_of_a_folder_is_said_in_counts(nearkin, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    photos = write_photos(tmp_path / "photos", seed=0)
    (photos / "class00" / "5.png").rename(photos / "loose.png")
    for name in ("a.heic", "b.heic", "c.avif"):
        (photos / "class01" / name).write_bytes(b"of a camera")
    code, out, err = nearkin("train", "photos", "--set", "training.epochs=1", "--output", "run")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    counts = [
        "photos: 1 images are not read: they lie outside any class folder",
        "photos: 3 files are not read: 2 .heic, 1 .avif",
    ]
    begun = lines.index("building convnet")
    for count in counts:
        assert f"note: {count}" in lines[:begun]  # while there is time
        assert f"note      {count}" in lines[begun:]


def test_ctrl_c_says_how_to_go_on(nearkin, small_settings, tmp_path, monkeypatch):
    # A process that a script put into the background ignores it, and so would this one.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with monkeypatch.context() as context:
        context.setattr(LineDisplay, "epoch_end", lambda self, row: signal.raise_signal(signal.SIGINT))
        code, out, err = nearkin("train", *small_settings, "-o", tmp_path / "run")
    signal.signal(signal.SIGINT, before)
    assert code == 130
    assert "Recall@1" not in out.splitlines()[-1]
    assert err == "nearkin: stopped. The same command goes on from the last checkpoint\n"
    assert nearkin("train", *small_settings, "-o", tmp_path / "run")[0] == 0


def test_pictures_that_a_killed_run_did_not_draw_are_drawn_the_next_time(nearkin, small_settings, trained):
    (trained / "map.png").unlink()
    code, out, err = nearkin("train", *small_settings, "-o", trained)
    assert (code, err) == (0, "")
    assert (trained / "map.png").exists()
    assert "map.png" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--set", "loss.name=proxy_ancor"], "did you mean proxy_anchor?"),
        (["train", "--set", "training.epochs=ten"], "training.epochs"),
        (["train", "--set", "loss.margn=1"], "did you mean margin?"),
        (["train", "nowhere.toml"], "there is no recipe nowhere.toml"),
        (["train", "-o", "/proc/nearkin/run"], "cannot write to /proc/nearkin/run"),
        (["evaluate", "nowhere"], "nowhere does not exist"),
        (["evaluate", "nowhere", "--rerank", "best"], "rerank='best' is unknown: choose k_reciprocal"),
        (["losses", "show", "proxy_ancor"], "did you mean proxy_anchor?"),
        (["datasets", "show", "glyph"], "did you mean glyphs?"),
        (["datasets", "show", "glyphs", "--set", "dificulty=2"], "did you mean difficulty?"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments, message, nearkin, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = nearkin(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("nearkin: ")
    assert err.count("\n") == 1
    assert message in err


def test_a_run_of_another_recipe_is_not_overwritten(nearkin, small_settings, trained):
    before = (trained / "result.json").read_text()
    code, _, err = nearkin("train", *small_settings, "--set", "seed=1", "-o", trained)
    assert code == 2
    assert "seed is 0 there, 1 here" in err
    assert (trained / "result.json").read_text() == before


def test_losses_are_listed_and_shown(nearkin):
    _, out, _ = nearkin("losses")
    for name in losses.names():
        assert name in out
        code, shown, _ = nearkin("losses", "show", name)
        assert code == 0
        assert losses.describe(name).class_name in shown
        assert losses.describe(name).source in shown


def test_a_toy_loss_is_one_class_and_one_line(nearkin, small_settings, tmp_path):
    @losses.register("toy")
    class Toy(losses.Loss):
        """Pull everything to the mean of the batch."""

        def forward(self, embeddings: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return (embeddings - embeddings.mean(dim=0)).square().mean()

    try:
        assert isinstance(losses.build("toy"), Toy)
        assert "Pull everything to the mean of the batch." in nearkin("losses")[1]
        settings = [*small_settings, "--set", "loss.name=toy"]
        code, out, err = nearkin("train", *settings, "-o", tmp_path / "run")
        assert (code, err) == (0, "")
        assert "Recall@1" in out
    finally:
        losses.unregister("toy")


def test_data_sets_are_listed_and_shown(nearkin, glyphs_root, tmp_path):
    assert "glyphs" in nearkin("datasets")[1]
    sheet = tmp_path / "sheet.png"
    settings = [
        part for key in ("num_classes=60", "images_per_class=8", "size=16") for part in ("--set", key)
    ]
    code, out, _ = nearkin("datasets", "show", "glyphs", "--root", glyphs_root, *settings, "-o", sheet)
    assert code == 0
    assert sheet.exists()
    assert "sheet.png" in out
    assert "216" in out


def test_show_recipe_prints_a_recipe_that_can_be_run(nearkin, small_settings, tmp_path):
    _, out, _ = nearkin("train", *small_settings, "--show-recipe")
    (tmp_path / "recipe.toml").write_text(out)
    assert Recipe.read(tmp_path / "recipe.toml").network.embedding_dim == 16


def test_every_command_has_help():
    for command in (
        [],
        ["train"],
        ["evaluate"],
        ["losses"],
        ["losses", "show"],
        ["datasets"],
        ["datasets", "show"],
    ):
        with pytest.raises(SystemExit) as stop:
            app([*command, "--help"])
        assert stop.value.code == 0


def test_bad_images_are_listed(nearkin, tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        for number in range(2):
            Image.new("L", (9, 9)).save(tmp_path / name / f"{number}.png")
    code, out, _ = nearkin("datasets", "check", tmp_path)
    assert code == 0
    assert out.startswith("checking images\nlooking for copies\nthe same file across splits: ")
    assert "\n0 of 4 images cannot be read\n" in out
    (tmp_path / "a" / "0.png").write_bytes(b"")
    code, out, _ = nearkin("datasets", "check", tmp_path)
    assert code == 1
    assert "0.png: empty file" in out
    assert "1 of 4 images cannot be read: mend them, or train with --skip-bad, which leaves them out" in out
    assert "all splits together: 3 black and white images of about 9 × 9 pixels in 2 classes" in out
    (tmp_path / "images.csv").write_text("path,label\nx/0.png,a\nx/1.png,b\n")
    code, out, _ = nearkin("datasets", "check", tmp_path / "images.csv")
    assert code == 1
    assert (
        "2 of 2 images cannot be read: a table's paths are relative to its folder, or to data.images_root"
        in out
    )
    for key in ("test_fraction", "data.test_fraction"):  # as for train, or without the name of the table
        code, _, err = nearkin("datasets", "check", tmp_path, "--set", f"{key}=0.01")
        assert code == 2
        assert "test_fraction=0.01 of 2 classes holds out 0" in err


def test_what_a_check_of_images_finds_is_json_on_request(nearkin, tmp_path):
    pictures = {"a": (10, 200, 90), "b": (10, 200, 90), "c": (250, 3, 120), "d": (60, 70, 80)}
    for name, shades in pictures.items():
        (tmp_path / name).mkdir()
        for number, shade in enumerate(shades):
            gradient = np.add.outer(np.arange(60), np.roll(np.arange(60), shade)) + shade
            Image.fromarray(gradient.astype(np.uint8)).save(tmp_path / name / f"{number}.png")
    (tmp_path / "d" / "2.png").write_bytes(b"")
    code, out, err = nearkin("datasets", "check", tmp_path, "--json")
    found = json.loads(out)
    assert code == 1
    assert "checking images" in err
    assert found["splits"] == {
        "train": {"samples": 6, "classes": 2},
        "test": {"samples": 6, "classes": 2},
    }
    assert found["images"]["kind"] == "photographs"
    assert (found["images"]["samples"], found["images"]["classes"]) == (11, 4)
    assert [(one["name"], one["reason"]) for one in found["bad"]] == [("d/2.png", "empty file (0 bytes)")]
    (copies,) = (one for one in found["copies"] if "a/1.png" in one["names"])
    assert copies == {
        "names": ["a/1.png", "b/1.png"],
        "classes": ["a", "b"],
        "splits": ["test", "test"],
        "identical": True,
        "problem": "across classes",
    }


def test_a_score_that_the_test_classes_chose_is_labelled(nearkin, small_settings, tmp_path):
    protocol = ["--set", "protocol.name=standard_best_on_test"]
    code, out, _ = nearkin("train", *small_settings, *protocol, "-o", tmp_path / "run")
    assert code == 0
    assert "the test classes chose the epoch, so their score is too good" in out


def test_a_cross_validation_shows_mean_spread_and_concatenation(nearkin, small_settings, tmp_path):
    protocol = ["--set", "protocol.name=cross_validation", "--set", "protocol.folds=2"]
    code, out, _ = nearkin("train", *small_settings, *protocol, "-o", tmp_path / "run")
    assert code == 0
    for row in ("test classes", "± over folds", "concatenated", "validation classes", "mean of 2 folds"):
        assert row in out
    assert (tmp_path / "run" / "learning_curve.png").exists()
    code, out, err = nearkin("evaluate", tmp_path / "run")  # the networks side by side
    assert (code, err) == (0, "")
    assert nearkin("evaluate", tmp_path / "run" / "fold-01")[0] == 0
