"""STML against plain loops over sets and vectors, and what its teacher's head does over steps."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import normalize

from nearkin.losses import SelfTaught
from nearkin.losses.self_taught import contextual_likeness

B, D, F = 12, 5, 7
IMAGES = torch.arange(B // 2).repeat_interleave(2)


def rows(seed, size=D, count=B):
    return torch.randn(count, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def made(**keywords):
    loss = SelfTaught(F, wide=9, generator=torch.Generator().manual_seed(0), **keywords).double()
    with torch.no_grad():  # a teacher that is not the student
        loss.teacher_weight += 0.1 * rows(8, F, 9)
    return loss.eval()


def naive_context(pairwise, k):
    """By sets: mutual neighbours, shares of common ones, averages over the nearer half and both orders."""
    count = len(pairwise)
    order = [sorted(range(count), key=lambda j: -pairwise[i][j])[:k] for i in range(count)]
    mutual = [{j for j in order[i] if i in order[j]} for i in range(count)]
    share = [
        [len(mutual[i] & mutual[j]) / len(mutual[i]) if j in mutual[i] else 0.0 for j in range(count)]
        for i in range(count)
    ]
    half = max(round(k / 2), 1)
    averaged = [
        [sum(share[h][j] for h in order[i][:half]) / half for j in range(count)] for i in range(count)
    ]
    return torch.tensor(
        [[(averaged[i][j] + averaged[j][i]) / 2 for j in range(count)] for i in range(count)],
        dtype=torch.float64,
    )


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8, 12, 40])
@pytest.mark.parametrize("seed", range(3))
def test_contextual_likeness_is_that_of_sets(k, seed):
    units = normalize(rows(seed, 3))
    pairwise = (units @ units.T).exp().fill_diagonal_(9.0)
    found = contextual_likeness(pairwise, k)
    torch.testing.assert_close(found, naive_context(pairwise.tolist(), min(k, B)))
    assert found.min() >= 0
    assert found.max() <= 1


def naive_alike(t, images, sigma, context):
    t = normalize(t)
    pairwise = torch.tensor(
        [
            [
                1.0 if images[i] == images[j] else (-(t[i] - t[j]).square().sum() / sigma).exp().item()
                for j in range(len(t))
            ]
            for i in range(len(t))
        ],
        dtype=torch.float64,
    )
    return (pairwise + naive_context(pairwise.tolist(), min(context * 2, len(t)))) / 2


def naive(x, g, W, delta):
    """½ (R(x) + R(g)) + KL, by loops."""

    def relative(rows):
        D = [[(a - b).norm() for b in rows] for a in rows]
        return [[d / (sum(line) / len(rows)) for d in line] for line in D]

    total = torch.zeros((), dtype=torch.float64)
    for d in (relative(x), relative(g)):
        for i in range(len(x)):
            for j in range(len(x)):
                if i != j:
                    pull, push = W[i, j] * d[i][j] ** 2, (1 - W[i, j]) * (delta - d[i][j]).relu() ** 2
                    total = total + (pull + push) / (2 * len(x))
    for own, wide in zip(relative(x), relative(g.detach()), strict=True):
        log_q, log_p = (-torch.stack(line) for line in (own, wide))
        log_q, log_p = log_q - log_q.logsumexp(0), log_p - log_p.logsumexp(0)
        total = total + (log_p.exp() * (log_p - log_q)).sum() / len(x)
    return total


@pytest.mark.parametrize(("sigma", "margin", "context"), [(3.0, 1.0, 10), (0.7, 1.6, 2), (2.0, 0.5, 3)])
def test_value_and_gradients_are_those_of_plain_loops(sigma, margin, context):
    loss = made(sigma=sigma, margin=margin, neighbours=context)
    x, features, taught = rows(0).requires_grad_(), rows(1, F).requires_grad_(), rows(2, F)
    value = loss(x, IMAGES, features=features, teacher_features=taught)
    W = naive_alike(taught @ loss.teacher_weight.T + loss.teacher_bias, IMAGES, sigma, context)
    torch.testing.assert_close(loss.alike(taught @ loss.teacher_weight.T + loss.teacher_bias, IMAGES), W)
    expected = naive(x, features @ loss.head.weight.T + loss.head.bias, W, margin)
    torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-10)
    inputs = (x, features, loss.head.weight, loss.head.bias)
    for found, wanted in zip(
        torch.autograd.grad(value, inputs), torch.autograd.grad(expected, inputs), strict=True
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    values = loss(x, IMAGES, features=features, teacher_features=taught, reduction="none")
    torch.testing.assert_close(values.mean(), value)


def test_gradcheck_in_the_embeddings():
    """In the features as well the wide head's divergence is a constant: only their loops can tell."""
    loss, features, taught = made(neighbours=2), rows(1, F), rows(2, F)
    torch.autograd.gradcheck(
        lambda x: loss(x, IMAGES, features=features, teacher_features=taught),
        (rows(0).requires_grad_(),),
        atol=1e-6,
    )


