from __future__ import annotations

import random

import nearkin.torchvision_import  # noqa: F401  (must come before torchvision)

# isort: split
import numpy as np
import pytest
import torch
from other_peoples_data import Pairs
from PIL import Image
from torchvision import transforms as tv

from nearkin import data
from nearkin.data import PerSample, SampleSet, Texts, loader
from nearkin.data.per_sample import as_transform

PIXELS = data.ImageArray(
    torch.randint(256, (6, 3, 40, 50), generator=torch.Generator().manual_seed(0)).byte()
)


def draws(_):
    return torch.rand(()).item(), float(np.random.rand()), random.random()  # noqa: NPY002


def test_random_transforms_depend_on_the_seed_only():
    texts = Texts(["a", "b", "c"])
    one = PerSample(draws)(texts, [0, 1, 2], [5, 6, 5])
    other = PerSample(draws)(texts, [2, 1], [5, 6])
    for generator in range(3):
        assert one[generator][0] == one[generator][2] == other[generator][0]
        assert one[generator][1] == other[generator][1] != one[generator][0]


def test_the_global_generators_are_left_as_they_were():
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
    PerSample(draws)(Texts(["a"]), [0], [3])

    def fails(_):
        draws(_)
        raise KeyError("a user's mistake")

    with pytest.raises(KeyError):
        PerSample(fails)(Texts(["a"]), [0], [3])
    assert torch.get_rng_state().equal(before[0])
    assert np.random.get_state()[1].tolist() == before[1]  # noqa: NPY002
    assert random.getstate() == before[2]


def test_torchvision_gives_the_same_with_workers():
    crop = tv.Compose([tv.RandomResizedCrop(16), tv.ColorJitter(0.4), tv.ToTensor()])
    images = SampleSet(PIXELS, list("aabbcc"))
    alone, helped = (
        list(loader(images, PerSample(crop, takes="pil"), batch_size=4, seed=1, workers=workers))
        for workers in (0, 2)
    )
    assert alone[0].inputs.shape == (4, 3, 16, 16)
    assert all(a.inputs.equal(b.inputs) for a, b in zip(alone, helped, strict=True))


def test_what_a_function_takes_of_an_image():
    kinds = []
    for samples in (PIXELS, data.DatasetSamples(Pairs([(Image.new("RGB", (4, 4)), 0)]))):
        for takes in ("pil", "tensor", None):
            PerSample(lambda one: kinds.append(type(one)) or 0, takes=takes)(samples, [0], [0])
    assert issubclass(kinds[0], Image.Image)
    assert issubclass(kinds[3], Image.Image)
    assert issubclass(kinds[5], Image.Image)
    assert kinds[1] == kinds[2] == kinds[4] == torch.Tensor
    with pytest.raises(
        TypeError, match="takes='pil' is for images, and sample 'a' is a str: leave takes out"
    ):
        PerSample(takes="pil")(Texts(["a"]), [0], [0])
    with pytest.raises(ValueError, match="takes='numpy' must be"):
        PerSample(takes="numpy")


def test_pixels_survive_the_way_through_pil():
    exact = PerSample(tv.PILToTensor(), takes="pil")(PIXELS, [0, 3], [0, 0])
    assert exact.equal(PIXELS.pixels[[0, 3]])
    grey = data.ImageArray(PIXELS.pixels[:, :1])
    assert PerSample(tv.PILToTensor(), takes="pil")(grey, [2], [0]).equal(grey.pixels[[2]])


def test_batches_keep_the_form_of_samples():
    items = Pairs([(("text", {"ids": torch.tensor([i, i]), "n": i}), 0) for i in range(3)])
    texts, rest = PerSample()(data.DatasetSamples(items), [2, 1], [0, 0])
    assert texts == ["text", "text"]
    assert rest["ids"].tolist() == [[2, 2], [1, 1]]
    assert rest["n"].tolist() == [2, 1]


def test_a_collate_function_of_ones_own():
    ragged = data.DatasetSamples(Pairs([(torch.ones(i + 1), 0) for i in range(3)]))
    padded = PerSample(collate=lambda rows: torch.nn.utils.rnn.pad_sequence(rows, batch_first=True))
    assert padded(ragged, [0, 2], [0, 0]).tolist() == [[1, 0, 0], [1, 1, 1]]
    with pytest.raises(
        ValueError, match=r"samples \(Tensor\) cannot be put into one batch: .*collate function"
    ):
        PerSample()(ragged, [0, 2], [0, 0])


