from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import normalize

from nearkin import losses
from nearkin.losses.modifiers import CrossBatchMemory, Matryoshka, Mixup
from nearkin.losses.testing import check_loss

CLASSES, DIM = 4, 6
LABELS = torch.tensor([0, 0, 0, 1, 1, 2, 3, 2])
MIXABLE = [
    ("contrastive", {}),
    ("contrastive", {"metric": "euclidean", "margin": 0.9}),
    ("triplet", {}),
    ("triplet", {"metric": "squared_euclidean"}),
    ("margin", {}),
    ("margin", {"per_class": True}),
    ("multi_similarity", {}),
    ("lifted_structure", {}),
    ("nca", {"temperature": 0.3}),
    ("proxy_anchor", {}),
]


def batch(seed=0):
    return torch.randn(len(LABELS), DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def build(name, **keywords):
    return losses.build(
        name,
        num_classes=CLASSES,
        embedding_dim=DIM,
        generator=torch.Generator().manual_seed(1),
        **keywords,
    ).double()


def examples(loss, x, shares):
    """(anchor, λ, cosines of the anchor with the mixed example, p and n) of all, by loops over vectors."""
    z = [row / row.norm() for row in x]
    proxies = isinstance(loss, losses.ProxyLoss)
    anchors = {c: v / v.norm() for c, v in enumerate(loss.proxies)} if proxies else dict(enumerate(z))
    for a, anchor in anchors.items():
        label = a if proxies else LABELS[a]
        for p in range(len(z)):
            for n in range(len(z)):
                if LABELS[p] == label and LABELS[n] != label and (proxies or p != a):
                    share = shares[p, n]
                    mixed = share * z[p] + (1 - share) * z[n]
                    yield a, share, anchor @ (mixed / mixed.norm()), anchor @ z[p], anchor @ z[n]


def near(s, metric):
    if metric == "cosine":
        return s
    return 2 * s - 2 if metric == "squared_euclidean" else -(2 - 2 * s).sqrt()


def log_sum(terms, one):
    return (sum(weight * t.exp() for weight, t in terms) + one).log()


def naive(loss, name, x, shares):
    found = list(examples(loss, x, shares))
    by_anchor = {}
    for a, *rest in found:
        by_anchor.setdefault(a, []).append(rest)
    if name == "contrastive":
        best, bound = (1, loss.margin) if loss.metric == "cosine" else (0, -loss.margin)
        nears = [(share, near(s, loss.metric)) for _, share, s, _, _ in found]
        over = [(1 - share, t) for share, t in nears if t > bound]
        pull = sum(share * (best - t) for share, t in nears) / sum(share for share, _ in nears)
        return pull + sum(w * (t - bound) for w, t in over) / sum(w for w, _ in over)
    if name in ("triplet", "margin"):
        terms = []
        for a, share, s, s_p, s_n in found:
            if name == "triplet":
                v, p, n = (near(one, loss.metric) for one in (s, s_p, s_n))
                terms += [(share, n - v + loss.margin), (1 - share, v - p + loss.margin)]
            else:
                D = (2 - 2 * s).sqrt()
                beta = loss.beta[LABELS[a]] if loss.per_class else loss.beta
                terms += [(share, loss.margin + D - beta), (1 - share, loss.margin - D + beta)]
        active = [(w, t) for w, t in terms if t > 0]
        return sum(w * t for w, t in active) / sum(w for w, _ in active)
    pulls, pushes, both = [], [], []
    for rows in by_anchor.values():
        if name == "multi_similarity":
            pulls.append(log_sum([(w, -loss.alpha * (s - loss.margin)) for w, s, *_ in rows], 1) / loss.alpha)
            pushes.append(
                log_sum([(1 - w, loss.beta * (s - loss.margin)) for w, s, *_ in rows], 1) / loss.beta
            )
        elif name == "proxy_anchor":
            pulls.append(log_sum([(w, -loss.alpha * (s - loss.margin)) for w, s, *_ in rows], 1))
            pushes.append(log_sum([(1 - w, loss.alpha * (s + loss.margin)) for w, s, *_ in rows], 1))
        elif name == "lifted_structure":
            far = log_sum([(w, loss.positive_scale * (loss.margin - s)) for w, s, *_ in rows], 0)
            close = log_sum([(1 - w, loss.negative_scale * s) for w, s, *_ in rows], 0)
            both.append((far / loss.positive_scale + close / loss.negative_scale).relu())
        else:
            scaled = [(w, 2 * s / loss.temperature) for w, s, *_ in rows]
            both.append(log_sum([(1, t) for _, t in scaled], 0) - log_sum(scaled, 0))
    if name == "multi_similarity":
        return sum(pulls + pushes) / len(LABELS)
    if name == "proxy_anchor":
        return sum(pulls) / len(pulls) + sum(pushes) / CLASSES
    return sum(both) / len(both)


@pytest.mark.parametrize(("name", "keywords"), MIXABLE)
def test_value_and_gradients_are_those_of_plain_loops(name, keywords):
    bare, mixup = build(name, **keywords), Mixup(build(name, **keywords), weight=0.7)
    x = batch().requires_grad_()
    shares = Mixup(build(name, **keywords))._draw(len(x))
    value = mixup(x, LABELS)
    parameters = list(mixup.parameters())
    expected = bare(x, LABELS) + 0.7 * naive(bare, name, x, shares)
    torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-10)
    found = torch.autograd.grad(value, [x, *parameters])
    wanted = torch.autograd.grad(expected, [x, *bare.parameters()])
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["multi_similarity", "margin", "proxy_anchor"])
def test_gradcheck(name):
    def mixed(x):
        return Mixup(build(name)).mixed(x, LABELS)

    torch.autograd.gradcheck(mixed, (batch().requires_grad_(),), atol=1e-6)


