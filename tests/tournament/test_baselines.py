from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sklearn.decomposition import PCA

import nearkin
from nearkin.evaluation import retrieval_scores
from nearkin.protocols import execute
from nearkin.recipe import Recipe, open_data, starting_point
from nearkin.recipe.building import build_network
from nearkin.recipe.objects import recipe_of
from nearkin.recipe.starting_point import StartingPoint
from nearkin.tournament import baselines, compare
from nearkin.tournament.baselines import LEARNERS, run_baselines
from nearkin.tournament.outcomes import read_outcomes
from nearkin.training import Run


@pytest.fixture
def recipe(small_recipe) -> Recipe:
    return Recipe.parse(small_recipe)


def test_every_baseline_becomes_an_outcome_of_the_runs_experiment(recipe, tmp_path):
    run_baselines(StartingPoint(recipe), tmp_path / "baselines")
    task = recipe.build()
    execute(task, Run.open(tmp_path / "run", task.description))
    outcomes, skipped = read_outcomes([tmp_path])
    assert not skipped
    assert len({outcome.experiment for outcome in outcomes}) == 1
    found = {outcome.contender: outcome for outcome in outcomes if outcome.kind == "baseline"}
    assert sorted(found) == sorted(["raw_pixels", "untrained_network", *LEARNERS])
    for outcome in found.values():
        scores, labels = outcome.queries()
        assert scores.to_dict()["recall_at_1"] == outcome.scores["recall_at_1"]
        assert len(labels) == 240
        assert outcome.description
    for learner in LEARNERS:
        assert found[learner].result.baseline.fitted_on == {"samples": 216, "classes": 27}


def test_pca_is_fitted_on_training_pixels_and_scored_as_a_run(recipe, tmp_path):
    (folder,) = run_baselines(StartingPoint(recipe), tmp_path, names=["pca"])
    data_set = open_data(recipe)
    preprocessing = build_network(recipe).preprocessing

    def pixels(images):
        values = torch.stack([images.samples[i] for i in range(len(images))]).float() / 255
        return ((values - preprocessing.mean[0]) / preprocessing.std[0]).flatten(1).numpy()

    learnt = PCA(16, random_state=0).fit(pixels(data_set.train))
    embeddings = torch.from_numpy(learnt.transform(pixels(data_set.test)))
    expected = retrieval_scores(embeddings, data_set.test.labels).recall_at[1]
    found = json.loads((folder / "result.json").read_text())["test"]["recall_at_1"]
    assert found == pytest.approx(expected, abs=0.01)


def test_baselines_are_run_once_and_again_when_something_changed(recipe, tmp_path, monkeypatch):
    names = ["raw_pixels", "rca"]
    (first, _) = run_baselines(StartingPoint(recipe), tmp_path, names=names)
    opened = []
    monkeypatch.setattr(starting_point, "open_data", lambda *given: opened.append(1) or open_data(*given))
    run_baselines(
        StartingPoint(recipe.changed({"loss.name": "triplet", "training.epochs": 9})), tmp_path, names=names
    )
    assert not opened
    (first / "result.json").write_text("{")
    run_baselines(StartingPoint(recipe), tmp_path, names=names)
    assert len(opened) == 1
    run_baselines(StartingPoint(recipe.changed({"network.width": 5})), tmp_path, names=names)
    assert len(opened) == 2


