"""A published folder is whole: nearkin and timm load it, and its card says what the run disclosed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from torch import nn

import nearkin
from nearkin import networks
from nearkin.data import transforms
from nearkin.evaluation import bootstrap_intervals
from nearkin.model import Model
from nearkin.networks import Embedder
from nearkin.networks.timm_models import import_timm
from nearkin.publishing import publish, push
from nearkin.publishing.card import intervals
from nearkin.publishing.timm_config import config_of, crop_share
from nearkin.training import Run


@pytest.fixture(scope="module")
def run(glyphs_root, tmp_path_factory) -> Path:
    """A finished run with validation classes and a threshold, at a path that must not leave the machine."""
    return nearkin.train(
        {"name": "glyphs", "root": str(glyphs_root), "num_classes": 60, "images_per_class": 8, "size": 16},
        network={"name": "convnet", "size": 16, "width": 4, "embedding_dim": 16},
        loss={"name": "triplet", "margin": 0.25},
        batch_size=40,
        epochs=1,
        seed=7,
        protocol={"name": "fixed_validation", "validation_share": 0.4},
        output=tmp_path_factory.mktemp("secret") / "run",
        progress=False,
    ).path


@pytest.fixture(scope="module")
def published(run, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("published") / "glyphs-model"
    return nearkin.publish(run, folder, license="cc-by-4.0").folder


def card(folder: Path) -> tuple[dict, str]:
    """The metadata and the text of a card."""
    _, metadata, text = (folder / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    return yaml.safe_load(metadata), text


def pixels(count: int = 5) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, 1, 16, 16), generator=generator, dtype=torch.uint8)


def test_it_loads_with_equal_embeddings_threshold_and_fingerprint(run, published):
    before, after = nearkin.load(run), nearkin.load(published)
    assert torch.equal(before.embed(pixels()), after.embed(pixels()))
    assert after.threshold == before.threshold is not None
    assert after.fingerprint == before.fingerprint
    assert not (published / "weights.safetensors").exists()  # nothing is there twice


def test_the_card_says_what_the_run_disclosed(run, published):
    result = Run.existing(run).result
    metadata, text = card(published)
    assert metadata["license"] == "cc-by-4.0"
    assert metadata["pipeline_tag"] == "image-feature-extraction"
    (found,) = metadata["model-index"][0]["results"]
    scores = {one["name"]: one["value"] for one in found["metrics"]}
    assert scores["Recall@1"] == round(100 * result.test.recall_at[1], 2)
    assert scores["MAP@R"] == round(100 * result.test.map_at_r, 2)
    assert found["dataset"]["name"] == "glyphs"
    for words in (
        "| hyperparameters: margin | 0.25 |",
        "| loss | triplet |",
        "| seed | 7 |",
        "| protocol | fixed_validation |",
        f"| training | {result.data.train.samples} | {result.data.train.classes} |",
        f"| test | {result.data.test.samples} | {result.data.test.classes} |",
        f"untrained network: {100 * result.start.test.recall_at[1]:.2f} %",
        "What it is not for",
        "nearkin.load(",
        "fingerprint",
    ):
        assert words in text, words


def test_the_cards_intervals_are_those_of_evaluate(run, published):
    scores, labels = Run.existing(run).queries()
    expected = bootstrap_intervals(scores, labels, seed=7)
    assert intervals(Run.existing(run)) == expected
    one = expected["recall_at_1"]
    assert (
        f"| Recall@1 | {100 * one.value:.2f} | {100 * one.low:.2f} to {100 * one.high:.2f} |"
        in card(published)[1]
    )


def test_the_hub_reads_the_card(published):
    hub = pytest.importorskip("huggingface_hub")
    data = hub.ModelCard.load(published / "README.md").data
    assert data.library_name == "nearkin"
    assert {one.metric_name for one in data.eval_results} >= {"Recall@1", "MAP@R"}


def test_no_file_names_a_place_of_this_machine(run, published, glyphs_root):
    for file in published.rglob("*"):
        content = file.read_bytes()
        for place in (run.parent, glyphs_root, Path.home()):
            assert str(place).encode() not in content, file
    assert json.loads((published / "result.json").read_text())["recipe"]["data"].get("root") is None


def test_it_loads_without_a_network(published, tmp_path, monkeypatch):
    """tests/model/test_elsewhere.py tries a saved model in a process of its own."""
    expected = nearkin.load(published).embed(pixels())
    shutil.copytree(published, tmp_path / "there")
    for name in ("socket.connect", "create_connection", "getaddrinfo"):
        monkeypatch.setattr(f"socket.{name}", lambda *_, **__: pytest.fail("the network is used"))
    torch.testing.assert_close(nearkin.load(tmp_path / "there").embed(pixels()), expected)


def timm_model(pooling: str = "avg", **keywords: object) -> Model:
    network = networks.build("timm:test_resnet", embedding_dim=8, pooling=pooling, **keywords).eval()
    seen = transforms.build("resized_crop", network.preprocessing, train=False)
    return Model([Embedder(network, seen, seen, transform_spec={"name": "resized_crop"})])


def test_timm_reads_the_backbone(tmp_path):
    timm = import_timm()
    model = timm_model("avg+max", size=96)
    folder = publish(model, tmp_path / "mine")
    found = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    images = torch.randn(2, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(found.forward_features(images), model.network.backbone(images))
        torch.testing.assert_close(found(images), model.network.backbone(images).mean(dim=(2, 3)))
    config = timm.data.resolve_model_data_config(found)
    assert tuple(config["input_size"]) == (3, 96, 96)
    expected = model.network.preprocessing
    assert (tuple(config["mean"]), tuple(config["std"])) == (expected.mean, expected.std)
    assert int(96 / config["crop_pct"]) == expected.resize
    assert "local-dir:mine" in (folder / "README.md").read_text()
    photo = torch.randint(0, 256, (1, 3, 120, 130), dtype=torch.uint8)
    assert torch.equal(nearkin.load(folder).embed(photo), model.embed(photo))


def test_several_networks_are_a_folder_each(tmp_path):
    timm = import_timm()
    one, other = timm_model(), timm_model(seed=1)
    both = Model([*one.embedders, *other.embedders])
    folder = publish(both, tmp_path / "both")
    photo = torch.randint(0, 256, (2, 3, 200, 210), dtype=torch.uint8)
    assert torch.equal(nearkin.load(folder).embed(photo), both.embed(photo))
    backbone = timm.create_model(f"local-dir:{folder / 'network-01'}", pretrained=True)
    state, expected = backbone.state_dict(), other.network.backbone.state_dict()
    assert all(torch.equal(state[name], expected[name]) for name in expected)


@pytest.mark.parametrize(("size", "resize"), [(224, 256), (299, 334), (96, 101), (384, 384), (227, 260)])
def test_timm_computes_the_same_short_side_again(size, resize):
    assert int(size / crop_share(size, resize)) == resize


def test_other_networks_have_a_config_that_says_what_they_are():
    told = config_of(networks.build("convnet", size=16, embedding_dim=4))
    assert told["architecture"] == "convnet"
    assert told["pretrained_cfg"]["input_size"] == [1, 16, 16]


def test_a_model_without_its_run_says_that_its_training_is_not_known(tmp_path):
    metadata, text = card(publish(timm_model(), tmp_path / "mine"))
    assert "model-index" not in metadata
    assert "How it was trained and tested is not known here" in text
    assert "## Scores" not in text


def test_a_final_network_is_not_given_the_scores_of_another(run, tmp_path, nearkin):
    final = run.parent / "copy" / "final"
    shutil.copytree(run, final.parent)
    final.mkdir()
    for name in ("model.json", "checkpoint"):
        source = final.parent / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, final / name)
    code, _, error = nearkin("publish", final, tmp_path / "final")
    assert code == 0, error
    assert "trained on all classes, those of the test included" in card(tmp_path / "final")[1]


def test_what_nobody_else_could_load_is_refused(tmp_path):
    network = networks.WrappedNetwork(nn.Linear(3, 2), 2)
    seen = transforms.build("as_is", None)
    model = Model([Embedder(network, seen, seen, transform_spec={"name": "as_is"})])
    with pytest.raises(ValueError, match=r"the network of this model was given in Python \(Linear\)"):
        publish(model, tmp_path / "mine")
    assert not (tmp_path / "mine").exists()


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds other files"):
        publish(timm_model(), tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


class FakeHub:
    """What ``push`` asks of ``huggingface_hub.HfApi``."""

    def __init__(self, user: str | None = "me", refuses: str = "") -> None:
        self.user, self.refuses, self.calls = user, refuses, []

    def whoami(self) -> dict:
        if self.user is None:
            raise PermissionError("no token")
        return {"name": self.user}

    def create_repo(self, **given: object) -> SimpleNamespace:
        self.calls.append(("create_repo", given))
        if self.refuses:
            raise RuntimeError(self.refuses)
        name = str(given["repo_id"])
        return SimpleNamespace(repo_id=name if "/" in name else f"{self.user}/{name}")

    def upload_folder(self, **given: object) -> None:
        self.calls.append(
            (
                "upload_folder",
                given | {"files": sorted(file.name for file in Path(given["folder_path"]).iterdir())},
            )
        )


def test_it_is_pushed_only_when_asked_for(run, tmp_path):
    hub = FakeHub()
    assert nearkin.publish(run, tmp_path / "a", hub=hub).address is None
    assert hub.calls == []
    nearkin.publish(run, tmp_path / "a", push="birds", private=True, hub=hub)
    (first, made), (second, sent) = hub.calls
    assert (first, second) == ("create_repo", "upload_folder")
    assert made == {"repo_id": "birds", "repo_type": "model", "private": True, "exist_ok": True}
    assert sent["repo_id"] == "me/birds"
    assert {"README.md", "config.json", "model.safetensors"} <= set(sent["files"])
    assert 'snapshot_download("birds")' in (tmp_path / "a" / "README.md").read_text()


def test_nobody_logged_in_and_a_refusal_are_told_in_one_sentence(run, tmp_path):
    with pytest.raises(ConnectionError, match=r"does not know who is pushing .* hf auth login"):
        nearkin.publish(run, tmp_path / "a", push="me/birds", hub=FakeHub(user=None))
    assert nearkin.load(tmp_path / "a")  # written all the same
    with pytest.raises(ConnectionError, match="could not push .*: no space left there"):
        push(tmp_path / "a", "me/birds", hub=FakeHub(refuses="no space left there"))


def test_without_a_network_the_command_says_so(run, tmp_path, nearkin, monkeypatch):
    pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code, _, error = nearkin("publish", run, tmp_path / "a", "--push", "me/birds")
    assert code == 2
    assert "there is no network that leads to the Hugging Face Hub" in error
    assert (tmp_path / "a" / "README.md").exists()
