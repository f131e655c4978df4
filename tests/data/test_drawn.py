"""Data sets that are computed as pictures: shapes and textures."""

from __future__ import annotations

import pytest
import torch

from nearkin import data
from nearkin.evaluation import retrieval_scores

SMALL = {"num_classes": 40, "images_per_class": 6, "size": 16}


@pytest.fixture(params=["shapes", "textures"])
def name(request) -> str:
    return request.param


def pixels(samples: data.SampleSet) -> torch.Tensor:
    rows = torch.stack([torch.as_tensor(samples.samples[i]) for i in range(len(samples))]).float().flatten(1)
    return rows - rows.mean(dim=1, keepdim=True)


def test_the_same_seed_gives_the_same_pictures(name):
    one, again, other = (data.build(name, seed=seed, **SMALL) for seed in (1, 1, 2))
    assert one.train.fingerprint() == again.train.fingerprint() != other.train.fingerprint()
    assert one.name == name


def test_splits_share_no_class_and_have_pictures_of_all(name):
    made = data.build(name, **SMALL)
    names = [set(split.class_names) for split in (made.train, made.validation, made.test)]
    assert [len(one) for one in names] == [18, 2, 20]
    assert len(set.union(*names)) == 40
    assert (len(made.test), made.test.labels.bincount().tolist()) == (120, [6] * 20)
    picture = made.test.samples[0]
    assert (picture.shape, picture.dtype) == (torch.Size([1, 16, 16]), torch.uint8)
    assert made.test.samples.name(7).startswith(tuple(made.test.class_names))


def test_pixels_do_not_tell_the_classes_and_what_defines_them_does():
    """Of textures the spectrum, of shapes what turning does not change."""
    made = data.build("textures", difficulty=0.3, num_classes=60, images_per_class=8)
    rows = pixels(made.test).view(-1, 32, 32)
    by_pixels = retrieval_scores(rows.flatten(1), made.test.labels).recall_at[1]
    spectra = torch.fft.fft2(rows).abs().log1p()
    by_spectrum = retrieval_scores(
        torch.nn.functional.avg_pool2d(torch.fft.fftshift(spectra, dim=(1, 2)).unsqueeze(1), 2).flatten(1),
        made.test.labels,
    ).recall_at[1]
    assert by_spectrum > by_pixels + 0.2

    made = data.build("shapes", difficulty=0.0, num_classes=60, images_per_class=8)
    rows = pixels(made.test).view(-1, 32, 32)
    by_pixels = retrieval_scores(rows.flatten(1), made.test.labels).recall_at[1]
    turns = torch.linspace(0, 2 * torch.pi, 65)[:-1]
    radii = torch.linspace(0.1, 0.95, 12)
    grid = torch.stack([radii[:, None] * turns.cos(), radii[:, None] * turns.sin()], dim=-1)
    rings = torch.nn.functional.grid_sample(
        rows.unsqueeze(1), grid.expand(len(rows), -1, -1, -1), align_corners=False
    ).squeeze(1)
    unturned = torch.fft.rfft(rings, dim=2).abs()[:, :, :12].flatten(1)
    assert retrieval_scores(unturned, made.test.labels).recall_at[1] > max(0.9, by_pixels)


def test_harder_pictures_of_a_class_differ_more(name):
    alike = []
    for difficulty in (0.0, 1.0, 3.0):
        made = data.build(name, difficulty=difficulty, **SMALL)
        rows = torch.nn.functional.normalize(
            torch.fft.fft2(pixels(made.test).view(-1, 16, 16)).abs().flatten(1)
        )
        same = made.test.labels[:, None] == made.test.labels
        alike.append((rows @ rows.T)[same].mean())
    assert alike[0] > alike[1] > alike[2]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"difficulty": -1.0}, "difficulty=-1.0 must lie between 0 and 100"),
        ({"difficulty": float("nan")}, "difficulty=nan"),
        ({"num_classes": 3}, "num_classes=3 must be at least 4"),
        ({"images_per_class": 1}, "images_per_class=1: a query needs another picture"),
        ({"size": 4}, "size=4 must be at least 8"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_what_cannot_be_drawn(name, wrong, message):
    with pytest.raises(ValueError, match=message):
        data.build(name, **wrong)
