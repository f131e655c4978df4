from __future__ import annotations

import pytest
import torch

from nearkin.recipe import RecipeError
from nearkin.recipe.objects import recipe_of


def task(height: int, width: int, **settings):
    labels = torch.arange(120) // 6
    images = torch.randint(0, 255, (120, 1, height, width), dtype=torch.uint8)
    return recipe_of((images, labels), network="lenet", batch_size=20, **settings).build()


def test_images_of_the_networks_size_stay_as_they_are():
    assert task(32, 32).description.chosen["data.transform"].startswith("none: ")


def test_images_of_another_size_are_resized():
    made = task(20, 24)
    assert made.description.chosen["data.transform"].startswith("resized_crop: ")
    batch = made.embedder.training_transform(made.data.train.samples, [0, 1], [0, 1])
    assert batch.shape == (2, 1, 32, 32)


def test_keywords_of_a_transform_that_is_chosen_count():
    assert "flip=0.25" in repr(task(20, 24, transform={"flip": 0.25}).embedder.training_transform)


def test_keywords_that_the_chosen_transform_does_not_take_are_refused():
    with pytest.raises((RecipeError, ValueError), match="no keyword 'flipp'"):
        task(20, 24, transform={"flipp": 0.25})
