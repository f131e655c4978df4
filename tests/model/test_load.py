"""A finished run loads anywhere: without its data, its loss and its start weights; old runs as well."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import nearkin
from nearkin import data, losses, networks
from nearkin.recipe import Recipe
from nearkin.tensor_files import write_tensors
from nearkin.training import Run, RunError

FIRST_EDITION = Path(__file__).parent / "first_edition"


@pytest.fixture
def pretrained(tmp_path) -> Path:
    """A file of weights that training starts from."""
    file = tmp_path / "pretrained.safetensors"
    network = networks.build("convnet", size=16, width=4, embedding_dim=16, seed=9)
    write_tensors(file, network.backbone.state_dict())
    return file


def test_a_run_loads_elsewhere_without_data_weights_and_loss(small_recipe, pretrained, tmp_path, monkeypatch):
    """The loss cannot be imported, and the data set's function and the weights' file are gone.

    test_elsewhere.py tries a saved model in a process of its own.
    """
    module = tmp_path / "loss_of_mine.py"
    module.write_text("def loss(embeddings, labels):\n    return embeddings.square().mean()\n")
    monkeypatch.syspath_prepend(tmp_path)
    nearkin.train(
        small_recipe["data"],
        network={**small_recipe["network"], "weights": str(pretrained)},
        loss="loss_of_mine:loss",
        batch_size=40,
        epochs=1,
        output=tmp_path / "run",
        progress=False,
    )
    pixels = torch.full((1, 1, 16, 16), 7, dtype=torch.uint8)
    before = nearkin.load(tmp_path / "run").embed(pixels).tolist()
    sys.modules.pop("loss_of_mine")
    pretrained.unlink()
    module.unlink()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.move(tmp_path / "run", elsewhere / "moved")
    monkeypatch.setattr(data.registry, "_makers", {})
    for module in (losses, data):
        monkeypatch.setattr(
            module, "build", lambda *_, **__: pytest.fail("embedding needs no data and no loss")
        )
    model = nearkin.load(elsewhere / "moved")
    assert model.embed(pixels).tolist() == before
    assert "loss_of_mine" not in sys.modules


def test_a_module_is_given_again(tmp_path):
    vectors, labels = torch.randn(40, 6), [n // 4 for n in range(40)]
    network = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    before = [parameter.clone() for parameter in network.parameters()]
    nearkin.train((vectors, labels), network=network, epochs=1, output=tmp_path / "run", progress=False)
    with pytest.raises(ValueError, match=r"given in Python \(Sequential\): pass it again"):
        nearkin.load(tmp_path / "run")
    model = nearkin.load(tmp_path / "run", network=network)
    assert model.embed(vectors).shape == (40, 3)
    trained = model.network.parameters()
    assert any(not torch.equal(a, b) for a, b in zip(before, trained, strict=True))
    assert all(
        torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True)
    )  # stays as it was


def test_folds_of_a_module_do_not_share_it(tmp_path):
    vectors, labels = torch.randn(80, 6), [n // 4 for n in range(80)]
    folds = {"name": "cross_validation", "folds": 2}
    run = nearkin.train(
        (vectors, labels), network=nn.Linear(6, 3), epochs=2, protocol=folds, output=tmp_path, progress=False
    )
    model = nearkin.load(run.path, network=nn.Linear(6, 3))
    alone = [nearkin.load(run.path / name, network=nn.Linear(6, 3)) for name in ("fold-00", "fold-01")]
    parts = torch.cat([one.embed(vectors) for one in alone], dim=1) / 2**0.5
    assert not torch.allclose(parts[:, :3], parts[:, 3:])
    torch.testing.assert_close(model.embed(vectors), parts)


def test_a_head_that_was_asked_for_is_there_again(tmp_path):
    vectors, labels = torch.randn(40, 6), [n // 4 for n in range(40)]
    nearkin.train(
        (vectors, labels),
        network=nn.Linear(6, 5),
        embedding_dim=2,
        epochs=1,
        output=tmp_path / "run",
        progress=False,
    )
    assert nearkin.load(tmp_path / "run", network=nn.Linear(6, 5)).embed(vectors).shape == (40, 2)


def test_folds_load_side_by_side_and_alone(small_recipe, tmp_path):
    recipe = Recipe.parse({**small_recipe, "protocol": {"name": "cross_validation", "folds": 2}})
    run = nearkin.train(recipe, epochs=1, output=tmp_path / "run", progress=False)
    model, first = nearkin.load(run.path), nearkin.load(run.path / "fold-00")
    pixels = torch.randint(0, 256, (3, 1, 16, 16), dtype=torch.uint8)
    assert model.embedding_dim == 32
    torch.testing.assert_close(model.embed(pixels)[:, :16] * 2**0.5, first.embed(pixels))
    again = nearkin.load(model.save(tmp_path / "saved"))
    assert again.fingerprint == model.fingerprint


def test_an_exported_model_loads_by_its_folder(small_recipe, tmp_path):
    run = nearkin.train(Recipe.parse(small_recipe), epochs=1, output=tmp_path / "run", progress=False)
    model = nearkin.load(run.path)
    assert nearkin.load(model.save(tmp_path / "saved")).fingerprint == model.fingerprint


@pytest.mark.parametrize("what", ["nothing", "folder", "unfinished"])
def test_what_is_no_model_is_told(what, tmp_path, small_recipe):
    path = tmp_path / "run"
    if what == "folder":
        path.mkdir()
    if what == "unfinished":
        path.mkdir()
        (path / "recipe.toml").write_text(Recipe.parse(small_recipe).to_toml())
    with pytest.raises((RunError, ValueError), match="does not exist|not a run|not finished") as caught:
        nearkin.load(path)
    assert "\n" not in str(caught.value)


class Ragged(Dataset):
    """Sequences of different lengths."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.full((1 + index % 3, 4), index / 40) + torch.eye(4)[index // 5 % 4], index // 5