@pytest.mark.parametrize(("name", "keywords"), MIXABLE)
def test_weight_0_is_the_loss_itself(name, keywords):
    bare, mixup = build(name, **keywords), Mixup(build(name, **keywords), weight=0.0)
    x = batch().requires_grad_()
    first, second = bare(x, LABELS), mixup(x, LABELS)
    assert torch.equal(first, second)
    (one,), (other,) = torch.autograd.grad(first, x), torch.autograd.grad(second, x)
    assert torch.equal(one, other)


def test_shares_are_beta_distributed():
    for alpha in (1.0, 2.0):
        drawn = Mixup(build("contrastive"), alpha=alpha)._draw(400)
        assert ((drawn > 0) & (drawn < 1)).all()
        deviation = math.sqrt(1 / (4 * (2 * alpha + 1)))  # of Beta(α, α)
        assert abs(drawn.mean() - 0.5) < 4 * deviation / 400
        assert abs(drawn.std() - deviation) < 0.005


def test_draws_differ_from_batch_to_batch_and_are_resumed():
    first, second = Mixup(build("contrastive")), Mixup(build("contrastive"))
    values = [first(batch(), LABELS).item() for _ in range(3)]
    assert len(set(values)) == 3
    second(batch(), LABELS)
    resumed = Mixup(build("contrastive"))
    resumed.load_state_dict(second.state_dict())
    assert resumed(batch(), LABELS).item() == values[1]


def test_the_loss_inside_draws_what_it_draws_alone():
    """A seed gives the same random mining with mixup around it and without."""
    generator = torch.Generator().manual_seed(5)
    alone = losses.build("margin", generator=torch.Generator().manual_seed(5))
    inside = Mixup(losses.build("margin", generator=generator), generator=generator, weight=0.0)
    for seed in range(3):
        x = batch(seed).float()
        assert torch.equal(alone(x, LABELS), inside(x, LABELS))


def test_a_batch_without_triplets_mixes_nothing():
    x = batch().requires_grad_()
    for labels in (torch.zeros(8, dtype=torch.long), torch.arange(8)):
        value = Mixup(build("multi_similarity")).mixed(x, labels)
        assert value == 0
        assert not torch.autograd.grad(value, x)[0].any()


def test_a_memory_around_it_mixes_the_batch_alone():
    memory = CrossBatchMemory(Mixup(build("contrastive"), weight=0.7), size=20)
    bare, shares = build("contrastive"), Mixup(build("contrastive"))
    memory(batch(0), LABELS)
    shares._draw(len(LABELS))
    x, old = batch(1), batch(0)
    expected = bare(x, LABELS) + bare(x, LABELS, references=old, reference_labels=LABELS)
    expected = expected + 0.7 * naive(bare, "contrastive", x, shares._draw(len(LABELS)))
    torch.testing.assert_close(memory(x, LABELS), expected)


def test_matryoshka_around_it_mixes_every_size():
    loss = Matryoshka(Mixup(build("proxy_anchor"), weight=0.7), [DIM, 3])
    bare, drawing = build("proxy_anchor"), Mixup(build("proxy_anchor"))
    x, expected = batch(), 0
    for size in (DIM, 3):
        small = losses.build("proxy_anchor", num_classes=CLASSES, embedding_dim=size).double()
        small.proxies.data = bare.proxies.data[:, :size].clone()
        expected = expected + small(x[:, :size], LABELS)
        expected = expected + 0.7 * naive(small, "proxy_anchor", x[:, :size], drawing._draw(len(x)))
    torch.testing.assert_close(loss(x, LABELS), expected)


def test_a_loss_of_ones_own_may_say_how():
    class Own(losses.PairLoss):
        def value(self, S, pairs):
            return pairs.mean_over_pairs(1 - S, pairs.positive)

        def mixed_value(self, examples):
            return (examples.share * (1 - examples.S)).sum() / examples.share.sum()

    x, shares = batch(), Mixup(Own())._draw(len(LABELS))
    terms = [(share, 1 - s) for _, share, s, _, _ in examples(Own(), x, shares)]
    expected = sum(w * t for w, t in terms) / sum(w for w, _ in terms)
    torch.testing.assert_close(Mixup(Own()).mixed(x, LABELS), expected)


@pytest.mark.parametrize("name", ["npair", "softmax", "arcface", "proxy_nca"])
def test_a_loss_without_pairs_is_refused_in_one_sentence(name):
    with pytest.raises(ValueError, match=r"cannot take mixup: it is no sum over the pairs"):
        Mixup(build(name))


def test_values_by_sample_are_refused():
    with pytest.raises(ValueError, match="one value per sample"):
        Mixup(build("contrastive"))(batch(), LABELS, reduction="none")


@pytest.mark.parametrize("keywords", [{"weight": -1.0}, {"alpha": 0.0}])
def test_wrong_values_are_refused(keywords):
    with pytest.raises(ValueError, match="must be a finite number"):
        Mixup(build("contrastive"), **keywords)


def test_common_checks():
    """Of finite values and gradients, half precision, poor batches, resuming; order matters by chance."""
    check_loss(lambda: Mixup(losses.build("multi_similarity")), stopped_gradients=True)


def test_opposite_samples_give_finite_gradients():
    x = normalize(batch())
    x[3] = -x[0]
    x[4] = 0
    x = x.requires_grad_()
    for name, keywords in MIXABLE:
        (gradient,) = torch.autograd.grad(Mixup(build(name, **keywords))(x, LABELS), x)
        assert torch.isfinite(gradient).all()
