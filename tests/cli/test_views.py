from __future__ import annotations

import pytest
import torch
from torch import nn

import nearkin
from nearkin.cli.views import draw_run
from nearkin.observer import Observer


class Listener(Observer):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def warning(self, text: str) -> None:
        self.heard.append(text)


@pytest.fixture(scope="module")
def run_on_vectors(tmp_path_factory):
    """A finished run on something that is no image."""
    labels = torch.arange(120) // 6
    vectors = torch.nn.functional.one_hot(labels).float() + torch.randn(120, 20)
    return nearkin.train(
        (vectors, labels),
        network=nn.Linear(20, 4),
        output=tmp_path_factory.mktemp("vectors") / "run",
        epochs=1,
        batch_size=20,
        progress=False,
    )


def test_samples_that_are_no_images_do_not_stop_the_pictures(run_on_vectors):
    listener = Listener()
    drawn = [picture.name for picture in draw_run(run_on_vectors, listener)]
    assert "learning_curve.png" in drawn
    missing = {"gallery.png", "map.png"} - set(drawn)
    assert all(any(line.startswith(name) for line in listener.heard) for name in missing)


def test_pictures_of_data_that_is_gone_are_told_and_stop_nothing(run_on_vectors):
    for picture in run_on_vectors.path.glob("*.png"):
        picture.unlink()
    listener = Listener()
    assert draw_run(nearkin.Run.existing(run_on_vectors.path), listener) == []
    assert "the pictures that are missing cannot be drawn: the data" in listener.heard[0]
