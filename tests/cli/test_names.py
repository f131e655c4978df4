"""Where runs go if nobody says, and what a word on the command line means."""

from __future__ import annotations

import json
import sys

import pytest
from photographs import write_photos

from nearkin.losses.base import registry
from nearkin.recipe.recipe import tomllib

FAST = ["network.name=lenet", "network.embedding_dim=8", "training.epochs=1", "sampler.batch_size=10"]
SETTINGS = [part for setting in FAST for part in ("-s", setting)]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_folders_of_one_name_and_other_settings_get_directories_of_their_own(nearkin, photos, here):
    other = write_photos(here / "elsewhere" / "photos", seed=1)
    commands = [
        ("train", photos, *SETTINGS),
        ("train", other, *SETTINGS),
        ("train", photos, *SETTINGS, "-s", "loss.margin=0.2"),
    ]
    for command in commands:
        code, _, err = nearkin(*command)
        assert (code, err) == (0, "")
    names = sorted(path.name for path in (here / "runs").iterdir())
    assert len(names) == 3
    assert all(name.startswith("photos-lenet8-proxy_anchor-seed0-") for name in names)
    nearkin(*commands[0])
    assert len(list((here / "runs").iterdir())) == 3


def test_a_root_alone_means_that_folder_and_nothing_is_written_into_it(nearkin, photos, here):
    before = sorted(photos.rglob("*"))
    code, out, err = nearkin("train", "-s", f"data.root={photos}", *SETTINGS, "-o", "run")
    assert (code, err) == (0, "")
    assert out.startswith("opening folder")
    recipe = json.loads((here / "run" / "result.json").read_text())["recipe"]
    assert recipe["data"]["name"] == "folder"
    assert sorted(photos.rglob("*")) == before


def test_a_table_is_a_table(nearkin, photos, here):
    rows = [f"{file},{file.parent.name}" for file in sorted(photos.rglob("*.png"))]
    (here / "mine.csv").write_text("\n".join(["path,label", *rows]))
    code, out, err = nearkin("train", "mine.csv", "--show-recipe")
    assert (code, err) == (0, "")
    assert '# name = "csv"' in out


def test_show_recipe_says_every_key_and_reads_as_what_was_said(nearkin, photos, here):
    code, out, err = nearkin(
        "train", photos, "--weights", "w.pth", "--skip-bad", "--import", "json", "--show-recipe"
    )
    assert code == 0
    assert err == "warning: what depends on the data is not shown: no weights at w.pth\n"
    said = tomllib.loads(out)
    assert said["data"] == {"root": str(photos), "skip_bad": True}
    assert said["network"] == {"weights": "w.pth"}
    assert said["imports"] == ["json"]
    for key in (
        "# warmup = ",
        "# chunk = ",
        "# recall_at = ",
        "# margin = ",
        "# lr_factor",
        "# validation_share",
    ):
        assert key in out
    assert list(here.iterdir()) == []


def test_an_imported_module_brings_a_loss(nearkin, photos, here):
    (here / "my_losses.py").write_text(
        "from nearkin import losses\n"
        "@losses.register('pull_to_mean')\n"
        "class PullToMean(losses.Loss):\n"
        "    '''Pull everything to the mean of the batch.'''\n"
        "    def forward(self, embeddings, labels):\n"
        "        return (embeddings - embeddings.mean(dim=0)).square().mean()\n"
    )
    command = [
        "train",
        photos,
        *SETTINGS,
        "--import",
        "my_losses",
        "-s",
        "loss.name=pull_to_mean",
        "-o",
        "run",
    ]
    try:
        code, _, err = nearkin(*command)
    finally:  # other tests of this process know neither the module nor the loss
        sys.modules.pop("my_losses", None)
        if "pull_to_mean" in registry:
            registry.unregister("pull_to_mean")
    assert (code, err) == (0, "")
    assert "my_losses" in (here / "run" / "recipe.toml").read_text()


def test_evaluate_finds_data_that_has_moved(nearkin, here):
    write_photos(here / "before", seed=2)
    assert nearkin("train", "before", *SETTINGS, "-o", "run")[0] == 0
    (here / "before").rename(here / "after")
    code, _, err = nearkin("evaluate", "run")
    assert code == 2
    assert err.count("\n") == 1
    code, out, _ = nearkin("evaluate", "run", "--data-root", "after", "--json")
    assert code == 0
    assert json.loads(out)["scores"] == json.loads((here / "run" / "result.json").read_text())["test"]
