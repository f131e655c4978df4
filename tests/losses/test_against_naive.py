"""Value and gradient of every loss and variant against plain loops over samples."""

from __future__ import annotations

import naive
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin import losses

PAIR_CASES = [
    ("contrastive", {}, naive.contrastive),
    ("contrastive", {"margin": 0.1}, naive.contrastive),
    ("contrastive", {"margin": 1.9, "metric": "squared_euclidean"}, naive.contrastive),
    ("contrastive", {"margin": 1.1, "metric": "euclidean"}, naive.contrastive),
    ("triplet", {}, naive.triplet),
    ("triplet", {"mining": "all", "metric": "euclidean", "margin": 0.3}, naive.triplet),
    ("triplet", {"metric": "euclidean", "margin": 0.3}, naive.triplet),
    ("triplet", {"mining": "all"}, naive.triplet),
    ("triplet", {"mining": "hard", "margin": 0.3}, naive.triplet),
    ("triplet", {"mining": "all", "metric": "squared_euclidean", "margin": 0.3}, naive.triplet),
    ("lifted_structure", {}, naive.lifted_structure),
    (
        "lifted_structure",
        {"positive_scale": 1.0, "negative_scale": 1.0, "mining": "all"},
        naive.lifted_structure,
    ),
    ("npair", {}, naive.npair),
    ("npair", {"pairs": "one_per_class", "l2": 0.1}, naive.npair),
    ("multi_similarity", {}, naive.multi_similarity),
    (
        "multi_similarity",
        {"alpha": 18.0, "beta": 76.0, "margin": 0.8, "epsilon": 0.4},
        naive.multi_similarity,
    ),
    ("nca", {}, naive.nca),
    ("nca", {"temperature": 0.1}, naive.nca),
    ("direction_triplet", {}, naive.direction_triplet),
    ("direction_triplet", {"gamma": 0.5, "margin": 0.4}, naive.direction_triplet),
    ("direction_multi_similarity", {"gamma": 0.3}, naive.multi_similarity),
    ("direction_multi_similarity", {"gamma": 0.5, "epsilon": 0.6}, naive.multi_similarity),
]
METRICS = ["euclidean_raw", "hyperbolic", "signal_to_noise"]
MORE_PAIR_CASES = [
    *(("contrastive", {"margin": 1.1, "metric": metric}, naive.contrastive) for metric in METRICS),
    *(("triplet", {"margin": 0.3, "metric": metric, "mining": "all"}, naive.triplet) for metric in METRICS),
    ("triplet", {"metric": "hyperbolic", "mining": "hard"}, naive.triplet),
    ("triplet", {"mining": "all", "swap": True, "metric": "euclidean"}, naive.triplet),
    ("triplet", {"mining": "all", "smooth": True, "metric": "hyperbolic"}, naive.triplet),
    ("triplet", {"mining": "hard", "swap": True, "smooth": True}, naive.triplet),
    ("circle", {}, naive.circle),
    ("circle", {"margin": 0.25, "scale": 256.0}, naive.circle),
    ("supcon", {}, naive.supcon),
    ("supcon", {"temperature": 0.2, "metric": "hyperbolic"}, naive.supcon),
    ("info_nce", {}, naive.info_nce),
    ("info_nce", {"temperature": 0.2, "metric": "hyperbolic"}, naive.info_nce),
    ("ranked_list", {}, naive.ranked_list),
    ("ranked_list", {"margin": 0.2, "alpha": 1.0, "temperature": 3.0}, naive.ranked_list),
    ("tuplet_margin", {}, naive.tuplet_margin),
    ("tuplet_margin", {"margin_degrees": 20.0, "scale": 10.0}, naive.tuplet_margin),
    ("angular", {}, naive.angular),
    ("fast_ap", {}, naive.fast_ap),
    ("fast_ap", {"bins": 23}, naive.fast_ap),
    ("histogram", {"bins": 8}, naive.histogram),
]
RANKING_CASES = [
    ("smooth_ap", {}, naive.smooth_ap),
    ("smooth_ap", {"temperature": 0.1}, naive.smooth_ap),
    ("sup_ap", {}, naive.sup_ap),
    ("sup_ap", {"temperature": 0.1, "shift": 0.2, "slope": 10.0, "calibration": 0.5}, naive.sup_ap),
    ("recall_at_k", {}, naive.recall_at_k),
    ("recall_at_k", {"ks": (2, 3), "temperature": 0.1, "cut_temperature": 0.3}, naive.recall_at_k),
    *(("pnp", {"form": form, "alpha": 2.0}, naive.pnp) for form in ("O", "Ds", "Dq", "Iu")),
]
PROXY_CASES = [
    ("softmax", {}, naive.softmax),
    ("softmax", {"normalized": True}, naive.softmax),
    ("softmax", {"normalized": True, "scale": 30.0}, naive.softmax),
    ("proxy_nca", {}, naive.proxy_nca),
    ("proxy_nca", {"scale": 1.0}, naive.proxy_nca),
    ("proxy_nca_pp", {}, naive.proxy_nca_pp),
    ("arcface", {}, naive.arcface),
    ("arcface", {"margin_degrees": 80.0, "scale": 10.0}, naive.arcface),
    ("cosface", {}, naive.cosface),
    ("cosface", {"margin": 0.1, "scale": 10.0}, naive.cosface),
    ("sub_center_arcface", {}, naive.sub_center_arcface),
    (
        "sub_center_arcface",
        {"proxies_per_class": 2, "margin_degrees": 60.0, "scale": 8.0},
        naive.sub_center_arcface,
    ),
    ("curricularface", {}, naive.curricularface),
    ("curricularface", {"margin_degrees": 80.0, "scale": 10.0}, naive.curricularface),
    ("adaface", {}, naive.adaface),
    ("adaface", {"margin": 1.0, "scale": 10.0, "concentration": 5.0}, naive.adaface),
    ("soft_triple", {}, naive.soft_triple),
    ("soft_triple", {"proxies_per_class": 1}, naive.soft_triple),
    ("soft_triple", {"proxies_per_class": 3, "margin": 0.4, "gamma": 1 / 58, "tau": 0.4}, naive.soft_triple),
    ("proxy_anchor", {}, naive.proxy_anchor),
    ("proxy_gml", {"proxies_per_class": 3, "ratio": 0.25}, naive.proxy_gml),
    ("proxy_gml", {"proxies_per_class": 2, "ratio": 0.6, "regularization": 0.0}, naive.proxy_gml),
    ("proxy_repulsion", {}, naive.proxy_repulsion),
    ("proxy_repulsion", {"through_samples": False}, naive.proxy_repulsion),
    ("proxy_repulsion", {"relations": 0.6}, naive.proxy_repulsion),
    ("proxy_repulsion", {"relations": 1.0, "through_samples": False}, naive.proxy_repulsion),
    ("direction_proxy_nca", {"gamma": 0.3}, naive.proxy_nca),
    ("direction_proxy_nca", {"gamma": 0.5, "scale": 1.0}, naive.proxy_nca),
]
CASES = [*PAIR_CASES, *MORE_PAIR_CASES, *RANKING_CASES, *PROXY_CASES]
IDS = [f"{name}-{'-'.join(f'{k}={v}' for k, v in keywords.items())}" for name, keywords, _ in CASES]

