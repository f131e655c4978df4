from __future__ import annotations

import pytest
import torch
from torch.nn.functional import normalize

from nearkin import losses
from nearkin.losses.modifiers import Distil, teacher_decay
from nearkin.losses.testing import check_loss

B, DIM = 7, 5
LABELS = torch.tensor([0, 0, 1, 1, 2, 2, 2])


def rows(seed, size=DIM):
    return torch.randn(B, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def naive(x, t, sigma, delta):
    """(1/B) Σ_{i≠j} w d² + (1 − w)[δ − d]₊², by loops over vectors."""
    t = normalize(t)
    total = torch.zeros((), dtype=torch.float64)
    for i in range(len(x)):
        mean = sum((x[i] - x[k]).norm() for k in range(len(x)) if k != i) / len(x)
        for j in range(len(x)):
            if i != j:
                w = (-(t[i] - t[j]).square().sum() / sigma).exp()
                d = (x[i] - x[j]).norm() / mean
                total = total + w * d**2 + (1 - w) * (delta - d).relu() ** 2
    return total / len(x)


@pytest.mark.parametrize(("sigma", "margin"), [(1.0, 1.0), (0.3, 1.7), (3.0, 0.0)])
@pytest.mark.parametrize("name", ["multi_similarity", "proxy_anchor"])
def test_value_and_gradient_are_those_of_plain_loops(name, sigma, margin):
    bare = losses.build(name, num_classes=3, embedding_dim=DIM).double()
    x, t = rows(0).requires_grad_(), rows(1, 9)
    value = Distil(bare, t, weight=0.3, sigma=sigma, margin=margin).double()(x, LABELS, ids=torch.arange(B))
    expected = bare(x, LABELS) + 0.3 * naive(x, t, sigma, margin)
    torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-10)
    (found,), (wanted,) = torch.autograd.grad(value, x), torch.autograd.grad(expected, x)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


def test_gradcheck():
    loss = Distil(losses.build("contrastive"), "ema", weight=1.0)
    torch.autograd.gradcheck(lambda x: loss.transfer(x, rows(1)), (rows(0).requires_grad_(),), atol=1e-6)


def test_ids_choose_the_teachers_embeddings():
    of_all = rows(1)
    ids = torch.tensor([3, 0, 6])
    by_ids = Distil(losses.build("contrastive"), of_all)
    given = Distil(losses.build("contrastive"), "ema")
    x, labels = rows(0)[:3], LABELS[:3]
    torch.testing.assert_close(by_ids(x, labels, ids=ids), given(x, labels, teacher=of_all[ids]))
    assert "taught" not in by_ids.state_dict()
    assert by_ids.asks("ids")
    assert not given.asks("ids")


def test_no_gradient_reaches_the_teacher():
    teacher = rows(1).requires_grad_()
    value = Distil(losses.build("contrastive"), "ema")(rows(0).requires_grad_(), LABELS, teacher=teacher)
    value.backward()
    assert teacher.grad is None


def test_weight_0_is_the_loss_itself_and_needs_no_teacher():
    bare, loss = losses.build("multi_similarity"), Distil(losses.build("multi_similarity"), weight=0.0)
    x = rows(0).requires_grad_()
    first, second = bare(x, LABELS), loss(x, LABELS)
    assert torch.equal(first, second)
    (one,), (other,) = torch.autograd.grad(first, x), torch.autograd.grad(second, x)
    assert torch.equal(one, other)
    assert teacher_decay(loss) is None


def test_values_by_sample_and_weights():
    loss = Distil(losses.build("multi_similarity"), rows(1).float(), weight=0.5).double()
    ids, x = torch.arange(B), rows(0)
    values = loss(x, LABELS, ids=ids, reduction="none")
    torch.testing.assert_close(values.mean(), loss(x, LABELS, ids=ids))
    twice = torch.ones(B, dtype=torch.float64)
    torch.testing.assert_close(loss(x, LABELS, ids=ids, weights=twice), values.mean())


def test_samples_at_one_place_have_finite_gradients():
    x = torch.ones(B, DIM, dtype=torch.float64).requires_grad_()
    loss = Distil(losses.build("contrastive"), "ema", weight=1.0)
    (gradient,) = torch.autograd.grad(loss.transfer(x, rows(1)), x)
    assert torch.isfinite(gradient).all()


def test_two_teachers_of_two_decays_are_refused():
    both = Distil(Distil(losses.build("contrastive"), decay=0.9), decay=0.99)
    assert teacher_decay(both.loss) == 0.9
    with pytest.raises(ValueError, match=r"decays of 0\.9 and 0\.99"):
        teacher_decay(both)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"teacher": "emma"}, "must be 'ema' or embeddings"),
        ({"sigma": 0.0}, "sigma"),
        ({"weight": -1.0}, "weight"),
        ({"decay": 1.0}, "below 1"),
        ({"teacher": torch.full((3, 2), float("nan"))}, "NaN"),
    ],
)
def test_wrong_values_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Distil(losses.build("contrastive"), **arguments)


def test_a_missing_teacher_is_said():
    with pytest.raises(ValueError, match="pass teacher="):
        Distil(losses.build("contrastive"))(rows(0), LABELS)
    with pytest.raises(ValueError, match="needs ids"):
        Distil(losses.build("contrastive"), rows(1))(rows(0), LABELS)
    with pytest.raises(ValueError, match="id 7: the teacher has embeddings of 7 samples"):
        Distil(losses.build("contrastive"), rows(1))(rows(0), LABELS, ids=torch.arange(B) + 1)
    with pytest.raises(ValueError, match="the teacher has 3 embeddings, the batch 7"):
        Distil(losses.build("contrastive"))(rows(0), LABELS, teacher=rows(1)[:3])


def test_common_checks():
    class Taught(Distil):
        """By embeddings that depend on the samples alone."""

        def forward(self, embeddings, labels, **keywords):
            keywords.setdefault("teacher", embeddings.detach().float().cos())
            return super().forward(embeddings, labels, **keywords)

    check_loss(lambda: Taught(losses.build("multi_similarity")), stopped_gradients=True)
