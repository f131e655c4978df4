"""A compiled loss is the eager one, because it is compiled and not because it is left alone."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch._dynamo.utils import counters

from nearkin import losses
from nearkin.losses.testing import CLASSES, DIM, LABELS, batch

SIZES = {"num_classes": CLASSES, "embedding_dim": DIM}
# Sizes or branches depend on values there; all others must give one graph.
IN_PARTS = {
    "angular",
    "direction_triplet",
    "margin",
    "pnp",
    "recall_at_k",
    "smooth_ap",
    "sup_ap",
    "triplet",
}


def made(name: str, **keywords) -> losses.Loss:
    return losses.build(name, **SIZES, **keywords).double()


def matryoshka(**keywords) -> losses.Loss:
    return losses.modifiers.build(
        "matryoshka", losses.build("multi_similarity"), sizes=[2, DIM], embedding_dim=DIM
    ).double()


class Graphs:
    """A backend that remembers which operations it was given, and leaves them to ``aot_eager``."""

    def __init__(self) -> None:
        self.operations: list[set[str]] = []

    def __call__(self, module, inputs):
        self.operations.append(
            {getattr(node.target, "__name__", str(node.target)) for node in module.graph.nodes}
        )
        return torch._dynamo.lookup_backend("aot_eager")(module, inputs)


def compare(make, *, backend, whole: bool, graphs: int = 1, **keywords) -> None:
    """Value and gradients of a compiled loss are those of the eager one, twice: buffers move on alike."""
    torch._dynamo.reset()
    counters.clear()
    plain, inner = make(), make()
    compiled = torch.compile(inner, backend=backend, fullgraph=whole)
    for seed in (0, 1):
        x, y = (batch(torch.float64, seed=seed).requires_grad_() for _ in range(2))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch itself, about graphs that break
            value = compiled(x, LABELS, **keywords)
        expected = plain(y, LABELS, **keywords)
        torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-9)
        value.sum().backward()
        expected.sum().backward()
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-9, atol=1e-9)
        for one, other in zip(inner.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-9, atol=1e-9)
    for one, other in zip(inner.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(one, other)
    assert counters["stats"]["unique_graphs"] >= graphs
    if whole:
        assert counters["stats"]["unique_graphs"] == 1  # one graph for all batches
        assert not counters["graph_break"]


@pytest.mark.parametrize("name", losses.names())
def test_compiled_equals_eager(name):
    graphs = Graphs()
    compare(lambda: made(name), backend=graphs, whole=name not in IN_PARTS)
    assert made(name).traceable == (name not in IN_PARTS)
    assert any({"matmul", "mm"} & operations for operations in graphs.operations), graphs.operations


@pytest.mark.parametrize(
    ("name", "keywords"),
    [
        ("soft_triple", {"proxies_per_class": 1}),
        ("contrastive", {"metric": "hyperbolic"}),
        ("multi_similarity", {"mining": "all"}),
        ("npair", {"pairs": "one_per_class"}),
    ],
)
def test_options_compile_too(name, keywords):
    loss = made(name, **keywords)
    compare(lambda: made(name, **keywords), backend="aot_eager", whole=loss.traceable)


@pytest.mark.parametrize("keywords", [{"sample": 0.5}, {"tile": 2}])
def test_some_classes_at_a_time_are_compared_as_without_compiling(keywords):
    compare(lambda: made("arcface", **keywords), backend="aot_eager", whole=False, graphs=0)


@pytest.mark.parametrize("name", ["multi_similarity", "triplet", "proxy_anchor"])
def test_values_and_weights_compile_too(name):
    weights = torch.linspace(0, 2, len(LABELS), dtype=torch.float64)
    compare(
        lambda: made(name),
        backend="aot_eager",
        whole=made(name).traceable,
        weights=weights,
        reduction="none",
    )


def test_modifiers_compile_with_their_loss():
    compare(matryoshka, backend="aot_eager", whole=True)


@pytest.mark.parametrize("name", ["multi_similarity", "softmax"])
def test_a_graph_still_refuses_what_is_not_finite(name):
    torch._dynamo.reset()
    broken = batch()
    broken[3, 0] = float("nan")
    with pytest.raises(RuntimeError, match="embeddings contain NaN or infinite values"):
        torch.compile(made(name).float(), backend="aot_eager")(broken, LABELS)


def test_a_graph_still_refuses_labels_out_of_range():
    torch._dynamo.reset()
    with pytest.raises(RuntimeError, match=f"out of range for num_classes={CLASSES}"):
        torch.compile(made("arcface").float(), backend="aot_eager")(batch(), LABELS + CLASSES)


@pytest.mark.slow
@pytest.mark.parametrize("name", losses.names())
def test_compiled_by_inductor_equals_eager(name):
    compare(lambda: made(name), backend="inductor", whole=name not in IN_PARTS)
