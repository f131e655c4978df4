from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import nearkin.torchvision_import  # noqa: F401  (must come before torchvision)

# isort: split
from torchvision.transforms import CenterCrop, Compose, InterpolationMode, PILToTensor, Resize
from torchvision.transforms.functional import hflip, pil_to_tensor, resized_crop

from nearkin.data import ImageArray, ImageFiles, Preprocessing, evaluation_transform, training_transform
from nearkin.data.transforms import (
    CentreCrop,
    CropTransform,
    RandomCrop,
    RandomResizedCrop,
    View,
    with_channels,
)

PLAIN = Preprocessing(size=48, mean=(0.0,) * 3, std=(1.0,) * 3, value_range=255, resize=56)
sizes = st.integers(1, 700)


def one(transform, images, index=0, seed=0):
    return transform(images, [index], [seed])[0]


@pytest.mark.parametrize(("height", "width"), [(60, 80), (80, 60), (200, 131), (56, 56), (30, 41)])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_evaluation_is_torchvisions_resize_and_centre_crop(smooth_pixels, height, width, interpolation):
    pixels = smooth_pixels(height, width)
    mode = InterpolationMode(interpolation)
    expected = Compose([Resize(56, mode), CenterCrop(48), PILToTensor()])(Image.fromarray(pixels))
    preprocessing = Preprocessing(48, PLAIN.mean, PLAIN.std, "rgb", 255, 56, interpolation)
    images = ImageArray(torch.from_numpy(pixels).permute(2, 0, 1)[None])
    result = one(evaluation_transform(preprocessing), images)
    assert (result - expected).abs().max() <= 1


@pytest.mark.parametrize("seed", range(5))
def test_resized_crop_is_torchvisions_for_the_same_box(save_image, seed):
    path = save_image("a.jpg", 90, 120)
    view = RandomResizedCrop(48)(90, 120, seed)
    with Image.open(path) as image:
        expected = resized_crop(image, *view.box, [48, 48])
    expected = pil_to_tensor(hflip(expected) if view.flip else expected)
    transform = training_transform(PLAIN, "resized_crop", scaled_decoding=False)
    result = one(transform, ImageFiles([path]), seed=seed)
    assert (result - expected).abs().max() <= 1


def test_scaled_decoding_shows_the_same_picture(save_image):
    files = ImageFiles([save_image("a.jpg", 1024, 1400)])
    for scheme in ("resized_crop", "simple_crop"):
        for seed in range(4):
            full = one(training_transform(PLAIN, scheme, scaled_decoding=False), files, seed=seed)
            scaled = one(training_transform(PLAIN, scheme, scaled_decoding=True), files, seed=seed)
            assert not full.equal(scaled)  # it was at work
            assert (full - scaled).abs().mean() < 1.5


