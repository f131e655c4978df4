"""The threshold that a training leaves: in its result, in its model, in every fold, and nowhere else."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import torch
from interruptions import Interruption, StopAfterEpoch
from running import execute, new_run

import nearkin
from nearkin.evaluation import choose_threshold
from nearkin.model import Model, Threshold
from nearkin.protocols import fixed_validation
from nearkin.recipe import Recipe
from nearkin.training import Run


@pytest.fixture(scope="module")
def trained(tmp_path_factory, glyphs_root) -> Run:
    recipe = {
        "data": {
            "name": "glyphs",
            "root": str(glyphs_root),
            "num_classes": 60,
            "images_per_class": 8,
            "size": 16,
        },
        "network": {"name": "convnet", "size": 16, "width": 4, "embedding_dim": 16},
        "sampler": {"batch_size": 40},
        "training": {"epochs": 2},
        "protocol": {"name": "fixed_validation", "validation_share": 0.4},
    }
    run = new_run(tmp_path_factory.mktemp("trained") / "run", Recipe.parse(recipe))
    return execute(run)


def test_it_is_chosen_on_the_validation_classes_by_the_selected_network(trained):
    found = trained.result.threshold
    data = trained.recipe.build().data.without_test()
    _, validation = fixed_validation.FixedValidation(0.4).split(data, 0)
    model = nearkin.load(trained.path)
    expected = choose_threshold(model.embed(validation), validation.labels, class_names=found.class_names)
    assert found.similarity == pytest.approx(expected.similarity, abs=1e-5)
    assert found.classes == validation.num_classes == 12
    assert found.class_names == trained.result.data.validation.class_names
    assert not {*found.class_names} & {*trained.result.data.test.class_names}
    assert found.wanted_false_accept_rate == 0.01
    assert found.false_accept_rate.low <= found.false_accept_rate.value <= 0.01
    assert found.false_accept_rate.high > 0.01


def test_the_files_and_the_model_have_it(trained, tmp_path):
    found = trained.result.threshold
    again = Run.existing(trained.path)
    assert again.result.threshold == found
    assert again.result == trained.result
    model = nearkin.load(trained.path)
    assert model.threshold == found
    assert Threshold.from_dict(json.loads((trained.path / "threshold.json").read_text())) == found
    saved = model.save(tmp_path / "saved")
    assert nearkin.load(saved).threshold == found
    assert nearkin.load(saved).fingerprint == model.fingerprint
    model.threshold = None
    assert nearkin.load(model.save(saved)).threshold is None


def test_a_damaged_threshold_is_named(trained, tmp_path):
    saved = nearkin.load(trained.path).save(tmp_path / "saved")
    for damage in ("{", "[]", '{"similarity": 0.5}'):
        (saved / "threshold.json").write_text(damage)
        with pytest.raises(ValueError, match=r"threshold\.json cannot be read") as caught:
            nearkin.load(saved)
        assert "\n" not in str(caught.value)


def test_two_samples_are_compared_with_it(trained):
    model = nearkin.load(trained.path)
    test = trained.recipe.build().data.test.samples
    a, b = test[0], test[9]
    decision = model.same(a, b)
    assert decision.similarity == pytest.approx(float(model.similarity(a, b)), abs=1e-6)
    assert decision.same is bool(decision) is (decision.similarity >= model.threshold.similarity)
    assert str(decision).startswith(f"{'same' if decision else 'different'}: similarity ")
    itself = model.same(a, a)
    assert itself.same
    assert itself.similarity == pytest.approx(1, abs=1e-6)
    assert "probab" not in str(itself)
    assert set(itself.to_dict()) == {"similarity", "same", "threshold"}
    with pytest.raises(ValueError, match="same compares one sample with one, not 2 with 1"):
        model.same(torch.stack([a, b]), a)
    model.threshold = None
    undecided = model.same(a, b)
    assert undecided.same is None
    assert "no threshold" in str(undecided)
    with pytest.raises(ValueError, match="no threshold"):
        bool(undecided)


def test_another_rate_gives_another_threshold(trained, tmp_path, monkeypatch):
    values = trained.recipe.changed({"evaluation.false_accept_rate": 0.1})
    other = execute(new_run(tmp_path / "run", values)).result
    assert other.threshold.wanted_false_accept_rate == 0.1
    assert other.threshold.similarity < trained.result.threshold.similarity
    assert 0.05 < other.threshold.false_accept_rate.value <= 0.1
    assert other.test == trained.result.test  # it changes no score


def test_one_chosen_later_is_kept(trained, tmp_path):
    model = nearkin.load(trained.path)
    before = model.threshold
    test = trained.recipe.build().data.test
    chosen = model.choose_threshold(test, false_accept_rate=0.05)
    assert model.threshold is chosen
    assert chosen.classes == 30
    assert chosen != before
    again = nearkin.load(model.save(tmp_path / "saved"))
    assert again.threshold == chosen
    by_labels = model.choose_threshold(
        test.samples, [test.class_names[label] for label in test.labels], false_accept_rate=0.05
    )
    assert by_labels.similarity == chosen.similarity
    with pytest.raises(ValueError, match="needs labels"):
        model.choose_threshold(test.samples)


def test_training_without_validation_classes_leaves_none(small_recipe, tmp_path):
    recipe = {**small_recipe, "protocol": {"name": "standard"}, "training": {"epochs": 1}}
    run = execute(new_run(tmp_path / "run", Recipe.parse(recipe)))
    assert run.result.threshold is None
    assert not (run.path / "threshold.json").exists()
    assert nearkin.load(run.path).threshold is None


def test_too_few_validation_classes_leave_none(small_recipe, tmp_path):
    protocol = {"name": "fixed_validation", "validation_share": 0.07}
    run = execute(
        new_run(
            tmp_path / "run",
            Recipe.parse({**small_recipe, "protocol": protocol, "training": {"epochs": 1}}),
        )
    )
    assert run.result.data.validation.classes == 2
    assert run.result.threshold is None


def test_every_fold_has_its_own_and_all_together_have_none(small_recipe, tmp_path):
    recipe = {
        **small_recipe,
        "protocol": {"name": "cross_validation", "folds": 2},
        "training": {"epochs": 1},
    }
    run = execute(new_run(tmp_path / "run", Recipe.parse(recipe)))
    first, second = (one.threshold for one in run.result.networks)
    assert {*first.class_names}.isdisjoint(second.class_names)
    assert first.classes + second.classes == 30
    assert run.result.threshold is None
    assert nearkin.load(run.path).threshold is None
    assert nearkin.load(run.path).embedding_dim == 32
    assert nearkin.load(run.path, fold=0).threshold == first
    assert nearkin.load(run.path, fold=1).threshold == second
    assert nearkin.load(run.path, fold=1).embedding_dim == 16
    with pytest.raises(ValueError, match="has no fold 2"):
        nearkin.load(run.path, fold=2)
    saved = nearkin.load(run.path).save(tmp_path / "saved")
    assert nearkin.load(saved, fold=1).fingerprint == nearkin.load(run.path, fold=1).fingerprint
    whole = nearkin.load(saved)
    whole.choose_threshold(run.recipe.build().data.test)
    assert nearkin.load(whole.save(saved)).threshold == whole.threshold


def test_a_run_that_was_stopped_chooses_the_same(trained, tmp_path):
    run = new_run(tmp_path / "run", trained.recipe)
    with pytest.raises(Interruption):
        execute(run, StopAfterEpoch(2))
    again = execute(new_run(run.path, trained.recipe))
    assert again.result.threshold == trained.result.threshold
    assert (again.path / "threshold.json").read_bytes() == (trained.path / "threshold.json").read_bytes()


def test_a_result_without_it_is_read(trained, tmp_path):
    old = tmp_path / "old"
    shutil.copytree(trained.path, old)
    (old / "threshold.json").unlink()
    values = json.loads((old / "result.json").read_text())
    for network in values["networks"]:
        del network["threshold"]
    (old / "result.json").write_text(json.dumps(values))
    assert Run.existing(old).result.threshold is None
    assert nearkin.load(old).threshold is None
    networks = tuple(replace(one, threshold=None) for one in trained.result.networks)
    assert Run.existing(old).result == replace(trained.result, networks=networks)


def test_a_model_is_a_step_of_a_pipeline(trained):
    from sklearn.base import clone  # noqa: PLC0415
    from sklearn.neighbors import KNeighborsClassifier  # noqa: PLC0415
    from sklearn.pipeline import make_pipeline  # noqa: PLC0415

    model = nearkin.load(trained.path)
    assert isinstance(model.fit(), Model)
    test = trained.recipe.build().data.test
    pixels, labels = test.samples.pixels.numpy(), test.labels.numpy()
    steps = make_pipeline(model, KNeighborsClassifier(1)).fit(pixels, labels)
    assert steps.score(pixels, labels) == 1
    torch.testing.assert_close(torch.from_numpy(model.fit_transform(pixels)), model.embed(pixels))
    assert clone(steps).fit(pixels, labels).score(pixels, labels) == 1