def test_the_order_of_rows_does_not_matter():
    loss = made(neighbours=2)
    x, features, taught = rows(0), rows(1, F), rows(2, F)
    order = torch.randperm(B, generator=torch.Generator().manual_seed(3))
    one = loss(x, IMAGES, features=features, teacher_features=taught)
    other = loss(x[order], IMAGES[order], features=features[order], teacher_features=taught[order])
    torch.testing.assert_close(one, other)


def test_the_teachers_head_is_the_moving_average_of_the_heads_that_steps_left():
    loss = SelfTaught(F, wide=3, decay=0.5)
    expected = loss.head.weight.detach().clone()
    x, features = rows(0).float(), rows(1, F).float()
    for step in range(6):
        loss(x, IMAGES, features=features, teacher_features=features)
        if step:
            decay = min(0.5, (1 + step) / (10 + step))
            expected = decay * expected + (1 - decay) * loss.head.weight.detach()
        torch.testing.assert_close(loss.teacher_weight, expected)
        with torch.no_grad():
            loss.head.weight += torch.randn(3, F, generator=torch.Generator().manual_seed(step))
    again = SelfTaught(F, wide=3, decay=0.5)
    again.load_state_dict(loss.state_dict())
    values = [one(x, IMAGES, features=features, teacher_features=features) for one in (loss, again)]
    assert torch.equal(*values)
    before = loss.teacher_weight.clone()
    loss.eval()(x, IMAGES, features=features, teacher_features=features)
    assert torch.equal(before, loss.teacher_weight)


def test_nothing_to_learn_from_is_an_exact_0_and_equal_rows_are_finite():
    loss = made()
    none = rows(0, D, 0).requires_grad_()
    assert loss(none, IMAGES[:0], features=rows(0, F, 0), teacher_features=rows(0, F, 0)).item() == 0
    same = torch.ones(4, D, dtype=torch.float64).requires_grad_()
    ones = torch.ones(4, F, dtype=torch.float64)
    value = loss(same, IMAGES[:4], features=ones, teacher_features=ones)
    value.backward()
    assert torch.isfinite(value)
    assert torch.isfinite(same.grad).all()


def test_missing_and_wrong_inputs_are_named():
    loss, x = made(), rows(0)
    with pytest.raises(ValueError, match="needs features="):
        loss(x, IMAGES)
    with pytest.raises(ValueError, match="needs teacher_features="):
        loss(x, IMAGES, features=rows(1, F))
    with pytest.raises(ValueError, match=r"features have shape \(12, 6\), not \(12, 7\)"):
        loss(x, IMAGES, features=rows(1, 6))
    with pytest.raises(ValueError, match="decay=1 must be at least 0 and below 1"):
        SelfTaught(F, decay=1)
    with pytest.raises(ValueError, match="wide=0"):
        SelfTaught(F, wide=0)
