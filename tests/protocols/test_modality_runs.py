"""Runs on two modalities: both directions, the baseline of ridge regression, and the model of each side."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from interruptions import Interruption, StopAtBatch
from sklearn.linear_model import Ridge
from torch import nn

import nearkin
from nearkin import data
from nearkin.evaluation import retrieval_scores
from nearkin.networks import TwoTowers
from nearkin.networks.two_towers import ridge
from nearkin.protocols.modalities import RIDGE, _penalty
from nearkin.recipe import RecipeError
from nearkin.training import Run

CLASSES, EACH = 60, 5


def two(seed=0):
    """Images and texts that show the same four numbers, mixed in different ways and with noise."""
    draw = np.random.default_rng(seed)
    truth = draw.normal(size=(CLASSES, 4))
    images = np.tanh(truth @ draw.normal(size=(4, 20))).repeat(EACH, axis=0)
    images = images + 0.2 * draw.normal(size=images.shape)
    texts = truth @ draw.normal(size=(4, 10)) + 0.05 * draw.normal(size=(CLASSES, 10))
    rows = np.arange(CLASSES * EACH)
    return images.astype(np.float32), texts.astype(np.float32), np.stack([rows, rows // EACH], axis=1)


def paired(**keywords):
    images, texts, pairs = two()
    return data.modalities(images, texts, pairs=pairs, **keywords)


def towers():
    torch.manual_seed(0)
    return TwoTowers(nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 8)), nn.Linear(10, 8))


def train(output, **settings):
    keywords = {"network": towers(), "epochs": 20, "batch_size": 40, "lr": 0.01, "progress": False}
    return nearkin.train(paired(), output=output, **keywords | settings)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(tmp_path_factory.mktemp("runs") / "run")


def test_both_directions_are_far_above_chance(run):
    found = run.result.directions
    assert list(found) == ["text_to_image", "image_to_text"]
    assert found["text_to_image"] == run.result.test
    assert found["text_to_image"].queries == 30
    assert found["image_to_text"].queries == 150
    assert min(one.recall_at[1] for one in found.values()) > 10 / 30
    assert run.terms["loss"]["name"] == "info_nce"
    assert run.terms["sampler"]["name"] == "random"
    assert Run.existing(run.path).result.directions == found
    assert "text to image: Recall@1" in str(run.result)


def test_scores_are_those_of_the_two_networks_by_themselves(run):
    given = paired().test
    model = nearkin.load(run.path, network=towers())
    images, texts = model.modality(0), model.modality(1)
    assert images.embedding_dim == texts.embedding_dim == 8
    items, rows = given.samples.items(0)
    gallery, gallery_labels = images.embed(items), given.labels[rows]
    items, rows = given.samples.items(1)
    queries, labels = texts.embed(items), given.labels[rows]
    expected = retrieval_scores(queries, labels, gallery=gallery, gallery_labels=gallery_labels)
    assert run.result.test.recall_at == expected.recall_at
    with pytest.raises(ValueError, match="only TwoTowers have two, 0 and 1"):
        images.modality(0)


def test_ridge_regression_is_that_of_scikit_learn():
    draw = torch.Generator().manual_seed(0)
    x, y = (torch.randn(50, width, generator=draw, dtype=torch.float64) for width in (6, 3))
    x, y = x - x.mean(dim=0), y - y.mean(dim=0)
    penalty = 0.3
    alpha = penalty * float((x**2).sum(dim=0).mean())
    expected = Ridge(alpha=alpha, fit_intercept=False).fit(x.numpy(), y.numpy()).coef_.T
    assert np.allclose(ridge(x, y, penalty).numpy(), expected)


class Nameless(nn.Module):
    """Of which nobody can say what it is given."""

    def forward(self, rows):
        return rows[:, :8]


@pytest.mark.parametrize("number", [0, 1])
def test_there_is_no_ridge_regression_where_one_side_has_no_features(number, tmp_path):
    pair = [nn.Linear(20, 8), nn.Linear(10, 8)]
    assert train(tmp_path / "both", network=TwoTowers(*pair), epochs=1).result.start.name == RIDGE
    pair[number] = Nameless()
    run = train(tmp_path / "one", network=TwoTowers(*pair), epochs=1)
    assert run.result.start is None or run.result.start.name != RIDGE


def test_the_penalty_is_the_best_on_classes_that_are_held_out():
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(10).repeat_interleave(4)
    one = torch.randn(10, 6, generator=draw).double()[labels] + 0.5 * torch.randn(40, 6, generator=draw)
    other = one @ torch.randn(6, 6, generator=draw).double() + torch.randn(40, 6, generator=draw)
    order = torch.randperm(10, generator=torch.Generator().manual_seed(5))
    out = torch.isin(labels, order[:3])
    shares = {}
    for power in range(-3, 4):
        fitted = Ridge(alpha=1.0)  # its own penalty, scaled as ours is by the variance of the inputs
        x = other[~out] - other[~out].mean(dim=0)
        fitted.set_params(alpha=10.0**power * float((x**2).sum(dim=0).mean()))
        fitted.fit(other[~out].numpy(), one[~out].numpy())
        centre = one[~out].mean(dim=0)
        predicted = torch.from_numpy(fitted.predict(other[out].numpy())) - centre
        images = nn.functional.normalize(one[out] - centre, dim=1)
        nearest = (nn.functional.normalize(predicted, dim=1) @ images.T).argmax(dim=1)
        shares[10.0**power] = float((labels[out][nearest] == labels[out]).double().mean())
    assert len(set(shares.values())) > 1
    assert _penalty(one, other, labels, 5) == max(shares, key=shares.__getitem__)
    assert _penalty(one[:4], other[:4], labels[:4], 5) == 1.0  # one class: there is none to hold out


def test_ridge_regression_between_frozen_features_stands_beside(run):
    start = run.result.start
    assert start.name == "ridge regression between frozen features"
    assert list(start.directions) == ["text_to_image", "image_to_text"]
    assert start.test.recall_at[1] > 5 / 30  # a linear relation of noisy features finds some
    plain = json.loads((run.path / "result.json").read_text())
    assert (
        plain["start"]["directions"]["image_to_text"]["recall_at_1"]
        == start.directions["image_to_text"].recall_at[1]
    )


@pytest.mark.parametrize("loss", ["multi_similarity", "proxy_anchor"])
def test_other_losses_learn_across_too(loss, tmp_path):
    found = train(tmp_path / "run", loss=loss, protocol="standard", epochs=12)
    assert found.result.test.recall_at[1] > 5 / 30


def test_test_pairs_do_not_reach_the_network_nor_the_baseline(tmp_path):
    images, texts, pairs = two()
    honest = paired()
    tested = {int(row) for row in honest.test.samples.pairs[:, 1]}
    for row in tested:
        texts[row] = np.random.default_rng(row).normal(size=10)
    poisoned = data.modalities(images, texts, pairs=pairs)
    settings = {"network": towers(), "epochs": 2, "progress": False}
    runs = [
        nearkin.train(one, output=tmp_path / str(n), **settings) for n, one in enumerate((honest, poisoned))
    ]
    first, second = (one.read_network() for one in runs)
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert runs[0].result.start.test != runs[1].result.start.test


def test_an_interrupted_run_ends_with_the_same_result(tmp_path, monkeypatch):
    monkeypatch.setattr("nearkin.training.engine._LOOK_EVERY", 1)
    settings = {"training": {"checkpoint_minutes": 1e-9}, "epochs": 2}
    whole = train(tmp_path / "whole", **settings)
    with pytest.raises(Interruption):
        train(tmp_path / "cut", **settings | {"progress": StopAtBatch(4)})
    cut = train(tmp_path / "cut", **settings)
    assert (cut.path / "result.json").read_bytes() == (whole.path / "result.json").read_bytes()


def test_a_closer_look_works(run):
    found = nearkin.evaluate(run, paired(), network=towers(), progress=False)
    assert found.intervals["recall_at_1"].value == pytest.approx(run.result.test.recall_at[1])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"loss": {"name": "info_nce", "memory": {"size": 10}}},
            r"\[loss.memory\] is for samples of one modality",
        ),
        ({"unlabelled": "pseudo_labels"}, r"\[unlabelled\] is for samples of one modality"),
        ({"network": "convnet"}, "takes images, and the samples are pairs of two modalities"),
    ],
)
def test_what_is_for_one_modality_is_refused(settings, message, tmp_path):
    with pytest.raises((RecipeError, ValueError), match=message):
        train(tmp_path / "run", **settings)


def test_networks_that_give_other_sizes_are_told(tmp_path):
    uneven = TwoTowers(nn.Linear(20, 8), nn.Linear(10, 4))
    with pytest.raises(ValueError, match="both must give vectors of one size"):
        train(tmp_path / "run", network=uneven)
