"""Agreement with pytorch-metric-learning where it defines the same thing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pytorch_metric_learning import distances, miners, reducers, regularizers, samplers
from pytorch_metric_learning import losses as pml

from nearkin import losses

CLASSES, DIM = 9, 16
LABELS = torch.arange(8).repeat_interleave(4)
COSINE = distances.CosineSimilarity()


def embeddings(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, DIM, dtype=torch.float64, generator=generator)
    return centres[LABELS] + torch.randn(len(LABELS), DIM, dtype=torch.float64, generator=generator)


def assert_agree(ours, theirs, seed: int) -> None:
    x = embeddings(seed).requires_grad_()
    y = embeddings(seed).requires_grad_()
    value, expected = ours(x), theirs(y)
    value.backward()
    expected.backward()
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-7, atol=1e-9)


PAIRS = {
    "contrastive": (
        losses.Contrastive(margin=0.5),
        pml.ContrastiveLoss(pos_margin=1, neg_margin=0.5, distance=COSINE),
        None,
    ),
    "contrastive squared": (
        losses.Contrastive(margin=1.0, metric="squared_euclidean"),
        pml.ContrastiveLoss(pos_margin=0, neg_margin=1, distance=distances.LpDistance(power=2)),
        None,
    ),
    "contrastive euclidean": (
        losses.Contrastive(margin=1.0, metric="euclidean"),
        pml.ContrastiveLoss(),
        None,
    ),
    "triplet all euclidean": (
        losses.Triplet(margin=0.05, metric="euclidean", mining="all"),
        pml.TripletMarginLoss(),
        None,
    ),
    "triplet hard euclidean": (
        losses.Triplet(margin=0.05, metric="euclidean", mining="hard"),
        pml.TripletMarginLoss(),
        miners.BatchHardMiner(),
    ),
    "triplet all": (
        losses.Triplet(margin=0.1, mining="all"),
        pml.TripletMarginLoss(margin=0.1, distance=COSINE),
        None,
    ),
    "triplet hard": (
        losses.Triplet(margin=0.3, mining="hard"),
        pml.TripletMarginLoss(margin=0.3, distance=COSINE),
        miners.BatchHardMiner(distance=COSINE),
    ),
    "triplet all squared": (
        losses.Triplet(margin=0.3, mining="all", metric="squared_euclidean"),
        pml.TripletMarginLoss(margin=0.3, distance=distances.LpDistance(power=2)),
        None,
    ),
    "multi_similarity": (
        losses.MultiSimilarity(),
        pml.MultiSimilarityLoss(alpha=2, beta=50, base=0.5),
        miners.MultiSimilarityMiner(epsilon=0.1),
    ),
    "npair": (
        losses.NPair(l2=0.0, pairs="one_per_class"),
        pml.NPairsLoss(distance=distances.DotProductSimilarity(normalize_embeddings=False)),
        None,
    ),
    "nca": (losses.NCA(temperature=0.5), pml.NCALoss(softmax_scale=2), None),
    "triplet swap": (
        losses.Triplet(margin=0.05, metric="euclidean", mining="all", swap=True),
        pml.TripletMarginLoss(swap=True),
        None,
    ),
    "triplet smooth": (
        losses.Triplet(margin=0.05, metric="euclidean", mining="all", smooth=True),
        pml.TripletMarginLoss(smooth_loss=True),
        None,
    ),
    "contrastive raw": (
        losses.Contrastive(margin=9.0, metric="euclidean_raw"),
        pml.ContrastiveLoss(0, 9, distance=distances.LpDistance(power=2, normalize_embeddings=False)),
        None,
    ),
    "signal to noise": (
        losses.Contrastive(margin=1.0, metric="signal_to_noise"),
        pml.SignalToNoiseRatioContrastiveLoss(pos_margin=0, neg_margin=1),
        None,
    ),
    "circle": (losses.Circle(), pml.CircleLoss(), None),
    "circle of faces": (losses.Circle(margin=0.25, scale=256.0), pml.CircleLoss(m=0.25, gamma=256), None),
    "supcon": (losses.SupCon(), pml.SupConLoss(), None),
    "nt-xent": (losses.InfoNCE(temperature=0.07), pml.NTXentLoss(), None),
    "tuplet_margin": (losses.TupletMargin(), pml.TupletMarginLoss(), None),
    "fast_ap": (losses.FastAP(), pml.FastAPLoss(), None),
}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("case", PAIRS)
def test_pairs(case, seed):
    ours, theirs, miner = PAIRS[case]
    assert_agree(
        lambda x: ours(x, LABELS),
        lambda x: theirs(x, LABELS, miner(x, LABELS)) if miner else theirs(x, LABELS),
        seed,
    )


def proxy_cases():
    sizes = {"num_classes": CLASSES, "embedding_size": DIM}
    return {
        "proxy_anchor": ({}, pml.ProxyAnchorLoss(**sizes), "proxies"),
        "arcface": ({}, pml.ArcFaceLoss(**sizes), "W"),
        "cosface": ({}, pml.CosFaceLoss(**sizes), "W"),
        "sub_center_arcface": ({}, pml.SubCenterArcFaceLoss(**sizes, sub_centers=3), "W"),
        "proxy_nca_pp": ({}, pml.ProxyNCALoss(**sizes, softmax_scale=9), "proxies"),
        "softmax": ({"normalized": True}, pml.NormalizedSoftmaxLoss(**sizes, temperature=1 / 16), "W"),
        # Its term for the spread of centres has another small constant under the root: left out here.
        "soft_triple": (
            {"proxies_per_class": 3, "tau": 0.0},
            pml.SoftTripleLoss(**sizes, centers_per_class=3),
            "fc",
        ),
    }


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", sorted(proxy_cases()))
def test_proxies(name, seed):
    keywords, theirs, parameter = proxy_cases()[name]
    ours = losses.build(name, num_classes=CLASSES, embedding_dim=DIM, **keywords).double()
    weights = getattr(theirs.double(), parameter)
    rows = ours.proxies.detach().flatten(0, -2)
    weights.data = (rows if parameter == "proxies" else rows.T).clone()
    assert_agree(lambda x: ours(x, LABELS), lambda x: theirs(x, LABELS), seed)
    their_gradient = weights.grad if parameter == "proxies" else weights.grad.T
    torch.testing.assert_close(ours.proxies.grad.flatten(0, -2), their_gradient, rtol=1e-6, atol=1e-8)


def test_smooth_ap_with_the_query_as_its_own_positive():
    """Theirs is first among its own positives; against a gallery that holds the query, ours is theirs.

    Their values are float32, and right only where there are as many classes as samples of each.
    """
    x, y = (embeddings(0)[:16].requires_grad_() for _ in range(2))
    theirs = pml.SmoothAPLoss()(y, LABELS[:16])
    ours = losses.SmoothAP()(x, LABELS[:16], references=x, reference_labels=LABELS[:16])
    torch.testing.assert_close(ours, theirs.double(), rtol=1e-6, atol=1e-6)
    ours.backward()
    theirs.backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("form", ["O", "Ds", "Dq", "Iu"])
def test_pnp_with_the_query_as_its_own_positive(form):
    """The same: against a gallery that holds the query, ours is theirs."""
    x = embeddings(0)
    theirs = pml.PNPLoss(variant=form, alpha=2)(x, LABELS)
    ours = losses.PNP(form=form, alpha=2.0)(x, LABELS, references=x, reference_labels=LABELS)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_angular_on_unit_vectors():
    """Theirs normalises anchors and positives, but not negatives."""
    x = torch.nn.functional.normalize(embeddings(0))
    theirs = pml.AngularLoss(alpha=45)(x, LABELS)
    torch.testing.assert_close(losses.Angular()(x, LABELS), theirs, rtol=1e-9, atol=1e-9)


def test_ranked_list_up_to_their_small_constant():
    x = embeddings(0)
    theirs = pml.RankedListLoss(margin=0.4, Tn=3, alpha=1.2)(x, LABELS)
    ours = losses.RankedList(temperature=3.0)(x, LABELS)
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")
def test_histogram_as_far_as_theirs_is_float32():
    theirs = pml.HistogramLoss(n_bins=100)(embeddings(0), LABELS)
    torch.testing.assert_close(losses.Histogram(bins=100)(embeddings(0), LABELS), theirs, rtol=1e-6, atol=0)


def test_everything_of_theirs_has_a_row_on_the_page():
    page = Path(__file__).parents[2] / "docs" / "from_pytorch_metric_learning.md"
    text = page.read_text(encoding="utf-8")
    rooms = (pml, miners, samplers, distances, reducers, regularizers)
    names = {name for room in rooms for name in vars(room) if name[0].isupper()}
    missing = {name for name in names if f"`{name}" not in text}
    assert {name for name in missing if not name.startswith("Base") and not name.endswith("Mixin")} == set()
