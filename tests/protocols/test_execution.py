from __future__ import annotations

import resource
import sys
from typing import ClassVar

import psutil
import pytest
import torch
from PIL import Image
from running import execute, finished, load_network, new_run

from nearkin import protocols
from nearkin.evaluation import retrieval_scores
from nearkin.protocols import fixed_validation
from nearkin.protocols.execution import _cost, _peak_memory, _total_cost
from nearkin.recipe import Recipe, open_data
from nearkin.training import Description, Observer, Run


def test_a_finished_run_is_only_read(small_recipe, tmp_path, monkeypatch):
    run = new_run(tmp_path / "run", Recipe.parse(small_recipe))
    first = execute(run)
    monkeypatch.setattr(fixed_validation, "train", lambda *_, **__: pytest.fail("trained again"))
    again = Run.existing(run.path)
    assert again.finished
    assert again.result == first.result
    assert again.result.opened is None
    assert protocols.execute(run.recipe.build(), again) is again


def test_the_result_discloses_what_was_done(small_recipe, tmp_path):
    result = finished(tmp_path / "run", small_recipe).result
    assert (result.data.train.samples, result.data.train.classes) == (216, 27)
    assert (result.data.test.samples, result.data.test.classes) == (240, 30)
    assert len(result.data.test.class_names) == 30
    assert not {*result.data.test.class_names} & {*result.data.train.class_names}
    assert len({result.data.train.fingerprint, result.data.test.fingerprint}) == 2
    assert result.recipe["loss"]["name"] == "proxy_anchor"
    assert result.chosen["sampler.name"] == "proxy_anchor compares samples with proxies"
    assert {"torch", "nearkin", "python"} <= set(result.disclosure["libraries"])
    assert result.network["preprocessing"]["size"] == 16


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """A folder of four classes with one file that is no image; returns a recipe for it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tmp_path / "photos"
    for shade, name in enumerate("abcd"):
        (root / name).mkdir(parents=True)
        for number in range(4):
            Image.effect_noise((24, 20), 20 + 40 * shade + number).convert("RGB").save(
                root / name / f"{number}.png"
            )
    (root / "a" / "notes.jpg").write_text("not an image")
    return {
        "data": {"name": "folder", "root": str(root), "transform": "simple_crop"},
        "network": {"size": 16, "width": 4, "channels": 3, "embedding_dim": 8},
        "sampler": {"batch_size": 4},
        "training": {"epochs": 1},
        "protocol": {"name": "standard"},
    }


def test_a_bad_image_stops_the_run_before_training(photos, tmp_path):
    run = new_run(tmp_path / "run", Recipe.parse(photos))
    with pytest.raises(ValueError, match=r"1 images cannot be read: .*notes.jpg: .*--skip-bad"):
        execute(run)
    assert run.metrics() == []


def test_bad_images_are_left_out_and_disclosed_on_request(photos, tmp_path):
    photos["data"]["skip_bad"] = True
    result = execute(new_run(tmp_path / "run", Recipe.parse(photos))).result
    assert (result.data.train.samples, result.data.train.classes) == (8, 2)
    assert "notes.jpg" in result.data.notes[-1]


def test_one_validation_class_is_too_few(photos, tmp_path):
    photos["data"]["skip_bad"] = True
    photos["protocol"] = {"validation_share": 0.5}
    with pytest.raises(ValueError, match="2 training classes are too few for protocol.validation_share=0.5"):
        execute(new_run(tmp_path / "run", Recipe.parse(photos)))


@pytest.mark.slow
def test_a_trained_network_beats_raw_pixels_by_far(glyphs_root, tmp_path):
    run = new_run(tmp_path / "run", Recipe.parse({"data": {"name": "glyphs", "root": str(glyphs_root)}}))
    test = open_data(run.recipe).test
    raw = retrieval_scores(test.samples.pixels.flatten(1).float(), test.labels, recall_at=(1,)).recall_at[1]
    assert raw < 0.45
    assert execute(run).result.test.recall_at[1] > raw + 0.2


def test_a_run_keeps_the_scores_of_every_query_and_what_it_took(small_recipe, tmp_path):
    run = new_run(tmp_path / "run", Recipe.parse(small_recipe))
    assert run.queries() is None
    assert run.cost() is None
    finished = execute(run)
    scores, labels = run.queries()
    assert scores.to_dict() == finished.result.test.to_dict()
    assert labels.equal(finished.result.opened.queries.labels)
    again = scores.per_query.scores((1,))["recall_at_1"].mean().item()
    assert again == pytest.approx(finished.result.test.recall_at[1])
    cost = run.cost()
    seconds = [row["seconds"] for row in run.metrics()[1:]]
    assert len(seconds) > 1
    assert cost["training_seconds"] == pytest.approx(sum(seconds), abs=1e-3)
    assert cost["seconds_per_epoch"] == pytest.approx(sum(seconds) / len(seconds), abs=1e-3)
    assert cost["peak_memory_bytes"] > 10_000_000


def test_a_run_that_fails_before_its_first_epoch_leaves_nothing(small_recipe, tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("no memory")

    monkeypatch.setattr("nearkin.protocols.execution.prepared", fail)
    with pytest.raises(RuntimeError, match="no memory"):
        execute(new_run(tmp_path / "new" / "run", Recipe.parse(small_recipe)))
    assert list(tmp_path.iterdir()) == []


def test_the_disclosure_says_what_the_score_depends_on(small_recipe, tmp_path):
    values = small_recipe | {
        "loss": {"name": "margin"},
        "network": small_recipe["network"] | {"head_lr_factor": 5},
    }
    told = execute(new_run(tmp_path / "run", Recipe.parse(values))).result.disclosure
    assert told["learning rates"] == pytest.approx({"backbone": 2e-3, "head": 1e-2, "loss": 2e-2})
    assert told["hyperparameters"]["mining"] == "distance_weighted"
    assert (told["network"], told["pooling"], told["batch norm"]) == ("convnet", "avg", "trained")
    assert told["sampler"] == {
        "name": "balanced",
        "batch_size": 40,
        "images_per_class": 5,
        "drop_short": False,
        "drop_last": False,
    }
    assert (told["weights"], told["embedding size"]) == ("random, seed 0", 16)
    assert told["libraries"]["torch"] == torch.__version__
    other = Recipe.parse(values | {"seed": 1}).build().disclosure
    assert {key for key in told if told[key] != other[key]} == {"seed", "weights", "hash of the weights"}


def test_what_a_run_took_is_counted(small_recipe, tmp_path):
    run = execute(new_run(tmp_path / "run", small_recipe | {"training": {"epochs": 1}}))
    ((_, row), cost) = run.metrics(), run.cost()
    assert cost["training_seconds"] == cost["seconds_per_epoch"] == row["seconds"] > 0
    used = psutil.Process().memory_info().rss
    assert used / 2 < cost["peak_memory_bytes"] < 100 * used
    network = load_network(run)
    assert run.result.network["parameters"] == sum(len(p.flatten()) for p in network.parameters())
    assert run.result.network["embedding_dim"] == 16
    assert isinstance(run.result.network["preprocessing"]["mean"], list)


def test_folds_add_up_in_time_and_not_in_memory():
    class Fold:
        def __init__(self, seconds, peak):
            self.took = {
                "training_seconds": seconds,
                "seconds_per_epoch": seconds / 2,
                "peak_memory_bytes": peak,
            }

        def cost(self):
            return self.took

    total = _total_cost([Fold(1.0004, 7), Fold(2.0, 9), Fold(4.0, 8)])
    assert total == {"training_seconds": 7.0, "seconds_per_epoch": 3.5, "peak_memory_bytes": 9}


def test_one_fold_alone_is_a_run_of_its_own(small_recipe, tmp_path):
    protocol = {"name": "cross_validation", "folds": 3, "fold": 1}
    run = execute(new_run(tmp_path / "run", small_recipe | {"protocol": protocol}))
    assert [one.run for one in run.result.networks] == ["."]
    assert run.result.concatenated is None
    assert not list(run.path.glob("fold-*"))


def test_only_the_first_process_scores_the_test_classes(small_recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(protocols.SealedTest, "open", lambda *_: pytest.fail("opened in another process"))
    run = new_run(tmp_path / "run", small_recipe)
    run.writes = False
    assert execute(run) is run
    assert not run.path.exists()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the unit of ru_maxrss is the system's")
def test_peak_memory_is_in_bytes():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    measured = _peak_memory(torch.device("cpu"))
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert 1024 * before <= measured <= 1024 * after


def test_a_device_counts_its_own_memory(monkeypatch):
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: {"cuda:1": 77}[str(device)])
    assert _peak_memory(torch.device("cuda:1")) == 77


def test_the_cost_of_several_epochs(tmp_path):
    run = Run(tmp_path, Description())
    run.write_metrics([{"epoch": 0}, {"epoch": 1, "seconds": 1.00041}, {"epoch": 2, "seconds": 3.0005}])

    class Embedder:
        network = torch.nn.Linear(1, 1)

    cost = _cost(run, Embedder())
    assert (cost["training_seconds"], cost["seconds_per_epoch"]) == (4.001, 2.0)


def test_a_start_that_fails_leaves_no_directory(small_recipe, tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise ValueError("not on this machine")

    monkeypatch.setattr("nearkin.protocols.execution.warn_if_too_large", refuse)
    task = Recipe.parse(small_recipe).build()
    with pytest.raises(ValueError, match="not on this machine"):
        protocols.execute(task, Run.open(tmp_path / "runs" / "one", task.description))
    assert list(tmp_path.iterdir()) == []


def test_what_takes_a_while_is_said(small_recipe, tmp_path):
    class Heard(Observer):
        said: ClassVar[list[str]] = []

        def stage(self, what):
            self.said.append(what)

    run = new_run(tmp_path / "run", small_recipe | {"training": {"epochs": 1}})
    protocols.execute(Recipe.parse(run.terms).build(), run, Heard())
    assert Heard.said[-1] == "scoring the test classes"