def test_scaled_decoding_works_on_turned_images(smooth_pixels, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(smooth_pixels(700, 1000)).save(tmp_path / "a.jpg", exif=exif, quality=95)
    files = ImageFiles([tmp_path / "a.jpg"])
    full, scaled = (one(evaluation_transform(PLAIN, scaled_decoding=on), files) for on in (False, True))
    assert (full - scaled).abs().mean() < 1.5


@given(height=sizes, width=sizes, seed=st.integers(0, 2**63 - 1))
def test_views_stay_inside_the_image(height, width, seed):
    for view_of in (RandomResizedCrop(48), RandomCrop(48, 56), CentreCrop(48, 56)):
        view = view_of(height, width, seed)
        top, left, box_height, box_width = view.box
        assert top >= 0
        assert left >= 0
        assert box_height >= 1
        assert box_width >= 1
        assert top + box_height <= height
        assert left + box_width <= width
        assert all(0 <= c <= side - 48 for c, side in zip(view.corner, view.resized, strict=True))


@given(height=st.integers(50, 700), width=st.integers(50, 700), seed=st.integers(0, 2**31))
def test_a_reduced_view_needs_no_enlarging_and_keeps_its_place(height, width, seed):
    view = RandomResizedCrop(24)(height, width, seed)
    reduction = view.reduction()
    small = (-(-height // reduction), -(-width // reduction))
    reduced = view.on(*small, of=(height, width))
    if reduction > 1:
        assert reduced.box[2] >= 24 - 1
        assert reduced.box[3] >= 24 - 1
    scale = (small[0] / height, small[1] / width) * 2
    for edge, reduced_edge, factor in zip(view.box, reduced.box, scale, strict=True):
        assert abs(edge * factor - reduced_edge) <= 1


def test_resized_crop_draws_areas_and_ratios_evenly():
    boxes = [RandomResizedCrop(8)(400, 400, seed).box for seed in range(3000)]
    area = np.array([h * w for _, _, h, w in boxes]) / 400**2
    ratio = np.log(np.array([w / h for _, _, h, w in boxes]))
    assert 0.07 < area.min() < 0.1
    assert 0.9 < area.max() <= 1
    # Boxes near the whole image must be almost square to fit, so only small ones have every shape.
    small = ratio[area < 0.5]
    assert abs(small.mean()) < 0.02
    assert abs(small.std() - np.log(16 / 9) / 12**0.5) < 0.01
    flips = [RandomResizedCrop(8)(400, 400, seed).flip for seed in range(3000)]
    assert 0.45 < np.mean(flips) < 0.55


def test_very_long_images_give_a_box_of_the_widest_ratio():
    assert RandomResizedCrop(48)(2, 3000, 0).box == (0, 1498, 2, 3)
    assert RandomResizedCrop(48)(3000, 3, 0).box == (1498, 0, 4, 3)


def test_flip_mirrors(smooth_pixels):
    images = ImageArray(torch.from_numpy(smooth_pixels(60, 70)).permute(2, 0, 1)[None])
    straight, mirrored = (one(training_transform(PLAIN, flip=flip), images) for flip in (0.0, 1.0))
    assert mirrored.equal(straight.flip(-1))


def test_none_only_normalises_and_says_when_sizes_differ(save_image):
    pixels = torch.randint(
        0, 256, (4, 1, 28, 28), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    preprocessing = Preprocessing(28, (0.5,), (0.25,))
    for transform in (training_transform(preprocessing, "none"), evaluation_transform(preprocessing, "none")):
        batch = transform(ImageArray(pixels), [3, 1], [0, 0])
        torch.testing.assert_close(batch, (pixels[[3, 1]] / 255 - 0.5) / 0.25)
    with pytest.raises(ValueError, match=r"image 0 has 28 × 28 pixels and the network takes 32 × 32"):
        training_transform(Preprocessing(32, (0.5,), (0.5,)), "none")(ImageArray(pixels), [0], [0])
    files = ImageFiles([save_image("a.png", 28, 28), save_image("b.png", 28, 29)])
    colour = training_transform(Preprocessing(28, (0.5,) * 3, (0.5,) * 3), "none")
    assert colour(files, [0], [0]).shape == (1, 3, 28, 28)
    with pytest.raises(ValueError, match=r"b.png has 28 × 29"):
        colour(files, [0, 1], [0, 0])


def test_channels_follow_the_network(smooth_pixels):
    pixels = torch.from_numpy(smooth_pixels(20, 30)).permute(2, 0, 1)
    luma = np.asarray(Image.fromarray(smooth_pixels(20, 30)).convert("L")).astype(int)
    assert np.abs(with_channels(pixels, 1)[0].numpy().astype(int) - luma).max() <= 1
    assert with_channels(pixels[:1], 3).equal(pixels[:1].repeat(3, 1, 1))
    with pytest.raises(ValueError, match="3 channels for a network that takes 4"):
        with_channels(pixels, 4)
    grey = Preprocessing(16, (0.5,), (0.5,))
    assert training_transform(grey)(ImageArray(pixels[None]), [0], [7]).shape == (1, 1, 16, 16)


def test_caffe_weights_get_bgr_up_to_255():
    caffe = Preprocessing(48, (104.0, 117.0, 128.0), (1.0,) * 3, "bgr", 255)
    red = torch.zeros(1, 3, 60, 60, dtype=torch.uint8)
    red[:, 0] = 200
    blue_green_red = one(evaluation_transform(caffe), ImageArray(red))[:, 0, 0]
    torch.testing.assert_close(blue_green_red, torch.tensor([-104.0, -117.0, 72.0]))


def test_wrong_values_are_named():
    for make in (training_transform, evaluation_transform):
        with pytest.raises(
            ValueError,
            match="unknown transform 'random': known: as_is, image_and_text, multi_scale, none, resized_crop",
        ):
            make(PLAIN, "random")
    with pytest.raises(ValueError, match="resize=30 leaves no room for a crop of 48"):
        evaluation_transform(Preprocessing(48, (0.5,), (0.5,), resize=30))


def test_a_transform_describes_itself_by_its_values():
    """The feature cache is keyed by it: equal transforms say the same, different ones do not."""
    make = [lambda: evaluation_transform(PLAIN), lambda: training_transform(PLAIN, "none")]
    make += [lambda: training_transform(PLAIN, flip=0.3), lambda: training_transform(PLAIN, flip=0.4)]
    texts = [repr(m()) for m in make]
    assert texts == [repr(m()) for m in make]
    assert len(set(texts)) == len(texts)
    assert not any(" at 0x" in text for text in texts)


def test_the_window_is_cut_from_the_resized_box():
    pixels = torch.arange(36, dtype=torch.uint8).view(1, 6, 6)
    view = View(box=(1, 1, 4, 4), resized=(4, 4), corner=(1, 2), size=2)
    assert view.cut(pixels, "bilinear").tolist() == [[[15, 16], [21, 22]]]
    assert isinstance(evaluation_transform(PLAIN), CropTransform)
