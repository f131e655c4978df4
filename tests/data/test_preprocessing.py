from __future__ import annotations

import pytest
import torch

from nearkin.data import Preprocessing


def test_normalise_takes_off_the_mean_and_divides(smooth_pixels):
    pixels = torch.from_numpy(smooth_pixels(5, 6)).permute(2, 0, 1)
    preprocessing = Preprocessing(5, (0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
    result = preprocessing.normalize(pixels)
    for channel in range(3):
        expected = (pixels[channel].double() / 255 - preprocessing.mean[channel]) / preprocessing.std[channel]
        torch.testing.assert_close(result[channel].double(), expected, rtol=1e-5, atol=1e-6)
    assert result.dtype == torch.float32
    batch = preprocessing.normalize(pixels.expand(2, 4, -1, -1, -1))
    assert batch[1, 3].equal(result)


def test_wrong_images_are_refused():
    preprocessing = Preprocessing(4, (0.5,), (0.5,))
    with pytest.raises(ValueError, match=r"takes uint8 images, not torch.float32"):
        preprocessing.normalize(torch.zeros(1, 4, 4))
    with pytest.raises(ValueError, match="takes 1 channels, the images have 3"):
        preprocessing.normalize(torch.zeros(3, 4, 4, dtype=torch.uint8))