def test_transforms_with_their_own_generator_are_seeded():
    class Own:
        def set_random_seed(self, seed):
            self.seed = seed

        def __call__(self, sample):
            return self.seed

    assert PerSample(Own())(Texts(["a", "b"]), [0, 1], [7, 2**33 + 1]).tolist() == [7, 1]


def test_a_dataset_that_transforms_by_itself_is_reproducible():
    class Random(Pairs):
        def __getitem__(self, index):
            return torch.rand(2), index

    samples = data.DatasetSamples(Random([0] * 4))
    first, again = (data.AsIs()(samples, [0, 1], [3, 4]) for _ in range(2))
    assert first.equal(again)
    assert not first[0].equal(first[1])


class FromAlbumentations:
    """What albumentations' transforms are like: a class of that package, called with ``image=`` only."""

    __module__ = "albumentations.core.composition"

    def __init__(self, result):
        self.result = result

    def __call__(self, *args, force_apply=False, **named):
        if args:
            raise KeyError("You have to pass data to augmentations as named arguments")
        assert isinstance(named["image"], np.ndarray)
        return {"image": self.result(named["image"])}


def only_image(*, image):
    return {"image": image[:, ::-1]}


def test_albumentations_take_and_give_arrays():
    flip = PerSample(FromAlbumentations(lambda image: image[:, ::-1]))
    assert flip(PIXELS, [0, 3], [0, 0]).equal(PIXELS.pixels[[0, 3]].flip(3))
    assert PerSample(only_image)(PIXELS, [1], [0]).equal(PIXELS.pixels[[1]].flip(3))
    grey = PerSample(FromAlbumentations(lambda image: image.mean(axis=2, dtype=np.float32)))
    assert grey(PIXELS, [2], [0]).shape == (1, 1, 40, 50)
    tensors = PerSample(FromAlbumentations(lambda image: torch.from_numpy(image).permute(2, 0, 1) / 255))
    torch.testing.assert_close(tensors(PIXELS, [4], [0]), PIXELS.pixels[[4]] / 255)
    pictures = data.DatasetSamples(Pairs([(Image.new("L", (6, 4)), 0)]))
    assert PerSample(only_image)(pictures, [0], [0]).shape == (1, 1, 4, 6)
    with pytest.raises(TypeError, match="only_image takes images, and this sample is a str"):
        PerSample(only_image)(Texts(["a"]), [0], [0])


def test_real_albumentations():
    pipelines = pytest.importorskip("albumentations", reason="needs albumentations")
    crop = PerSample(pipelines.Compose([pipelines.RandomCrop(8, 8), pipelines.Normalize()]))
    one, again, other = (crop(PIXELS, [0], [seed]) for seed in (1, 1, 2))
    assert (one.shape, one.dtype) == ((1, 3, 8, 8), torch.float32)
    assert one.equal(again)
    assert not one.equal(other)


def test_what_is_no_function_is_refused():
    with pytest.raises(TypeError, match="transform must be a function, not 3"):
        PerSample(3)
    with pytest.raises(TypeError, match="collate must be a function, not 'pad'"):
        PerSample(None, "pad")


def test_a_transform_of_batches_is_taken_as_it_is():
    whole = PerSample(str.upper, takes=None)
    assert as_transform(whole) is whole
    assert isinstance(as_transform(data.AsIs()), data.AsIs)
    with pytest.raises(ValueError, match="leave collate out"):
        as_transform(whole, list)


def test_a_function_of_pil_images_says_how_it_gets_them():
    def function(image):
        if not isinstance(image, Image.Image):
            raise TypeError(f"pic should be PIL Image. Got {type(image)}")
        return torch.zeros(1)

    with pytest.raises(TypeError, match=r'give nearkin.data.PerSample\(function, takes="pil"\)'):
        PerSample(function)(PIXELS, [0], [0])
    assert PerSample(function, takes="pil")(PIXELS, [0], [0]).shape == (1, 1)
