"""Which epoch is kept, told by made-up validation scores; and what is said of scores that cannot choose."""

from __future__ import annotations

import time

import pytest
import torch
from interruptions import Interruption, StopAfterEpoch
from running import new_run

from nearkin import losses, training
from nearkin.data import DataSet, ImageArray, SampleSet
from nearkin.evaluation import RetrievalScores
from nearkin.recipe import Recipe
from nearkin.training import TrainingSettings
from nearkin.training.watchdogs import Watchdogs


def images(classes: int = 8) -> SampleSet:
    labels = torch.arange(classes).repeat_interleave(4)
    pixels = torch.randint(0, 255, (len(labels), 1, 16, 16), generator=torch.Generator().manual_seed(0))
    return SampleSet(ImageArray(pixels.to(torch.uint8)), labels)


def told(recall_at_1: float, map_at_r: float, recall_at_2: float = 1.0) -> RetrievalScores:
    return RetrievalScores(
        recall_at={1: recall_at_1, 2: recall_at_2},
        precision_at_1=recall_at_1,
        mean_reciprocal_rank=0.5,
        queries=10,
        queries_without_positive=0,
        map_at_r=map_at_r,
        r_precision=0.5,
    )


class MadeUp:
    """Tells prepared scores, one per epoch, and remembers the network that it was shown."""

    def __init__(self, scores: list[RetrievalScores]) -> None:
        self.scores, self.shown = scores, []

    def __call__(self, embedder) -> RetrievalScores:
        self.shown.append({name: w.clone() for name, w in embedder.network.state_dict().items()})
        return self.scores[len(self.shown) - 1]


def trained(path, scorer, epochs, observer=None, **changes):
    values = {
        "network": {"name": "convnet", "size": 16, "width": 4, "embedding_dim": 8},
        "sampler": {"batch_size": 16},
        "training": {"epochs": epochs},
        "protocol": {"name": "standard"},
    }
    run = new_run(path, Recipe.parse(values | changes))
    task = run.recipe.build(data=DataSet("made up", images()))
    result = training.train(task, run, task.embedder.copy(), images(), validation=scorer, observer=observer)
    return run, result


@pytest.mark.parametrize(
    ("scores", "chosen"),
    [
        ([(0.9, 0.9), (0.5, 0.4), (0.6, 0.3), (0.5, 0.5)], 2),  # the untrained network is no choice
        ([(0.0, 0.0), (1.0, 0.5), (1.0, 0.7), (1.0, 0.6)], 2),  # of equals the better MAP@R
        ([(0.0, 0.0), (1.0, 0.5), (1.0, 0.7), (1.0, 0.7)], 3),  # then the later epoch
        ([(0.0, 0.0), (0.6, 0.1), (0.5, 0.9), (0.5, 0.9)], 1),  # MAP@R alone chooses nothing
    ],
)
def test_ties_go_by_map_at_r_and_then_to_the_later_epoch(scores, chosen, tmp_path):
    scorer = MadeUp([told(*one) for one in scores])
    run, result = trained(tmp_path / "run", scorer, epochs=3)
    assert result.epoch == chosen
    kept = run.read_network()
    assert all(torch.equal(kept[name], weights) for name, weights in scorer.shown[chosen].items())
    assert not all(torch.equal(kept[name], weights) for name, weights in scorer.shown[chosen - 1].items())
    assert all(torch.equal(kept[name], w) for name, w in result.embedder.network.state_dict().items())
    assert [row["map_at_r"] for row in run.metrics()] == [map_at_r for _, map_at_r in scores]


def test_the_first_k_of_the_recipe_chooses(tmp_path):
    scores = [told(0, 0, 0), told(0.9, 0.9, 0.6), told(0.1, 0.1, 0.7), told(0.5, 0.5, 0.5)]
    _, result = trained(tmp_path / "run", MadeUp(scores), epochs=3, evaluation={"recall_at": [2, 1]})
    assert result.epoch == 2


def test_the_best_epoch_is_remembered_through_a_kill(tmp_path):
    scores = [told(0, 0), told(0.5, 0.5), told(0.8, 0.5), told(0.6, 0.5), told(0.7, 0.5)]
    scorer = MadeUp(scores)
    with pytest.raises(Interruption):
        trained(tmp_path / "run", scorer, 4, StopAfterEpoch(4))
    again = MadeUp(scores[4:])
    run, result = trained(tmp_path / "run", again, 4)
    assert (len(again.shown), result.epoch) == (1, 2)
    kept = run.read_network()
    assert all(torch.equal(kept[name], weights) for name, weights in scorer.shown[2].items())


def said_of(recalls: list[float], **settings) -> list[str]:
    said: list[str] = []
    dogs = Watchdogs(TrainingSettings(**settings), losses.build("contrastive"), said.append)
    key = f"recall_at_{TrainingSettings(**settings).recall_at[0]}"
    rows = [{"epoch": epoch, key: recall} for epoch, recall in enumerate(recalls)]
    for count in range(1, len(rows) + 1):
        dogs.epoch_end(rows[:count])
    return said


@pytest.mark.parametrize(
    "recalls", [[1.0, 1.0], [1.0, 1.0, 0.99, 1.0], [1.0, 0.99, 0.998, 0.999], [1.0, 1.0, 0.999]]
)
def test_a_validation_that_can_choose_is_not_called_saturated(recalls):
    assert said_of(recalls) == []


def test_a_saturated_validation_is_said_once():
    (said,) = said_of([0.2, 0.9, 1.0, 1.0, 1.0, 1.0], recall_at=(2, 1))
    assert said.startswith("epoch 3: validation is saturated: recall_at_2 has been 100% for 2 epochs")
    assert "protocol.validation_share" in said


def test_a_run_says_that_its_validation_is_saturated(tmp_path):
    _, result = trained(tmp_path / "run", MadeUp([told(1, 0.5)] * 4), epochs=3)
    (said,) = [text for text in result.warnings if "saturated" in text]
    assert said.startswith("epoch 2: validation is saturated")
    assert result.epoch == 3


def test_the_seconds_of_an_epoch_are_those_that_passed(tmp_path):
    started = time.monotonic()
    run, _ = trained(tmp_path / "run", MadeUp([told(0.5, 0.5)] * 3), epochs=2)
    passed = time.monotonic() - started
    untrained, *epochs = run.metrics()
    assert "seconds" not in untrained
    assert all(row["seconds"] > 0 for row in epochs)
    assert sum(row["seconds"] for row in epochs) <= passed


def test_map_at_r_chooses_where_it_is_told_to(tmp_path):
    scores = [told(0.5, 0.1), told(0.9, 0.2), told(0.8, 0.4), told(0.85, 0.4), told(0.7, 0.3)]
    _, result = trained(tmp_path / "run", MadeUp(scores), 4, evaluation={"select": "map_at_r"})
    assert result.epoch == 3, "of equal MAP@R the better Recall@1"
    _, result = trained(tmp_path / "other", MadeUp(scores), 4)
    assert result.epoch == 1


def test_a_fall_is_told_of_the_score_that_chooses():
    rows = [
        {"epoch": epoch, "recall_at_1": 0.9 - 0.02 * epoch, "map_at_r": 0.4 + 0.01 * epoch}
        for epoch in range(1, 9)
    ]
    for select, fallen in (("recall", True), ("map_at_r", False)):
        said = []
        settings = TrainingSettings(epochs=8, select=select)
        watchdogs = Watchdogs(settings, losses.build("triplet"), said.append)
        for count in range(1, 9):
            watchdogs.epoch_end(rows[:count])
        assert any("validation has fallen" in text for text in said) == fallen
