"""Every promise of ``nearkin.losses.testing`` for every registered loss, and for one a user adds."""

from __future__ import annotations

import pytest
import torch

from nearkin import losses
from nearkin.losses import testing


@pytest.mark.parametrize("check", testing.CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("name", losses.names())
def test_promise(name, check):
    check(testing.maker(name))


VARIANTS = [
    ("contrastive", {"metric": "squared_euclidean", "margin": 1.0}),
    ("contrastive", {"metric": "euclidean", "margin": 1.0}),
    ("contrastive", {"mining": "random"}),
    ("contrastive", {"metric": "euclidean_raw", "margin": 5.0}),
    ("contrastive", {"metric": "hyperbolic", "margin": 1.0}),
    ("triplet", {"metric": "signal_to_noise", "mining": "all"}),
    ("triplet", {"swap": True, "smooth": True, "mining": "all"}),
    ("supcon", {"metric": "hyperbolic"}),
    ("info_nce", {"metric": "euclidean_raw", "temperature": 0.5}),
    ("ranked_list", {"metric": "hyperbolic"}),
    ("smooth_ap", {"temperature": 0.1}),
    ("recall_at_k", {"ks": (1,), "cut_temperature": 0.01}),
    ("pnp", {"form": "Iu"}),
    ("circle", {"scale": 256.0}),
    ("triplet", {"mining": "all"}),
    ("triplet", {"mining": "all", "metric": "euclidean"}),
    ("triplet", {"mining": "hard", "metric": "squared_euclidean"}),
    ("triplet", {"mining": "distance_weighted"}),
    ("lifted_structure", {"mining": "all", "negative_scale": 200.0}),
    ("margin", {"mining": "all", "nu": 0.1}),
    ("margin", {"per_class": True}),
    ("multi_similarity", {"mining": "semi_hard"}),
    ("multi_similarity", {"alpha": 100.0, "beta": 300.0}),
    ("nca", {"temperature": 0.01}),
    ("softmax", {"normalized": True}),
    ("arcface", {"scale": 200.0}),
    ("curricularface", {"scale": 200.0}),
    ("adaface", {"margin": 1.5, "concentration": 5.0}),
    ("sub_center_arcface", {"proxies_per_class": 1}),
    ("soft_triple", {"proxies_per_class": 1}),
    ("proxy_anchor", {"alpha": 200.0}),
    ("proxy_repulsion", {"through_samples": False}),
    ("proxy_repulsion", {"relations": 0.5}),
]


@pytest.mark.parametrize(("name", "keywords"), VARIANTS, ids=str)
def test_promises_of_variants(name, keywords):
    for check in testing.CHECKS:
        if check is testing.check_pair_label_values and keywords.get("per_class"):
            continue  # then labels are the places of its boundaries
        check(testing.maker(name, **keywords))


@pytest.mark.parametrize("name", losses.names())
def test_description(name):
    testing.check_description(name)
    assert losses.describe(name).relations.endswith("."), "say in a sentence how it relates to other losses"


@pytest.mark.parametrize("name", losses.names())
def test_search_space(name):
    testing.check_search_space(name)
    assert losses.get(name).search_space or name == "softmax"  # whose scale needs normalized=True


@pytest.mark.parametrize("name", losses.names())
def test_class_is_exported(name):
    about = losses.describe(name)
    assert losses.get(name) is getattr(losses, about.class_name)
    assert about.class_name in losses.__all__


@pytest.mark.parametrize("name", losses.names())
def test_unknown_keyword_is_refused(name):
    with pytest.raises(ValueError, match="has no keyword 'marginn'"):
        losses.build(name, num_classes=3, embedding_dim=2, marginn=0.1)


@pytest.mark.parametrize("name", [name for name in losses.names() if losses.describe(name).needs_classes])
@pytest.mark.parametrize("sizes", [{}, {"num_classes": 3}, {"num_classes": 3, "embedding_dim": 0}])
def test_proxy_loss_needs_its_sizes(name, sizes):
    with pytest.raises(ValueError, match="num_classes|embedding_dim"):
        losses.build(name, **sizes)


NOT_NEGATIVE = {"margin", "epsilon", "l2", "nu", "gamma", "tau", "regularization", "margin_degrees"}
ABOVE_ZERO = {"alpha", "beta", "scale", "temperature", "positive_scale", "negative_scale", "ratio"}


@pytest.mark.parametrize(
    ("name", "keyword"),
    [
        (name, keyword)
        for name in losses.names()
        for keyword in losses.describe(name).defaults
        if keyword in NOT_NEGATIVE | ABOVE_ZERO
    ],
)
def test_wrong_values_are_refused(name, keyword):
    for wrong in [-0.1, float("nan"), *([0] if keyword in ABOVE_ZERO else [])]:
        with pytest.raises(ValueError, match=f"{keyword}={wrong}"):
            losses.build(name, num_classes=3, embedding_dim=2, **{keyword: wrong})


@pytest.fixture
def toy():
    @losses.register("toy")
    class Toy(losses.PairLoss):
        """Pull positives, push negatives, all alike.

        Equation:
            L = mean over all pairs of s·S for negatives, −s·S for positives

        Source:
            This test.

        When to use:
            Never.

        Args:
            scale: s.

        Example:
            >>> Toy()
        """

        def __init__(self, *, scale: float = 1.0) -> None:
            super().__init__()
            self.scale = scale

        def value(self, S, pairs):
            return self.scale * (S * (pairs.negative.to(S.dtype) - pairs.positive.to(S.dtype))).mean()

    yield Toy
    losses.unregister("toy")


def test_a_new_loss_is_one_class(toy):
    assert "toy" in losses.names()
    assert isinstance(losses.build("toy", scale=2.0, num_classes=7, embedding_dim=3), toy)
    assert losses.describe("toy").defaults == {"scale": 1.0}
    testing.check_loss("toy")


def test_the_checks_can_fail(toy, monkeypatch):
    monkeypatch.setattr(toy, "value", lambda self, S, pairs: S.sum() * float("nan"))
    with pytest.raises(AssertionError, match="^toy fails check_value_is_a_finite_scalar: the value is nan$"):
        testing.check_loss("toy")


def test_a_wrong_gradient_is_caught(toy, monkeypatch):
    def measure(self, S, pairs, with_weights):
        return losses.Measured(S.mean(), torch.ones_like(S))

    monkeypatch.setattr(toy, "measure", measure)
    with pytest.raises(Exception, match="Jacobian"):
        testing.check_gradient_is_the_derivative(testing.maker("toy"))


def test_differentiating_twice_is_refused():
    x = testing.batch().requires_grad_()
    loss = losses.build("contrastive")(x, testing.LABELS)
    with pytest.raises(RuntimeError, match="once only"):
        torch.autograd.grad(loss, x, create_graph=True)
