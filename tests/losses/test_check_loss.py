"""``check_loss`` on other people's losses: good ones pass, and what is wrong with bad ones is one line."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import normalize, softplus

from nearkin import losses
from nearkin.losses.search_space import Range, space
from nearkin.losses.testing import check_loss, check_search_space


def hinge(embeddings, labels):
    z = normalize(embeddings)
    S, same = z @ z.T, labels[:, None] == labels
    return ((S - 0.3).relu() * ~same).sum() / (~same).sum().clamp(min=1) + ((1 - S) * same).sum() / len(
        labels
    ) ** 2


def circle(embeddings, labels, *, constant=True):
    """Circle loss (Sun et al., 2020): its weights are constants."""
    m, scale = 0.25, 16
    z = normalize(embeddings)
    S, same = z @ z.T, labels[:, None] == labels
    positive = same & ~torch.eye(len(labels), dtype=torch.bool)
    S_weights = S.detach() if constant else S
    pull = -scale * (1 + m - S_weights).relu() * (S - 1 + m)
    push = scale * (S_weights + m).relu() * (S - m)
    lowest = torch.finfo(S.dtype).min / 4
    sums = torch.where(positive, pull, lowest).logsumexp(1) + torch.where(~same, push, lowest).logsumexp(1)
    return softplus(sums).mean()


class Centres(torch.nn.Module):
    def __init__(self, num_classes, embedding_dim, *, scale=1.0):
        super().__init__()
        self.centres = torch.nn.Parameter(torch.randn(num_classes, embedding_dim))
        self.scale = scale

    def forward(self, embeddings, labels):
        return self.scale * (normalize(embeddings) - self.centres[labels]).square().sum(1).mean()


class Mine(losses.ProxyLoss):
    def __init__(self, num_classes, embedding_dim, *, slope=3.0, generator=None):
        super().__init__(num_classes, embedding_dim, generator)
        self.slope = slope

    def value(self, S, labels):
        return torch.nn.functional.cross_entropy(self.slope * S, labels, reduction="none")


@pytest.mark.parametrize(
    "loss",
    [hinge, Centres, lambda: Centres(40, 8), lambda: losses.build("nca"), Mine, losses.Contrastive],
    ids=["function", "module", "factory", "our factory", "proxy loss", "registered class"],
)
def test_good_losses_pass(loss):
    check_loss(loss)


def test_hyperparameters_reach_a_class():
    check_loss(Mine, slope=5.0)
    with pytest.raises(AssertionError, match=r"Mine fails check_value.*slope.*|Mine fails"):
        check_loss(Mine, slope=float("nan"))


def test_stopped_gradients():
    with pytest.raises(AssertionError, match=r"^circle fails check_gradient_is_the_derivative: "):
        check_loss(circle)
    check_loss(circle, stopped_gradients=True)


def test_a_surrogate_has_the_gradient():
    """A loss whose part is a constant has the gradient of the loss with that part written down as numbers."""

    def half_stopped(embeddings, labels):
        z = normalize(embeddings)
        return ((z @ z.T).detach() * (z @ z.T)).mean()

    def surrogate(embeddings, labels):
        z = normalize(embeddings)
        return (z @ z.T).square().mean() / 2

    check_loss(half_stopped, surrogate=surrogate)
    with pytest.raises(AssertionError, match="half_stopped fails check_gradient_is_that_of_the_surrogate"):
        check_loss(half_stopped, surrogate=lambda embeddings, labels: 3 * surrogate(embeddings, labels))


def nan(embeddings, labels):
    return embeddings.sum() * float("nan")


def vector(embeddings, labels):
    return embeddings.sum(dim=1)


def ordered(embeddings, labels):
    return (normalize(embeddings)[0] * embeddings[0]).sum()


def crashing(embeddings, labels):
    raise KeyError("labels\nand more\nlines")


@pytest.mark.parametrize(
    ("bad", "check"),
    [
        (nan, "check_value_is_a_finite_scalar: the value is nan"),
        (vector, "check_value_is_a_finite_scalar: ValueError: .*must give a scalar tensor"),
        (ordered, "check_order_does_not_matter: another order"),
        (crashing, "check_value_is_a_finite_scalar: KeyError: "),
    ],
)
def test_a_failure_is_one_line(bad, check):
    with pytest.raises(AssertionError, match=f"^{bad.__name__} fails {check}") as caught:
        check_loss(bad)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 350
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_a_closed_form_that_is_not_the_value_is_caught():
    class Wrong(losses.PairLoss):
        def value(self, S, pairs):
            return pairs.mean_over_pairs(1 - S, pairs.positive)

        def measure(self, S, pairs, with_weights):
            measured = super().measure(S, pairs, with_weights)
            return losses.Measured(measured.value * 2, None if not with_weights else measured.weights * 2)

    with pytest.raises(AssertionError, match="Wrong fails check_values_of_samples: the mean of the values"):
        check_loss(Wrong)


def test_a_gradient_that_does_not_grow_with_the_loss_is_caught():
    class Fixed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, rows):
            ctx.save_for_backward(rows)
            return rows.square().sum(1).mean()

        @staticmethod
        def backward(ctx, gradient):
            (rows,) = ctx.saved_tensors
            return 2 * rows / len(rows) * gradient.sign()  # right for L, and for 4 L the same again

    def fixed(embeddings, labels):
        return Fixed.apply(embeddings)

    with pytest.raises(
        AssertionError, match="fixed fails check_gradient_grows_with_the_loss: the gradient of 4"
    ):
        check_loss(fixed, stopped_gradients=True)


def test_a_loss_that_breaks_on_opposite_samples_is_caught():
    def broken(embeddings, labels):
        z = normalize(embeddings)
        S = z @ z.T
        return torch.where(S < -1 + 1e-4, float("nan"), S).mean()

    with pytest.raises(AssertionError, match="broken fails check_degenerate_embeddings: .*opposite samples"):
        check_loss(broken)


def test_every_corner_of_a_search_space_is_tried(monkeypatch):
    where = space(alpha=Range(1.0, 4.0), margin=Range(0.25, 1.0))
    monkeypatch.setattr(losses.MultiSimilarity, "search_space", where)
    tried = []
    monkeypatch.setattr(
        "nearkin.losses.testing.check_value_is_a_finite_scalar",
        lambda make: tried.append((make().alpha, make().margin)),
    )
    check_search_space("multi_similarity")
    assert sorted(tried) == [(1.0, 0.25), (1.0, 1.0), (4.0, 0.25), (4.0, 1.0)]
