from __future__ import annotations

import json

import pytest
import torch
from interruptions import Interruption, StopAfterEpoch
from running import execute, new_run

from nearkin import losses, networks, sampling
from nearkin.recipe import Recipe
from nearkin.training import Observer, TrainingSettings
from nearkin.training.watchdogs import Glimpse, Watchdogs

LABELS = torch.arange(20) % 5


class Listener(Observer):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def warning(self, text: str) -> None:
        self.heard.append(text)


def spread(seed: int = 0) -> torch.Tensor:
    return torch.randn(20, 8, generator=torch.Generator().manual_seed(seed))


def watch(
    loss: losses.Loss,
    *,
    epochs: int = 6,
    batch_loss: float = 0.07,
    embeddings: torch.Tensor | None = None,
    labels: torch.Tensor = LABELS,
    rate: float = 1.0,
    move=lambda proxies, look: proxies.add_(0.01),
) -> list[str]:
    """What is said about epochs of 50 batches, looked at every 25; ``move`` moves the proxies in between."""
    said: list[str] = []
    dogs = Watchdogs(TrainingSettings(), loss, said.append)
    for epoch in range(epochs):
        for batch in (25, 50):
            step = 50 * epoch + batch
            if hasattr(loss, "proxies"):
                with torch.no_grad():
                    move(loss.proxies, step)
            seen = spread(step) if embeddings is None else embeddings
            dogs.look(Glimpse(f"step {step}", step, batch, batch * batch_loss, rate, seen, labels))
            dogs_again = Watchdogs(TrainingSettings(), loss, said.append)  # as after a kill at any moment
            dogs_again.load(json.loads(json.dumps(dogs.state())), dogs.tensors())
            dogs = dogs_again
    assert dogs.warnings == tuple(said)
    return said


def proxy_anchor() -> losses.Loss:
    return losses.build("proxy_anchor", num_classes=5, embedding_dim=8)


@pytest.mark.parametrize("loss", [losses.build("triplet"), losses.build("contrastive"), proxy_anchor()])
def test_a_healthy_training_is_left_alone(loss):
    assert watch(loss) == []


def test_a_collapse_is_said_once():
    said = watch(losses.build("contrastive"), embeddings=1 + 0.01 * spread())
    assert len(said) == 1
    assert said[0].startswith("step 125: the embedding collapses")


def test_one_class_close_together_is_no_collapse():
    assert watch(losses.build("contrastive"), embeddings=torch.eye(5)[LABELS]) == []


def test_a_collapse_that_passes_is_not_said():
    assert watch(losses.build("contrastive"), epochs=2, embeddings=1 + 0.01 * spread()) == []


@pytest.mark.parametrize("metric", ["cosine", "squared_euclidean"])
def test_a_triplet_loss_at_its_margin(metric):
    loss = losses.build("triplet", margin=0.3, metric=metric, mining="all")
    stuck = loss(torch.ones(20, 8), LABELS).item()
    said = watch(loss, batch_loss=stuck)
    assert len(said) == 1
    assert "stood at its margin 0.3" in said[0]
    assert watch(losses.build("contrastive", margin=0.3), batch_loss=0.3) == []


def test_nothing_to_learn_from():
    (said,) = watch(losses.build("triplet"), batch_loss=0.0)
    assert "exactly 0" in said
    assert "harder mining" in said
    (said,) = watch(losses.build("triplet"), batch_loss=0.0, labels=torch.arange(20))
    assert "sampler.name=balanced" in said


def test_proxies_that_stand_still_and_that_run_away():
    (said,) = watch(proxy_anchor(), move=lambda proxies, step: proxies)
    assert "proxies have not moved" in said
    assert "loss.lr_factor times" in said
    assert watch(proxy_anchor(), rate=0.01, move=lambda proxies, step: proxies) == []  # the schedule's end
    (said,) = watch(proxy_anchor(), move=lambda proxies, step: proxies.mul_(4))
    assert "proxies run away" in said


def times(factor: float):
    """Moves the proxies at every look."""
    return lambda proxies, step: proxies.mul_(factor)


def longer_from_the_second_look_on(factor: float):
    return lambda proxies, step: proxies.mul_(factor if step == 50 else 1.001)


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ({"loss": "triplet", "batch_loss": 0.1 * 1.015}, None),
        ({"loss": "triplet", "batch_loss": 0.1 * 1.005}, "stood at its margin"),
        ({"loss": "triplet", "batch_loss": 0.1 * 0.995}, "stood at its margin"),
        ({"move": times(1 + 1.4e-6)}, None),
        ({"move": times(1 + 0.7e-6)}, "have not moved"),
        ({"move": times(1), "rate": 0.1}, None),
        ({"move": times(1), "rate": 0.11}, "have not moved"),
        ({"move": longer_from_the_second_look_on(90)}, None),
        ({"move": longer_from_the_second_look_on(150)}, "run away"),
    ],
)
def test_the_thresholds(case, said):
    loss = losses.build("triplet", margin=0.1) if "loss" in case else proxy_anchor()
    heard = watch(loss, **{key: value for key, value in case.items() if key != "loss"})
    assert len(heard) == (said is not None)
    assert said is None or said in heard[0]