def mean_of_each(sequences):
    return torch.stack([sequence.mean(0) for sequence in sequences])


def test_a_collate_function_is_given_again(tmp_path):
    made = {"network": nn.Linear(4, 2), "collate": mean_of_each}
    run = nearkin.train(Ragged(), **made, loss="triplet", epochs=1, output=tmp_path / "run", progress=False)
    with pytest.raises(ValueError, match="collate=my_collate where there was one"):
        nearkin.load(run.path, network=made["network"])
    model = nearkin.load(run.path, **made)
    alone = model.network(mean_of_each([Ragged()[index][0] for index in range(40)]))
    torch.testing.assert_close(model.embed(Ragged()), nn.functional.normalize(alone.detach(), dim=1))
    found = nearkin.evaluate(run, Ragged(), **made, progress=False)
    assert found.opened.scores.recall_at == pytest.approx(run.result.test.recall_at)


# Runs of the first edition, made by it.


def test_a_result_of_the_first_edition_reads():
    run = Run.existing(FIRST_EDITION / "one")
    plain = json.loads((FIRST_EDITION / "one" / "result.json").read_text())
    result = run.result
    assert result.test.recall_at[1] == plain["test"]["recall_at_1"]
    assert (result.rule, result.epoch) == (plain["selection"]["rule"], plain["selection"]["epoch"])
    assert result.validation.map_at_r == plain["validation"]["map_at_r"]
    assert (result.data.train.samples, result.data.test.classes) == (
        plain["data"]["train"]["images"],
        plain["data"]["test"]["classes"],
    )
    assert result.data.train.fingerprint == ""  # it had none
    assert run.terms["loss"]["name"] == "multi_similarity"
    assert len(run.metrics()) == 3
    assert run.queries() is not None
    assert "Recall@1" in str(run)


def test_folds_of_the_first_edition_read():
    run = Run.existing(FIRST_EDITION / "folds")
    plain = json.loads((FIRST_EDITION / "folds" / "result.json").read_text())
    assert [one.run for one in run.result.networks] == ["fold-00", "fold-01"]
    assert run.result.test.recall_at[1] == pytest.approx(plain["test"]["recall_at_1"])
    assert run.result.concatenated is not None
    assert run.result.test_deviation == plain["test_standard_deviation"]
    assert len(run.parts()) == 2


def test_a_network_of_the_first_edition_gives_its_embeddings(monkeypatch, glyphs_root):
    """The same numbers as the first edition computed, and no data is opened for it."""
    expected = torch.tensor(json.loads((FIRST_EDITION / "embeddings.json").read_text()))
    with monkeypatch.context() as without_data:
        without_data.setattr("nearkin.data.build", lambda *_, **__: pytest.fail("data is not needed"))
        model = nearkin.load(FIRST_EDITION / "one")
        folds = nearkin.load(FIRST_EDITION / "folds")
    assert folds.embedding_dim == 16
    recipe = Recipe.parse(Run.existing(FIRST_EDITION / "one").terms).changed({"data.root": str(glyphs_root)})
    test = recipe.build().data.test
    units = torch.nn.functional.normalize(expected, dim=1)
    torch.testing.assert_close(model.embed(test)[: len(expected)], units, atol=1e-4, rtol=1e-4)


def test_a_run_of_the_first_edition_is_evaluated(tmp_path, glyphs_root):
    shutil.copytree(FIRST_EDITION / "one", tmp_path / "one")
    found = nearkin.evaluate(tmp_path / "one", glyphs_root, progress=False)
    assert found.opened.scores.recall_at == pytest.approx(found.run.result.test.recall_at)
