"""Runs on data of pairs: what they learn, choose and report, and that no held-out answer leads into them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from interruptions import Interruption, StopAtBatch
from torch import nn

import nearkin
from nearkin import data
from nearkin.evaluation import pair_similarities
from nearkin.recipe import RecipeError
from nearkin.training import Run

GROUPS, EACH, DIM = 60, 4, 12


def vectors(seed=0):
    """Of each group a point in the first three dimensions, and much noise in the others."""
    draw = np.random.default_rng(seed)
    points = draw.normal(size=(GROUPS, 1, 3)) + 0.1 * draw.normal(size=(GROUPS, EACH, 3))
    noise = draw.normal(size=(GROUPS, EACH, DIM - 3))
    return np.concatenate([points, noise], axis=2).reshape(-1, DIM).astype(np.float32)


def listed():
    """Matches along each group, and pairs of each group with the next two."""
    first = [EACH * group for group in range(GROUPS)]
    matches = [(row + n, row + n + 1) for row in first for n in range(EACH - 1)]
    differ = [
        (row + n, (row + EACH * step + n) % (GROUPS * EACH))
        for row in first
        for step in (1, 2)
        for n in (0, 2)
    ]
    return matches + differ, [True] * len(matches) + [False] * len(differ)


def pair_data(**keywords):
    pairs, same = listed()
    return data.pairs(vectors(), pairs, same, **keywords)


def train(given, output, **settings):
    torch.manual_seed(0)
    network = nn.Linear(DIM, 8)
    keywords = {"epochs": 6, "batch_size": 40, "lr": 0.02, "progress": False}
    return nearkin.train(given, network=network, output=output, **keywords | settings)


def test_a_run_on_pairs_learns_chooses_and_is_scored_on_pairs(tmp_path):
    given = pair_data()
    run = train(given, tmp_path / "run")
    result = run.result
    found = result.verification
    assert found.verification.roc_auc > result.start.verification.verification.roc_auc + 0.05
    assert result.start.verdict == "helped"
    assert found.accuracy_at_threshold > 0.8
    assert result.chosen["loss.name"].startswith("pairs are known")
    assert run.terms["loss"]["name"] == "contrastive"
    assert run.terms["sampler"]["name"] == "pairs"
    rows = run.metrics()
    assert result.epoch == max((row["roc_auc"], row["map_at_r"], row["epoch"]) for row in rows)[2]
    # The same from the model and the listed pairs alone.
    model = nearkin.load(run.path, network=nn.Linear(DIM, 8))
    known = given.test.pairs
    similarity = pair_similarities(model.embed(given.test), known.pairs)
    right = (similarity >= model.threshold.similarity) == known.same
    assert found.accuracy_at_threshold == pytest.approx(float(right.double().mean()))
    assert found.verification.positive_pairs == int(known.same.sum())
    plain = json.loads((run.path / "result.json").read_text())
    assert plain["verification"] == found.to_dict()
    assert Run.existing(run.path).result.verification == found
    assert str(result).startswith("ROC AUC")


def test_matches_alone_make_classes_where_the_others_differ(tmp_path):
    pairs, same = listed()
    matches = [pair for pair, answer in zip(pairs, same, strict=True) if answer]
    given = data.pairs(vectors(), matches, others="different")
    run = train(given, tmp_path / "run", loss="multi_similarity", epochs=3)
    assert run.terms["sampler"]["name"] == "balanced"
    assert run.result.verification.verification.negative_pairs > 1000
    before = run.result.start.verification.verification.roc_auc
    assert run.result.verification.verification.roc_auc > before + 0.02
    with_proxies = train(given, tmp_path / "proxies", loss="proxy_anchor", epochs=1, protocol="standard")
    assert with_proxies.terms["sampler"]["name"] == "random"


@pytest.mark.parametrize("loss", ["multi_similarity", "info_nce"])
def test_other_pair_losses_learn_from_pairs_too(loss, tmp_path):
    run = train(pair_data(), tmp_path / "run", loss=loss, epochs=3)
    assert run.result.verification.verification.roc_auc > 0.75


def test_another_protocol_keeps_pairs_apart(tmp_path):
    folds = {"name": "cross_validation", "folds": 2}
    run = train(pair_data(), tmp_path / "folds", protocol=folds, epochs=2)
    assert run.result.verification is None
    assert all(one.verification is not None for one in run.result.networks)
    again = train(pair_data(), tmp_path / "again", protocol="retrained", epochs=2)
    assert again.result.verification.accuracy_at_threshold is not None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": "proxy_anchor"}, "proxy_anchor|ProxyAnchor"),
        ({"loss": {"name": "contrastive", "memory": {"size": 40}}}, r"\[loss.memory\] needs classes"),
        (
            {"protocol": "unsupervised", "unlabelled": "pseudo_labels"},
            "is about labels, and of these samples pairs",
        ),
        ({"protocol": "closed_set"}, "is about labels, and of these samples pairs are known"),
        ({"unlabelled": "pseudo_labels"}, r"\[unlabelled\] is for samples without a label"),
    ],
)
def test_what_needs_classes_is_refused_in_a_sentence(settings, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        train(pair_data(), tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def test_classes_have_no_pairs_to_choose_by(small_recipe, tmp_path):
    with pytest.raises(RecipeError, match="evaluation.select=roc_auc is for data of pairs"):
        nearkin.train(
            nearkin.Recipe.parse(small_recipe),
            evaluation={"select": "roc_auc"},
            output=tmp_path,
            progress=False,
        )


def test_an_interrupted_run_ends_with_the_same_result(tmp_path, monkeypatch):
    monkeypatch.setattr("nearkin.training.engine._LOOK_EVERY", 1)
    settings = {
        "training": {"checkpoint_minutes": 1e-9},
        "epochs": 2,
        "batch_size": 24,
        "loss": "multi_similarity",
    }
    whole = train(pair_data(), tmp_path / "whole", **settings)
    for batches in (3, 11):
        with pytest.raises(Interruption):
            train(pair_data(), tmp_path / "cut", **settings | {"progress": StopAtBatch(batches)})
    cut = train(pair_data(), tmp_path / "cut", **settings)
    assert (cut.path / "result.json").read_bytes() == (whole.path / "result.json").read_bytes()


def test_answers_of_the_test_part_do_not_reach_the_network(tmp_path):
    """Other answers there, and the same network comes out."""
    honest = pair_data()
    known = honest.test.pairs
    flipped = type(known).of(len(known.groups), known.pairs, ~known.same, transitive=False)
    poisoned = data.DataSet(
        "pairs",
        honest.train,
        data.SampleSet(honest.test.samples, honest.test.labels, honest.test.class_names, pairs=flipped),
        honest.validation,
        notes=honest.notes,
    )
    runs = [train(one, tmp_path / name, epochs=2) for name, one in (("a", honest), ("b", poisoned))]
    first, second = (run.read_network() for run in runs)
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert runs[0].result.threshold == runs[1].result.threshold
    areas = [run.result.verification.verification.roc_auc for run in runs]
    assert areas[0] == pytest.approx(1 - areas[1])
