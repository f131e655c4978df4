from __future__ import annotations

import resource
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nearkin.data import (
    AsIs,
    BrokenImageError,
    ImageArray,
    ImageFiles,
    Preprocessing,
    SampleSet,
    Texts,
    Vectors,
    evaluation_transform,
    loader,
    training_transform,
)
from nearkin.data.loading import _TransformedSamples, sample_seed

PREPROCESSING = Preprocessing(32, (0.5,) * 3, (0.5,) * 3)


class TwoEpochs:
    """A batch sampler whose batches depend on the epoch."""

    def __init__(self):
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 3

    def __iter__(self):
        order = [(i * 5 + self.epoch) % 6 for i in range(6)]
        return iter([order[:2], order[2:4], order[4:]])


@pytest.fixture
def photos(save_image):
    paths = [save_image(f"{i}.jpg", 50 + i, 60, seed=i) for i in range(6)]
    return SampleSet(ImageFiles(paths), list("aabbcc"))


def all_batches(image_set, workers, epochs=(0, 1), seed=3):
    batches = loader(
        image_set, training_transform(PREPROCESSING), batch_sampler=TwoEpochs(), seed=seed, workers=workers
    )
    result = []
    for epoch in epochs:
        batches.set_epoch(epoch)
        assert len(batches) == 3
        result.append(list(batches))
    return result


def test_batches_are_the_same_with_any_number_of_workers(photos):
    alone, helped = all_batches(photos, 0), all_batches(photos, 2)
    for epoch, (expected, given_) in enumerate(zip(alone, helped, strict=True)):
        for one, other in zip(expected, given_, strict=True):
            assert all(a.equal(b) for a, b in zip(one, other, strict=True)), epoch


def test_an_epoch_can_be_entered_in_the_middle_of_a_run(photos):
    first = all_batches(photos, 0, epochs=(0, 1))[1]
    again = all_batches(photos, 0, epochs=(1,))[0]
    assert all(a.inputs.equal(b.inputs) for a, b in zip(first, again, strict=True))


def test_epochs_seeds_and_images_draw_independently(photos):
    images = _TransformedSamples(photos, training_transform(PREPROCESSING), seed=1)
    first = images.batch([0, 0], epoch=0)
    assert first.inputs[0].equal(first.inputs[1])
    assert not images.batch([0], epoch=1).inputs[0].equal(first.inputs[0])
    other = _TransformedSamples(photos, training_transform(PREPROCESSING), seed=2)
    assert not other.batch([0], epoch=0).inputs[0].equal(first.inputs[0])


def test_by_default_all_images_in_order(photos):
    batches = list(loader(photos, evaluation_transform(PREPROCESSING), batch_size=4))
    assert torch.cat([batch.indices for batch in batches]).tolist() == [0, 1, 2, 3, 4, 5]
    assert torch.cat([batch.labels for batch in batches]).equal(photos.labels)
    with pytest.raises(ValueError, match="batch_size=0 must be at least 1"):
        loader(photos, evaluation_transform(PREPROCESSING), batch_size=0)


def test_in_memory_images_are_fetched_as_one_tensor(monkeypatch):
    array = ImageArray(torch.zeros(100, 1, 8, 8, dtype=torch.uint8))
    monkeypatch.setattr(ImageArray, "__getitem__", lambda *_: pytest.fail("fetched one by one"))
    glyphs = SampleSet(array, [i % 10 for i in range(100)])
    batch = next(
        iter(loader(glyphs, training_transform(Preprocessing(8, (0.5,), (0.5,)), "none"), batch_size=64))
    )
    assert batch.inputs.shape == (64, 1, 8, 8)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_image_stops_the_pass_and_is_named(tmp_path, photos, workers):
    (tmp_path / "4.jpg").write_text("nothing")
    with pytest.raises(BrokenImageError, match=r"4\.jpg: not an image"):
        list(loader(photos, evaluation_transform(PREPROCESSING), workers=workers))


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50)), unique=True))
def test_sample_seeds_are_valid_and_distinct(keys):
    seeds = [sample_seed(*key) for key in keys]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_views_are_rows_one_after_the_other(photos):
    transform = training_transform(PREPROCESSING)
    one, three = (
        list(loader(photos, transform, batch_sampler=[[4, 0], [3]], seed=2, views=views)) for views in (1, 3)
    )
    assert [batch.indices.tolist() for batch in three] == [[4, 4, 4, 0, 0, 0], [3, 3, 3]]
    for alone, together in zip(one, three, strict=True):
        assert together.labels.equal(alone.labels.repeat_interleave(3))
        assert together.inputs[::3].equal(alone.inputs)  # the first view is the only one's
        assert not together.inputs[1::3].equal(alone.inputs)
        assert not together.inputs[1::3].equal(together.inputs[2::3])


def test_seeds_of_views_are_distinct(photos):
    samples = _TransformedSamples(photos, training_transform(PREPROCESSING), seed=1, views=50)
    seeds = [seed for epoch in range(20) for index in range(6) for seed in samples._seeds(epoch, index)]
    assert len(set(seeds)) == len(seeds) == 20 * 6 * 50
    assert seeds[0] == sample_seed(1, 0, 0)


def test_texts_and_vectors_come_in_batches():
    texts = SampleSet(Texts(list("abcd")), [0, 0, 1, 1])
    for workers in (0, 1):
        batches = list(loader(texts, AsIs(), batch_size=3, workers=workers))
        assert [batch.inputs for batch in batches] == [["a", "b", "c"], ["d"]]
        assert batches[0].labels.tolist() == [0, 0, 1]
    vectors = SampleSet(Vectors(torch.eye(4)), [0, 0, 1, 1])
    assert next(iter(loader(vectors, AsIs(), views=2, batch_size=1))).inputs.tolist() == [[1, 0, 0, 0]] * 2


@pytest.mark.parametrize(
    ("keywords", "complaint"),
    [
        ({"workers": 10**6}, "workers=1000000 must lie between 0 and 512"),
        ({"workers": -1}, "workers=-1 must lie between 0 and 512"),
        ({"views": 0}, "views=0 must be at least 1"),
        ({"seed": -1}, "seed=-1 must be at least 0"),
    ],
)
def test_wrong_keywords_are_named(photos, keywords, complaint):
    with pytest.raises(ValueError, match=complaint):
        loader(photos, evaluation_transform(PREPROCESSING), **keywords)


def test_too_few_open_files_for_the_workers_is_said(photos, monkeypatch):
    batches = loader(photos, evaluation_transform(PREPROCESSING), batch_size=2, workers=1)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (20, 20))
    with pytest.raises(
        OSError, match=r"workers=1 need about 42 open files and this process may have 20: choose"
    ):
        iter(batches)
    monkeypatch.undo()
    assert len(list(batches)) == 3


def test_as_many_open_files_as_are_asked_for_are_enough():
    program = """
import resource, torch
from nearkin.data import AsIs, SampleSet, Vectors, loader
batches = loader(SampleSet(Vectors(torch.eye(64)), range(64)), AsIs(), batch_size=2, workers=2)
resource.setrlimit(resource.RLIMIT_NOFILE, (52, 52))
print(sum(len(batch.inputs) for batch in batches))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "64\n", done.stderr
