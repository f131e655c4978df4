from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
import torch

from nearkin import networks
from nearkin.data import ImageArray, SampleSet, evaluation_transform, loader, transforms
from nearkin.data.loading import sample_seed
from nearkin.networks import Embedder
from nearkin.networks import activations as module
from nearkin.networks.activations import ActivationTransform


@pytest.fixture
def digits():
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (150, 1, 32, 32), dtype=torch.uint8, generator=generator)
    return SampleSet(ImageArray(pixels, [f"digit {i}" for i in range(150)]), [i % 5 for i in range(150)])


@pytest.fixture
def network():
    return networks.build("convnet", embedding_dim=6)


def cached(network, digits, folder, stage="1", **keywords):
    """The cached set, the rest, and how many images had to be computed."""
    calls = [0]
    split = network.split

    def counting(stage):
        trunk, rest = split(stage)
        trunk.register_forward_hook(lambda _m, inputs, _o: calls.__setitem__(0, calls[0] + len(inputs[0])))
        return trunk, rest

    network.split = counting
    try:
        activations, rest = networks.cache_activations(network, stage, digits, folder, **keywords)
    finally:
        del network.split
    return activations, rest, (calls[0] - 1) // 2  # one pass finds the shape, and each image has two views


@pytest.mark.parametrize("stage", ["0", "2", "pooling"])
def test_cached_embeddings_are_the_uncached_ones(network, digits, tmp_path, stage):
    activations, rest, _ = cached(network, digits, tmp_path, stage)
    rest.eval()
    batches = loader(activations, ActivationTransform(), batch_size=40)
    with torch.no_grad():
        result = torch.cat([rest(batch.inputs) for batch in batches])
    assert (result - networks.embed(network, digits)).abs().max() < 1e-3
    assert activations.labels.equal(digits.labels)
    assert activations.class_names == digits.class_names