CLASSES = 7
BATCHES = {
    "unequal": [0, 0, 0, 0, 1, 1, 2, 2, 2, 3],
    "singles": [0, 1, 2, 3, 3, 4],
    "shuffled": [4, 1, 4, 0, 1, 1, 6, 4, 0],
}


def clustered(labels: list[int], dim: int, seed: int, spread: float = 0.8) -> torch.Tensor:
    """Embeddings near their class's direction, as in training: some pairs violate, some do not."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, dim, dtype=torch.float64, generator=generator)
    noise = torch.randn(len(labels), dim, dtype=torch.float64, generator=generator)
    return (centres[labels] + spread * noise) * 1.7


def compare(case, x: torch.Tensor, labels: list[int], dtype: torch.dtype) -> None:
    name, keywords, oracle = case
    generator = torch.Generator().manual_seed(1)
    loss = losses.build(name, num_classes=CLASSES, embedding_dim=x.shape[1], generator=generator, **keywords)
    loss = loss.to(dtype)
    x = x.to(dtype).requires_grad_()
    value = loss(x, torch.tensor(labels))
    value.backward()

    exact_x = x.detach().double().requires_grad_()
    proxies = [p.detach().double().requires_grad_() for p in loss.parameters()]
    expected = oracle(exact_x, labels, *proxies, **keywords).sum()
    tolerance = 1e-10 if dtype == torch.float64 else 1e-6
    assert value.item() == pytest.approx(expected.item(), rel=tolerance, abs=tolerance)
    gradients = torch.autograd.grad(
        expected + 0 * exact_x.sum(), [exact_x, *proxies], allow_unused=True, materialize_grads=True
    )
    for actual, wanted in zip([x, *loss.parameters()], gradients, strict=True):
        scale = max(1.0, float(wanted.abs().max()))
        torch.testing.assert_close(actual.grad.double(), wanted, rtol=0, atol=5 * tolerance * scale)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_value_and_gradient(case, batch, dtype):
    compare(case, clustered(BATCHES[batch], 6, seed=3), BATCHES[batch], dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_repeated_images(case, dtype):
    labels = BATCHES["unequal"]
    x = clustered(labels, 6, seed=5)
    x[1] = x[0]
    x[6] = x[0]
    x[8] = x[4]
    compare(case, x, labels, dtype)


@pytest.mark.parametrize("case", CASES, ids=IDS)
@given(
    labels=st.lists(st.integers(0, CLASSES - 1), min_size=1, max_size=7),
    dim=st.integers(3, 9),
    seed=st.integers(0, 2**16),
    spread=st.sampled_from([0.1, 0.8, 5.0]),
)
@settings(max_examples=25)
def test_any_batch(case, labels, dim, seed, spread):
    compare(case, clustered(labels, dim, seed, spread), labels, torch.float64)


COUNTS = {"whole": [2, 1, 0, 3, 1, 2, 0, 1, 1, 4], "broken": [0.3, 1.7, 0, 2.5, 0.1, 1, 0.4, 0, 3.2, 0.9]}


@pytest.mark.parametrize(
    ("batch", "counts", "dtype"),
    [
        ("unequal", None, torch.float64),
        ("unequal", "broken", torch.float64),
        ("unequal", "whole", torch.float32),
        ("singles", "broken", torch.float64),
    ],
)
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_values_and_weights_of_samples(case, batch, counts, dtype):
    """One value per sample, whose mean is the loss; weights count anchors that often; gradients of each."""
    name, keywords, oracle = case
    labels = BATCHES[batch]
    y, x = torch.tensor(labels), clustered(labels, 6, seed=3).to(dtype).requires_grad_()
    weights = None if counts is None else COUNTS[counts][: len(labels)]
    sizes = {"num_classes": CLASSES, "embedding_dim": 6, "generator": torch.Generator().manual_seed(1)}
    loss = losses.build(name, **sizes, **keywords).to(dtype).eval()  # no running means
    given_weights = None if weights is None else torch.tensor(weights, dtype=dtype)
    values = loss(x, y, weights=given_weights, reduction="none")
    mean = loss(x, y, weights=given_weights)
    assert values.shape == (len(labels),)
    proxies = [p.detach().double().requires_grad_() for p in loss.parameters()]
    exact = x.detach().double().requires_grad_()
    expected = oracle(exact, labels, *proxies, **keywords, counts=weights) * len(labels)
    tolerance = 1e-9 if dtype == torch.float64 else 2e-5
    scale = max(1.0, float(expected.detach().abs().max()))
    torch.testing.assert_close(values.double(), expected, rtol=0, atol=tolerance * scale)
    torch.testing.assert_close(mean.double(), expected.mean(), rtol=0, atol=tolerance * scale)
    upstream = torch.arange(1, len(labels) + 1, dtype=torch.float64)
    for actual, wanted in ((values @ upstream.to(dtype), expected @ upstream), (mean, expected.mean())):
        inputs = [x, *loss.parameters()]
        found = torch.autograd.grad(actual, inputs, retain_graph=True, materialize_grads=True)
        right = torch.autograd.grad(
            wanted + 0 * exact.sum(), [exact, *proxies], retain_graph=True, materialize_grads=True
        )
        for ours, theirs in zip(found, right, strict=True):
            scale = max(1.0, float(theirs.abs().max()))
            torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=20 * tolerance * scale)