@pytest.mark.parametrize(("now", "falls"), [(0.593, True), (0.596, False)])
def test_how_far_validation_may_fall(now, falls):
    said: list[str] = []
    rows = [{"epoch": epoch, "recall_at_1": score} for epoch, score in enumerate([0, 0.6, 0.6, 0.6, now])]
    dogs = Watchdogs(TrainingSettings(epochs=12), losses.build("contrastive"), said.append)
    dogs.epoch_end(rows)
    assert len(said) == falls
    if falls:
        assert "fallen since epoch 1, recall_at_1 from 60.0% to 59.3%. Epoch 3 stays chosen" in said[0]


def test_where_nothing_was_as_good_as_the_start_it_is_the_start_that_stays_chosen():
    said: list[str] = []
    scores = [0.7, 0.6, 0.5, 0.5, 0.5]
    rows = [{"epoch": epoch, "recall_at_1": score} for epoch, score in enumerate(scores)]
    Watchdogs(TrainingSettings(epochs=12), losses.build("contrastive"), said.append).epoch_end(rows)
    assert "fallen since epoch 1" in said[0]
    assert "Epoch 0, the network as it was, stays chosen" in said[0]


@pytest.mark.parametrize(("epochs", "patience"), [(4, 3), (12, 3), (13, 4), (40, 10)])
def test_how_long_validation_may_fall(epochs, patience):
    for wait in (patience - 1, patience):
        said: list[str] = []
        scores = [0.1, 0.6, *[0.5] * wait]
        rows = [{"epoch": epoch, "recall_at_1": score} for epoch, score in enumerate(scores)]
        Watchdogs(TrainingSettings(epochs=epochs), losses.build("contrastive"), said.append).epoch_end(rows)
        assert len(said) == (wait == patience)


@pytest.mark.parametrize(
    ("scores", "warned_in"),
    [
        ([0.1, 0.5, 0.6, 0.59, 0.58, 0.57, 0.56], 6),
        ([0.9, 0.5, 0.6, 0.59, 0.61, 0.58, 0.57, 0.56], 8),  # the untrained network does not count
        ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7], None),
        ([0.1, 0.6, 0.6, 0.6, 0.599, 0.6, 0.598], None),  # level is not falling
    ],
)
def test_validation_that_has_fallen_for_long(scores, warned_in):
    said: list[str] = []
    dogs = Watchdogs(TrainingSettings(epochs=12), losses.build("contrastive"), said.append)
    rows = [{"epoch": epoch, "recall_at_1": score} for epoch, score in enumerate(scores)]
    heard_in = None
    for count in range(1, len(rows) + 1):
        dogs.epoch_end(rows[:count])
        heard_in = heard_in or (count if said else None)
    assert heard_in == warned_in
    assert len(said) == (warned_in is not None)
    Watchdogs(TrainingSettings(), losses.build("contrastive"), said.append).epoch_end(
        [{"epoch": 1, "loss": 1.0}]
    )


def test_images_that_no_epoch_shows():
    said: list[str] = []
    dogs = Watchdogs(TrainingSettings(), losses.build("contrastive"), said.append)
    network = networks.build("convnet", size=16, width=4, embedding_dim=8)
    labels = [0] * 500 + list(range(1, 40))
    dogs.begin(sampling.build("balanced", labels, batch_size=20, images_per_class=4), network)
    assert len(said) == 1
    assert "of 539 samples" in said[0]
    dogs.begin(sampling.build("balanced", [0, 1, 2, 3] * 9, batch_size=8, images_per_class=4), network)
    assert len(said) == 1


@pytest.mark.parametrize(("shown", "warned"), [(80, True), (81, False), (100, False)])
def test_an_incomplete_last_batch_is_no_loss(shown, warned, monkeypatch):
    said: list[str] = []
    sampler = sampling.build("random", torch.zeros(100, dtype=torch.long), batch_size=20)
    monkeypatch.setattr(type(sampler), "images_per_epoch", shown)
    network = networks.build("convnet", size=16, width=4, embedding_dim=8)
    Watchdogs(TrainingSettings(), losses.build("contrastive"), said.append).begin(sampler, network)
    assert len(said) == warned


def test_processes_with_their_own_batch_norm():
    said: list[str] = []
    sampler = sampling.build("random", [0, 1] * 9, batch_size=4, world_size=2)
    network = networks.build("convnet", size=16, width=4, embedding_dim=8)
    Watchdogs(TrainingSettings(), losses.build("contrastive"), said.append).begin(sampler, network)
    assert "network.freeze_batch_norm=true" in said[0]
    networks.freeze_batch_norm(network)
    Watchdogs(TrainingSettings(), losses.build("contrastive"), said.append).begin(sampler, network)
    assert len(said) == 1


def test_a_run_says_it_in_time_and_in_its_result_also_when_it_was_killed(small_recipe, tmp_path):
    recipe = Recipe.parse(
        small_recipe
        | {
            "loss": {"name": "proxy_anchor", "lr": 1e-12},
            "schedule": {"name": "constant"},
            "optimizer": {"weight_decay": 0.0},
            "protocol": {"name": "standard"},
            "training": {"epochs": 20},
        }
    )
    listener = Listener()
    whole = new_run(tmp_path / "whole", recipe)
    execute(whole, listener)
    assert len(listener.heard) == 1
    assert "proxies have not moved" in listener.heard[0]
    assert whole.result.warnings == tuple(listener.heard)
    killed = new_run(tmp_path / "killed", recipe)
    with pytest.raises(Interruption):
        execute(killed, StopAfterEpoch(9))
    execute(killed)
    assert killed.result_file.read_text() == whole.result_file.read_text()
