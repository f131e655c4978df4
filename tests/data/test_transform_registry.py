from __future__ import annotations

import numpy as np
import pytest
import torch

from nearkin import data
from nearkin.data import Preprocessing, Texts, Vectors, transforms
from nearkin.data.pixels import to_pil

PREPROCESSING = Preprocessing(16, (0.5,) * 3, (0.5,) * 3)
PIXELS = data.ImageArray(
    torch.randint(256, (4, 3, 30, 40), generator=torch.Generator().manual_seed(0)).byte()
)


@pytest.mark.parametrize("scheme", ["resized_crop", "simple_crop"])
@pytest.mark.parametrize("train", [True, False])
def test_names_and_functions_make_the_same(scheme, train):
    function = data.training_transform if train else data.evaluation_transform
    named = transforms.build(scheme, PREPROCESSING, train=train)
    assert repr(named) == repr(function(PREPROCESSING, scheme))
    assert named(PIXELS, [0, 1], [1, 2]).equal(function(PREPROCESSING, scheme)(PIXELS, [0, 1], [1, 2]))


def test_keywords_reach_the_transform():
    crop = transforms.build("resized_crop", PREPROCESSING, scale=(0.5, 0.6), flip=0.0)
    assert (crop.view_of.area, crop.view_of.flip) == ((0.5, 0.6), 0.0)
    for name, wrong in (("resized_crop", {"flip": 2}), ("simple_crop", {"flip": float("nan")})):
        with pytest.raises(ValueError, match="flip=.* must lie between 0 and 1"):
            transforms.build(name, PREPROCESSING, **wrong)
    with pytest.raises(ValueError, match="scale=.* must be two fractions"):
        transforms.build("resized_crop", PREPROCESSING, scale=(0.9, 0.1))


def test_as_is_only_collates():
    as_is = transforms.build("as_is")
    assert as_is(Texts(["a", "b", "c"]), [2, 0], [0, 0]) == ["c", "a"]
    rows = as_is(Vectors(np.eye(3)), [2, 0], [0, 0])
    assert rows.dtype == torch.float32
    assert rows.tolist() == [[0, 0, 1], [1, 0, 0]]
    assert as_is(PIXELS, [3], [0]).equal(PIXELS.pixels[3:])


@pytest.mark.parametrize("name", ["resized_crop", "simple_crop", "none"])
@pytest.mark.parametrize(("samples", "kind"), [(Texts(["a wren"]), "str"), (Vectors(np.eye(2)), "tensor of")])
def test_a_crop_of_what_is_no_image_is_refused(name, samples, kind):
    with pytest.raises(
        TypeError, match=f"take images, and sample .* is a {kind}.*choose the transform as_is"
    ):
        transforms.build(name, PREPROCESSING)(samples, [0], [0])


@pytest.mark.parametrize("name", ["resized_crop", "simple_crop", "none"])
def test_a_crop_for_a_network_without_preprocessing_is_refused(name):
    with pytest.raises(ValueError, match=f"{name} needs to know what the network expects.*as_is"):
        transforms.build(name, None)


def test_one_can_add_a_transform():
    @transforms.register("shout")
    def shout(preprocessing, train, mark="!"):
        return data.PerSample(lambda text: text.upper() + mark * train)

    try:
        assert "shout" in transforms.names()
        assert transforms.build("shout", mark="?")(Texts(["a"]), [0], [0]) == ["A?"]
    finally:
        transforms.registry.unregister("shout")


def test_pil_images_can_be_cropped():
    pictures = data.Pictures([to_pil(pixels) for pixels in PIXELS.pixels])
    crop = transforms.build("simple_crop", PREPROCESSING)
    assert crop(pictures, [1, 2], [5, 6]).equal(crop(PIXELS, [1, 2], [5, 6]))
