from __future__ import annotations

import pytest
import torch
from torch.nn.functional import normalize

from nearkin import losses
from nearkin.explain import FIGURES, LossChoice, draw_edges, figure_batch, measure_edges, structured_batch
from nearkin.explain.edges import places_of
from nearkin.explain.pair_weighting import similarity_weights
from nearkin.explain.weights import Batch

BATCH = structured_batch(3, 3, embedding_dim=32, seed=2)
PAIRWISE = ["contrastive", "triplet", "multi_similarity", "lifted_structure", "nca", "circle", "supcon"]
PROXIES = ["proxy_nca", "proxy_anchor", "arcface", "soft_triple", "proxy_nca_pp"]


def build(text, batch=BATCH):
    return LossChoice.parse(text).build(batch.num_classes, batch.embeddings.shape[1])


@pytest.mark.parametrize("name", PAIRWISE)
def test_edges_of_a_pair_loss_are_its_pair_weights_both_ways(name):
    edges = measure_edges(build(name), BATCH)
    rows = normalize(BATCH.embeddings.double(), dim=1)
    weights = similarity_weights(build(name).double(), rows @ rows.T, BATCH.labels, 32)
    both = (weights + weights.T).fill_diagonal_(0).float()
    assert edges.samples == len(edges.nodes) == 9
    torch.testing.assert_close(edges.weights, both, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", PROXIES)
def test_edges_of_a_proxy_loss_are_its_weights_between_samples_and_proxies(name):
    edges = measure_edges(build(name), BATCH)
    samples, proxies = edges.nodes[:9], edges.nodes[9:]
    weights = similarity_weights(build(name).double(), samples @ proxies.T, BATCH.labels)
    scale = float(weights.abs().max())
    torch.testing.assert_close(edges.weights[:9, 9:], weights.float(), rtol=1e-4, atol=1e-5 * scale)
    assert edges.weights[:9, :9].abs().max() < 1e-5 * scale, "samples are not compared with each other"


def test_proxies_that_repel_each_other_directly_have_edges_between_them():
    """The thesis's Figure 32: own samples pulled, other proxies pushed, nearer ones more."""
    loss = build("proxy_repulsion:through_samples=false")
    edges = measure_edges(loss, BATCH)
    between = edges.weights[9:, 9:]
    R = edges.nodes[9:] @ edges.nodes[9:].T
    exponentials = (32 * (R + 0.1)).exp().fill_diagonal_(0)
    one_way = 32 * exponentials / (1 + exponentials.sum(dim=1, keepdim=True)) / 3
    torch.testing.assert_close(between.double(), one_way + one_way.T, rtol=1e-3, atol=1e-4)
    own = edges.labels[:9].unsqueeze(1) == edges.labels[9:]
    assert (edges.weights[:9, 9:][own] < 0).all()
    assert edges.weights[:9, 9:][~own].abs().max() < 1e-4, "samples know no other proxies"


def test_the_farther_sample_of_a_class_is_pulled_more():
    edges = measure_edges(build("proxy_anchor:alpha=4"), BATCH)
    for label in range(3):
        own = (BATCH.labels == label).nonzero().flatten()
        S = (edges.nodes[own] @ edges.nodes[9 + label]).tolist()
        pull = (-edges.weights[own, 9 + label]).tolist()
        assert S.index(min(S)) == pull.index(max(pull))


@pytest.mark.parametrize("name", losses.names())
def test_any_loss_has_edges_that_give_its_gradients(name):
    """The gradient at each node is the sum over its edges, and a multiple of the node itself."""
    if name == "info_nce":
        return  # it has no classes: its batch needs pairs
    loss = build(name).double()
    edges = measure_edges(loss, BATCH)
    rows = edges.nodes[:9].clone().requires_grad_()
    gradient = torch.autograd.grad(build_like(loss, name, edges)(rows, BATCH.labels), rows)[0]
    from_edges = edges.weights.double()[:9] @ edges.nodes
    left = gradient - from_edges
    along = (left * edges.nodes[:9]).sum(1, keepdim=True) / edges.nodes[:9].square().sum(1, keepdim=True)
    scale = max(1e-6, float(gradient.abs().max()))
    assert (left - along * edges.nodes[:9]).abs().max() < 1e-4 * scale


def build_like(loss, name, edges):
    """The same loss with the same proxies, and the draws of seed 0."""
    same = build(name).double()
    if hasattr(same, "proxies"):
        same.proxies.data.copy_(edges.nodes[9:].view_as(same.proxies))
    if hasattr(same, "generator"):
        same.generator.manual_seed(0)
    return same


def test_figure_20_has_the_comparisons_that_the_thesis_counts():
    """Eight samples of two classes: all of them against each other, or each with two proxies."""
    choices, batch = figure_batch("20")
    assert len(batch.labels) == 8
    proxies = measure_edges(choices[1].build(2, 32), batch)
    assert len(proxies.nodes) == 10
    assert (proxies.weights[:8, 8:] != 0).sum() == 16  # eight samples, both proxies


@pytest.mark.parametrize("figure", FIGURES)
def test_every_figure_is_drawn(figure, tmp_path):
    choices, batch = figure_batch(figure)
    measured = draw_edges(choices, batch, tmp_path / "edges.svg")
    drawn = (tmp_path / "edges.svg").read_text()
    for choice, edges in zip(choices, measured, strict=True):
        assert choice.name in drawn
        assert len(edges.listed()) > 0


def test_places_keep_distances_and_cover_no_node():
    places = places_of(normalize(torch.randn(12, 32, generator=torch.Generator().manual_seed(0)), dim=1))
    apart = (places.unsqueeze(1) - places).norm(dim=2) + torch.eye(12)
    assert apart.min() > 0.15
    assert places.abs().max() <= 1
    line = torch.tensor([[0.0, 0.0, 1.0], [1.0, 0.0, 1.0], [4.0, 0.0, 1.0]])
    x = places_of(line)[:, 0]
    assert ((x[1] - x[0]) / (x[2] - x[0])).item() == pytest.approx(0.25, abs=1e-5)


def test_what_cannot_be_told_apart_is_refused():
    flat = Batch(torch.randn(6, 2), torch.tensor([0, 0, 0, 1, 1, 1]), "flat")
    with pytest.raises(ValueError, match=r"the 6 nodes \(samples and proxies\) span 2 of 2 dimensions"):
        measure_edges(losses.build("contrastive"), flat)
    with pytest.raises(ValueError, match="figure '19' has no edges: choose one of 17, 18"):
        figure_batch("19")