def test_flips_are_the_activations_of_mirror_images(network, digits, tmp_path):
    activations, _, _ = cached(network, digits, tmp_path)
    trunk, _ = network.split("1")
    transform = evaluation_transform(network.preprocessing, "none")
    mirrored = trunk(transform(digits.samples, [3, 77], [0, 0]).flip(-1))
    torch.testing.assert_close(
        activations.samples.batch([3, 77], [True, True]).float(), mirrored, rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize(("flip", "crops", "views"), [(0.0, 0, 1), (0.0, 2, 3), (0.3, 0, 2), (0.5, 2, 4)])
def test_a_transform_that_does_not_mirror_is_obeyed_behind_a_trunk(
    network, digits, tmp_path, flip, crops, views
):
    training = transforms.build("resized_crop", network.preprocessing, train=True, flip=flip)
    plain = transforms.build("resized_crop", network.preprocessing, train=False)
    embedder = Embedder(network, training, plain, trunk="1", trunk_cache=tmp_path, trunk_crops=crops)
    prepared = embedder.prepared(digits, flips=True)
    assert prepared.samples.views == views
    assert f"flip={flip}" in embedder.training_view()
    (batch,) = embedder.training_loader(prepared, [range(150)], seed=0)
    as_in_evaluation = prepared.samples.batch(range(150), [0] * 150).float()
    share = float((batch.inputs != as_in_evaluation).flatten(1).any(dim=1).double().mean())
    assert share == pytest.approx((views - 1) / views if crops else flip, abs=0.1)


def test_training_draws_flips_by_seed_epoch_and_image(network, digits, tmp_path):
    activations, _, _ = cached(network, digits, tmp_path)
    batches = loader(activations, ActivationTransform(flip=0.5), batch_size=150, seed=4)
    batches.set_epoch(2)
    (batch,) = batches
    flipped = [sample_seed(4, 2, index) < 2**62 for index in range(150)]
    assert 50 < sum(flipped) < 100
    assert batch.inputs.equal(activations.samples.batch(range(150), flipped).float())
    assert batch.inputs.dtype == torch.float32


def test_a_cache_is_found_again_and_only_for_the_same_things(network, digits, tmp_path):
    assert cached(network, digits, tmp_path)[2] == 150
    assert cached(network, digits, tmp_path)[2] == 0
    with torch.no_grad():
        network.backbone[3][0].weight.mul_(2)  # after the stage: not the cache's business
    assert cached(network, digits, tmp_path)[2] == 0
    assert cached(network, digits.select(range(100)), tmp_path)[2] == 100
    assert cached(network, digits, tmp_path, "2")[2] == 150
    with torch.no_grad():
        network.backbone[0][0].weight[0].mul_(1.001)
    assert cached(network, digits, tmp_path)[2] == 150


def test_an_interrupted_cache_goes_on_where_it_stopped(network, digits, tmp_path):
    def stop(done, total):
        if done >= 64:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        networks.cache_activations(network, "1", digits, tmp_path, progress=stop)
    seen = []
    activations, _, computed = cached(network, digits, tmp_path, progress=lambda *counts: seen.append(counts))
    assert computed == 150 - 64
    assert seen == [(128, 150), (150, 150)]
    whole, _, _ = cached(network, digits, tmp_path / "other")
    assert activations.samples.batch(range(150)).equal(whole.samples.batch(range(150)))


def test_damage_is_found_and_mended(network, digits, tmp_path):
    activations, _, _ = cached(network, digits, tmp_path)
    expected = activations.samples.batch(range(150))
    folder = activations.samples.folder
    data = bytearray((folder / "activations.npy").read_bytes())
    data[-100] ^= 1
    (folder / "activations.npy").write_bytes(data)
    again, _, computed = cached(network, digits, tmp_path)
    assert computed == 150 - 128  # the last chunk
    assert again.samples.batch(range(150)).equal(expected)
    for damage in (b"", bytes(data[:5000])):
        (folder / "activations.npy").write_bytes(damage)
        again, _, computed = cached(network, digits, tmp_path)
        assert computed == 150
        assert again.samples.batch(range(150)).equal(expected)
    (folder / "chunks.json").write_text("{")
    assert cached(network, digits, tmp_path)[2] == 150


def test_nothing_is_listed_before_it_is_written(network, digits, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(module, "write_json", fail)
    with pytest.raises(OSError, match="disk full"):
        cached(network, digits, tmp_path)
    assert not list(tmp_path.glob("*/chunks.json"))


def test_selections_and_pickles_keep_their_rows(network, digits, tmp_path):
    activations, _, _ = cached(network, digits, tmp_path)
    chosen = activations.select([140, 3, 8])
    assert chosen.samples[0].equal(activations.samples[140])
    assert chosen.samples.name(0) == digits.samples.name(140)
    again = pickle.dumps(chosen.samples)
    assert len(again) < 200_000
    assert pickle.loads(again).batch([0, 2]).equal(activations.samples.batch([140, 8]))
    held = activations.of_classes([2])
    assert held.samples.batch(range(30)).equal(activations.samples.batch(range(2, 150, 5)))


def test_files_are_float16_and_the_table_is_json(network, digits, tmp_path):
    activations, _, _ = cached(network, digits, tmp_path, flips=False)
    folder = activations.samples.folder
    assert np.load(folder / "activations.npy", mmap_mode="r").dtype == np.float16
    assert set(json.loads((folder / "chunks.json").read_text())) == {"0", "64", "128"}
    assert not activations.samples.has_flips
    with pytest.raises(ValueError, match="flip=0.5 but the cache has no mirrored images"):
        next(iter(loader(activations, ActivationTransform(flip=0.5))))
    with pytest.raises(TypeError, match="takes cached activations, not ImageArray"):
        next(iter(loader(digits, ActivationTransform())))


def test_activations_too_large_for_float16_are_refused(network, digits, tmp_path):
    with torch.no_grad():
        network.backbone[0][1].weight.mul_(1e6)
    with pytest.raises(ValueError, match=r"activations of samples 0 to 63 do not fit into float16 \(largest"):
        cached(network, digits, tmp_path)