@pytest.mark.parametrize("changes", [{}, {"network.cached_trunk": "2"}])
def test_with_weights_learners_start_from_frozen_features(recipe, tmp_path, changes, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    weights = tmp_path / "backbone.safetensors"
    state = build_network(recipe).backbone.state_dict()
    save_file({name: value.contiguous() for name, value in state.items()}, weights)
    pretrained = recipe.changed({"network.weights": str(weights), **changes})
    run_baselines(
        StartingPoint(pretrained), tmp_path / "kept", names=["frozen_features", "lfda", "raw_pixels"]
    )
    found = {outcome.contender: outcome for outcome in read_outcomes([tmp_path / "kept"]).outcomes}
    network = build_network(pretrained)
    assert found["frozen_features"].description.endswith(f"features, {network.num_features} numbers")
    assert "of the pretrained network's features" in found["lfda"].description
    assert found["raw_pixels"].description == "pixels, 256 numbers"


def test_slow_learners_get_whole_classes():
    labels = np.repeat(np.arange(10), 7)
    rows = baselines._whole_classes(labels, 30, seed=0)
    assert len(rows) == 28
    assert set(np.bincount(labels[rows], minlength=10)) == {0, 7}
    assert len(baselines._whole_classes(labels, 1, seed=0)) == 14  # two classes at least
    assert len(baselines._whole_classes(labels, 1000, seed=0)) == 70


def names_of(recipe: Recipe, folder) -> dict[str, str]:
    run_baselines(StartingPoint(recipe), folder, names=None)
    return {one.contender: one.description for one in read_outcomes([folder]).outcomes}


def test_vectors_are_a_baseline_themselves(tmp_path):
    draws = np.random.default_rng(0)
    labels = np.repeat(np.arange(12), 6)
    points = (draws.normal(size=(12, 5))[labels] + 0.3 * draws.normal(size=(72, 5))).astype(np.float32)
    recipe = recipe_of(
        (points, labels), network=torch.nn.Linear(5, 4), loss="triplet", batch_size=10, protocol="standard"
    )
    found = names_of(recipe, tmp_path)
    assert set(found) == {"raw_vectors", "frozen_features", *LEARNERS}
    assert found["raw_vectors"] == "vectors, 5 numbers"
    assert found["frozen_features"] == "the network as it was given, 4 numbers"
    assert "the network as it was given" in found["rca"]
    data = open_data(recipe)
    vectors = torch.stack([torch.as_tensor(data.test.samples[i]) for i in range(len(data.test))])
    expected = retrieval_scores(vectors, data.test.labels)
    (outcome,) = (one for one in read_outcomes([tmp_path]).outcomes if one.contender == "raw_vectors")
    assert outcome.scores["recall_at_1"] == pytest.approx(expected.recall_at[1])


class Bag(torch.nn.Module):
    """Counts letters."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(26, 8)

    def forward(self, texts):
        counts = torch.tensor([[text.count(chr(97 + i)) for i in range(26)] for text in texts])
        return self.linear(counts.float())


def test_texts_have_no_raw_baseline(tmp_path):
    words = ["wren", "gull", "crane", "swift", "robin", "finch", "heron", "stork"]
    texts = [f"{word} {extra}" for word in words for extra in ("sings", "flies", "eats", "sleeps")]
    labels = [word for word in words for _ in range(4)]
    recipe = recipe_of((texts, labels), network=Bag(), loss="triplet", batch_size=8, protocol="standard")
    assert set(names_of(recipe, tmp_path)) == {"frozen_features", *LEARNERS}


def test_data_that_is_not_what_the_runs_saw_is_refused(recipe, tmp_path):
    with pytest.raises(ValueError, match="not those that the runs were tested on"):
        run_baselines(StartingPoint(recipe), tmp_path, test_fingerprint="of other samples")


def test_baselines_of_the_first_edition_stand_beside_new_runs(recipe, tmp_path):
    (folder,) = run_baselines(StartingPoint(recipe), tmp_path / "baselines", names=["raw_pixels"])
    result = json.loads((folder / "result.json").read_text())
    del result["baseline"]["test_fingerprint"]
    del result["recipe"]["network"]["channels"]  # keywords by default were not written
    (folder / "result.json").write_text(json.dumps(result))
    task = recipe.build()
    execute(task, Run.open(tmp_path / "run", task.description))
    (board,) = compare(tmp_path).leaderboards
    assert {place.kind for place in board.places} == {"run", "baseline"}


def test_a_learner_on_features_is_a_model(small_recipe, tmp_path):
    first = Recipe.parse(small_recipe)
    save_file(build_network(first).backbone.state_dict(), tmp_path / "weights.safetensors")
    network = small_recipe["network"] | {"weights": str(tmp_path / "weights.safetensors")}
    recipe = Recipe.parse(small_recipe | {"network": network})
    folders = run_baselines(StartingPoint(recipe), tmp_path / "baselines", names=["pca", "rca", "lda"])
    test = open_data(recipe).test
    for folder in folders:
        model = nearkin.load(folder)
        scores = retrieval_scores(model.embed(test), test.labels)
        kept = json.loads((folder / "result.json").read_text())["test"]
        assert scores.recall_at[1] == pytest.approx(kept["recall_at_1"], abs=0.005)
        assert scores.map_at_r == pytest.approx(kept["map_at_r"], abs=0.005)


def test_discriminants_of_fewer_samples_than_components_are_no_noise():
    numbers = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), 20)
    basis = numbers.normal(size=(8, 600))

    def drawn():
        centres = 2 * numbers.normal(size=(6, 8))[labels]
        points = (centres + numbers.normal(size=(120, 8))) @ basis + 0.3 * numbers.normal(size=(120, 600))
        return points.astype(np.float32)

    learnt = baselines.LEARNERS["lda"].fit(drawn(), labels, 512)
    scores = retrieval_scores(torch.from_numpy(learnt(drawn())), torch.from_numpy(labels))
    assert scores.recall_at[1] > 0.7  # 0.11 where the scatter within classes is singular, less than chance
