from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from nearkin.data import BrokenImageError, ImageFiles, read_image
from nearkin.data.decoding import open_image


@pytest.fixture
def photo(smooth_pixels):
    return smooth_pixels(40, 56)


def saved(tmp_path, image: Image.Image, name: str, **keywords):
    path = tmp_path / name
    image.save(path, **keywords)
    return path


def hwc(pixels: torch.Tensor) -> np.ndarray:
    assert pixels.dtype == torch.uint8
    return pixels.permute(1, 2, 0).numpy()


def test_rgb_comes_as_it_is(tmp_path, photo):
    path = saved(tmp_path, Image.fromarray(photo), "a.png")
    np.testing.assert_array_equal(hwc(read_image(path)), photo)


def test_grey_fills_three_channels(tmp_path, photo):
    path = saved(tmp_path, Image.fromarray(photo[..., 0]), "a.png")
    np.testing.assert_array_equal(hwc(read_image(path)), np.repeat(photo[..., :1], 3, axis=-1))


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparent_places_are_white(tmp_path, photo, mode):
    alpha = np.full(photo.shape[:2], 255, dtype=np.uint8)
    alpha[:10] = 0
    image = Image.fromarray(photo) if mode == "RGBA" else Image.fromarray(photo[..., 0])
    opaque = np.asarray(image.convert("RGB"))
    image.putalpha(Image.fromarray(alpha))
    assert image.mode == mode
    pixels = hwc(read_image(saved(tmp_path, image, "a.png")))
    assert (pixels[:10] == 255).all()
    np.testing.assert_array_equal(pixels[10:], opaque[10:])


def test_palette_with_and_without_transparency(tmp_path, photo):
    image = Image.fromarray(photo).quantize(16)
    expected = np.asarray(image.convert("RGB"))
    np.testing.assert_array_equal(hwc(read_image(saved(tmp_path, image, "opaque.png"))), expected)
    hole = np.asarray(image) == 3
    assert hole.any()
    pixels = hwc(read_image(saved(tmp_path, image, "hole.png", transparency=3)))
    assert (pixels[hole] == 255).all()
    np.testing.assert_array_equal(pixels[~hole], expected[~hole])


def test_cmyk_jpeg_keeps_its_colours(tmp_path, photo):
    path = saved(tmp_path, Image.fromarray(photo).convert("CMYK"), "a.jpg", quality=100, subsampling=0)
    with Image.open(path) as image:
        assert image.mode == "CMYK"
    assert np.abs(hwc(read_image(path)).astype(int) - photo).mean() < 2


def test_sixteen_bits_keep_the_upper_eight(tmp_path):
    ramp = np.linspace(0, 65535, 40 * 56).reshape(40, 56).astype(np.uint16)
    path = saved(tmp_path, Image.fromarray(ramp), "a.png")
    with Image.open(path) as image:
        assert image.mode.startswith("I")
    np.testing.assert_array_equal(hwc(read_image(path))[..., 0], ramp >> 8)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["jpg", "png", "tif", "webp"])
def test_orientation_is_undone(tmp_path, photo, orientation, suffix):
    undo = {  # what a viewer does to the stored image, in EXIF's own words
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.swapaxes(0, 1),
        6: lambda a: np.rot90(a, -1),
        7: lambda a: np.rot90(a, 2).swapaxes(0, 1),
        8: lambda a: np.rot90(a, 1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    lossless = {"webp": {"lossless": True}, "jpg": {"quality": 100, "subsampling": 0}}.get(suffix, {})
    path = saved(tmp_path, Image.fromarray(photo), f"a.{suffix}", exif=exif, **lossless)
    upright = undo(photo)
    pixels = hwc(read_image(path))
    assert pixels.shape == upright.shape
    assert np.abs(pixels.astype(int) - upright).max() <= (6 if suffix == "jpg" else 0)
    with open_image(path) as image:
        assert (image.height, image.width) == upright.shape[:2]


@pytest.mark.parametrize("reduction", [1, 2, 4, 8])
def test_reduced_decoding_is_a_smaller_version_of_the_image(save_image, reduction):
    path = save_image("a.jpg", 160, 240)
    with open_image(path) as image:
        size = image.reduce(reduction)
        pixels = image.pixels()
    assert size == (160 // reduction, 240 // reduction)
    assert pixels.shape == (3, 160 // reduction, 240 // reduction)
    averaged = torch.nn.functional.avg_pool2d(read_image(path).float(), reduction)
    assert (pixels.float() - averaged).abs().mean() < 1


def test_reduction_leaves_other_formats_alone(save_image):
    with open_image(save_image("a.png", 64, 64)) as image:
        assert image.reduce(4) == (64, 64)
        assert image.pixels().shape == (3, 64, 64)


@pytest.mark.parametrize("name", ["a.png", "a.jpg"])
def test_a_box_of_the_pixels(save_image, name):
    path = save_image(name, 60, 80)
    with open_image(path) as image:
        assert image.pixels((10, 20, 30, 40)).equal(read_image(path)[:, 10:40, 20:60])


def broken_files(tmp_path, save_image):
    (tmp_path / "text.jpg").write_text("I am not a bird")
    (tmp_path / "empty.jpg").touch()
    whole = save_image("whole.jpg").read_bytes()
    (tmp_path / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    whole = save_image("whole.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "loop.jpg").symlink_to(tmp_path / "loop.jpg")
    Image.fromarray(np.zeros((4, 4), dtype=np.float32)).save(tmp_path / "float.tif")
    return {
        "text.jpg": "not an image",
        "empty.jpg": r"empty file \(0 bytes\)",
        "cut.jpg": "truncated",
        "cut.png": "truncated|broken",
        "loop.jpg": "too many levels of symbolic links",
        "missing.jpg": "no such file",
        "float.tif": "floating-point",
        ".": "is a directory",
    }


def test_a_broken_file_is_named_with_the_reason(tmp_path, save_image):
    for name, reason in broken_files(tmp_path, save_image).items():
        with pytest.raises(BrokenImageError, match=f"(?s){tmp_path / name}: .*({reason})"):
            read_image(tmp_path / name)


def test_image_files_select_and_name(tmp_path, save_image):
    for number in range(3):
        save_image(f"{number}.png", seed=number)
    files = ImageFiles(["0.png", "1.png", "2.png"], tmp_path)
    chosen = files.select([2, 0])
    assert (len(files), len(chosen)) == (3, 2)
    assert (chosen.name(0), chosen.path(0)) == ("2.png", tmp_path / "2.png")
    assert chosen[1].equal(files[0])


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("keywords", [{}, {"progressive": True}, {"subsampling": 0}, {"quality": 30}])
def test_the_short_way_for_plain_jpegs_gives_pillows_pixels(tmp_path, smooth_pixels, mode, keywords):
    image = Image.fromarray(smooth_pixels(51, 77)).convert(mode)
    path = saved(tmp_path, image, "a.jpg", **keywords)
    with open_image(path) as opened:
        assert type(opened).__name__ == "_PlainJpeg"
    with Image.open(path) as decoded:
        np.testing.assert_array_equal(hwc(read_image(path)), np.asarray(decoded.convert("RGB")))
