from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from nearkin import networks
from nearkin.data import ImageArray, SampleSet


@pytest.fixture
def digits():
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (50, 1, 32, 32), dtype=torch.uint8, generator=generator)
    return SampleSet(ImageArray(pixels), [i % 5 for i in range(50)])


def test_embed_is_the_network_in_evaluation_mode_over_all_images(digits):
    network = networks.build("convnet", embedding_dim=6).train()
    seen = []
    result = networks.embed(
        network, digits, batch_size=16, progress=lambda done, total: seen.append((done, total))
    )
    assert seen == [(16, 50), (32, 50), (48, 50), (50, 50)]
    assert network.training
    network.eval()
    images = network.preprocessing.normalize(digits.samples.pixels)
    with torch.no_grad():
        torch.testing.assert_close(result, network(images))
        torch.testing.assert_close(networks.embed(network, digits, what="features"), network.features(images))


@pytest.mark.parametrize("layer_norm", [False, True])
def test_pca_head_projects_onto_the_principal_components(digits, layer_norm):
    network = networks.build("convnet", embedding_dim=6, layer_norm=layer_norm)
    features = networks.embed(network, digits, what="features")
    kept = networks.initialise_head_with_pca(network, features)
    normed = torch.nn.functional.layer_norm(features, (128,)) if layer_norm else features
    oracle = PCA(6, svd_solver="full").fit(normed.double().numpy())
    projected = networks.embed(network, digits).double().numpy()
    expected = oracle.transform(normed.double().numpy())
    signs = np.sign((projected * expected).sum(0))
    np.testing.assert_allclose(projected, expected * signs, atol=1e-4 * np.abs(expected).max())
    assert kept == pytest.approx(oracle.explained_variance_ratio_.sum(), rel=1e-4)
    largest = network.head.weight.gather(1, network.head.weight.abs().argmax(1, keepdim=True))
    assert (largest > 0).all()


def test_pca_head_refuses_what_has_too_few_components():
    network = networks.build("convnet", embedding_dim=130)
    with pytest.raises(ValueError, match="embedding_dim=130: 128 features have no more than 128"):
        networks.initialise_head_with_pca(network, torch.rand(200, 128))
    with pytest.raises(ValueError, match=r"shape \(30, 64\) and the head takes \(N, 128\)"):
        networks.initialise_head_with_pca(network, torch.rand(30, 64))


def test_pca_head_of_few_samples_keeps_all_their_distances():
    network = networks.build("convnet", embedding_dim=20)
    features = torch.rand(12, 128)
    kept = networks.initialise_head_with_pca(network, features)
    assert kept == pytest.approx(1.0)
    weight = network.head.weight.detach()
    torch.testing.assert_close(weight @ weight.T, torch.eye(20), atol=1e-5, rtol=0)
    embedded = network.head(features).detach()
    torch.testing.assert_close(
        torch.cdist(embedded, embedded), torch.cdist(features, features), atol=1e-4, rtol=0
    )


def test_layer_norm_normalises_features_before_the_head(digits):
    network = networks.build("convnet", embedding_dim=6, layer_norm=True).eval()
    features = networks.embed(network, digits, what="features")
    normed = (features - features.mean(1, keepdim=True)) / (
        features.var(1, unbiased=False, keepdim=True) + 1e-5
    ).sqrt()
    with torch.no_grad():
        torch.testing.assert_close(networks.embed(network, digits), network.head(normed))
    assert len(network.param_groups(1.0)[1]["params"]) == 2


def test_wrong_values_are_named():
    with pytest.raises(ValueError, match="embedding_dim=0 must be at least 1"):
        networks.build("convnet", embedding_dim=0)
    with pytest.raises(ValueError, match="unknown pooling 'agv': did you mean avg"):
        networks.build("convnet", embedding_dim=2, pooling="agv")
    with pytest.raises(ValueError, match="unknown network 'resnet5'"):
        networks.build("resnet5", embedding_dim=2)


def test_large_images_go_through_a_processor_a_few_at_a_time(monkeypatch):
    seen = []
    network = networks.build("lenet", embedding_dim=4, size=28)
    network.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    pixels = torch.randint(0, 255, (50, 1, 28, 28), dtype=torch.uint8)
    samples = SampleSet(ImageArray(pixels), [0] * 50)
    kept = []
    monkeypatch.setattr("nearkin.networks.embedding.keep_freed_memory", lambda: kept.append(True))
    whole = networks.embed(network, samples, batch_size=40)
    assert seen == [40, 10]
    assert kept, "each batch finds its memory warm"
    seen.clear()
    monkeypatch.setattr("nearkin.networks.embedding._NUMBERS_AT_A_TIME", 15 * 28 * 28 + 100)
    told = []
    parts = networks.embed(network, samples, batch_size=40, progress=lambda *done: told.append(done))
    assert seen == [15, 15, 10, 10]
    assert told == [(40, 50), (50, 50)]
    torch.testing.assert_close(parts, whole, atol=1e-6, rtol=0)
    seen.clear()
    monkeypatch.setattr("nearkin.networks.embedding._NUMBERS_AT_A_TIME", 1)
    networks.embed(network, samples, batch_size=20)
    assert seen == [8, 8, 4, 8, 8, 4, 8, 2], "never one by one"
