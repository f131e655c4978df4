from __future__ import annotations

import pytest
import torch
from torch.nn.functional import normalize

from nearkin import losses
from nearkin.losses.modifiers import S2SD, CrossBatchMemory, Matryoshka

B, DIM, FEATURES, SIZES = 7, 4, 6, (5, 9)
LABELS = torch.tensor([0, 0, 1, 1, 2, 2, 2])


def rows(seed, size):
    return torch.randn(B, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def build(name, dim=DIM):
    return losses.build(name, num_classes=3, embedding_dim=dim).double()


def kl(target, S, temperature):
    """mean over rows of KL(σ(target/T) ‖ σ(S/T)), by loops."""
    total = 0
    for i in range(B):
        p, q = torch.softmax(target[i] / temperature, 0), torch.softmax(S[i] / temperature, 0)
        total = total + sum(p[j] * (p[j] / q[j]).log() for j in range(B))
    return total / B


def cosines(x):
    z = normalize(x)
    return z @ z.T


@pytest.mark.parametrize("feature_after", [0, 1])
@pytest.mark.parametrize("name", ["multi_similarity", "proxy_anchor"])
def test_value_and_gradients_are_those_of_the_equation(name, feature_after):
    loss = S2SD(
        build(name),
        FEATURES,
        sizes=SIZES,
        weight=3,
        temperature=0.5,
        feature_weight=2,
        feature_after=feature_after,
    ).double()
    x, f = rows(0, DIM).requires_grad_(), rows(1, FEATURES).requires_grad_()
    value = loss(x, LABELS, features=f)
    total, taught = build(name)(x, LABELS) / 2, 0
    bare = build(name)
    bare.load_state_dict(loss.loss.state_dict())
    total = bare(x, LABELS) / 2
    for branch, own, size in zip(loss.branches, loss.branch_losses, SIZES, strict=True):
        hidden = (f @ branch.first.weight.T + branch.first.bias).relu()
        out = hidden @ branch.second.weight.T + branch.second.bias
        assert out.shape == (B, size)
        total = total + own(out, LABELS) / 2 / len(SIZES)
        taught = taught + 3 * 0.25 * kl(cosines(out.detach()), cosines(x), 0.5) / len(SIZES)
    if feature_after == 0:
        taught = taught + 2 * 0.25 * kl(cosines(f.detach()), cosines(x), 0.5)
    expected = total + taught
    torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-10)
    inputs = [x, f, *loss.branches.parameters(), *loss.branch_losses.parameters()]
    for one, other in zip(
        torch.autograd.grad(value, inputs), torch.autograd.grad(expected, inputs), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_gradcheck():
    loss = S2SD(build("multi_similarity"), FEATURES, sizes=SIZES, feature_weight=0).double()
    f = rows(1, FEATURES)
    torch.autograd.gradcheck(
        lambda x: loss(x, LABELS, features=f), (rows(0, DIM).requires_grad_(),), atol=1e-6
    )


def test_without_sizes_and_feature_weight_it_is_the_loss_itself():
    x = rows(0, DIM).requires_grad_()
    bare, loss = build("proxy_anchor"), S2SD(build("proxy_anchor"), FEATURES, sizes=(), feature_weight=0)
    first, second = bare(x, LABELS), loss(x, LABELS, features=rows(1, FEATURES))
    assert torch.equal(first, second)
    (one,), (other,) = torch.autograd.grad(first, x), torch.autograd.grad(second, x)
    assert torch.equal(one, other)


def test_features_teach_after_so_many_training_batches_and_the_count_is_resumed():
    loss = S2SD(build("contrastive"), FEATURES, sizes=(), feature_weight=2, feature_after=2)
    x, f = rows(0, DIM), rows(1, FEATURES)
    bare = build("contrastive")(x, LABELS)
    loss.eval()
    assert loss(x, LABELS, features=f) == bare
    loss.train()
    assert [bool(loss(x, LABELS, features=f) == bare) for _ in range(4)] == [True, True, False, False]
    fresh = S2SD(build("contrastive"), FEATURES, sizes=(), feature_weight=2, feature_after=5)
    fresh.load_state_dict(loss.state_dict())
    assert [bool(fresh(x, LABELS, features=f) == bare) for _ in range(2)] == [True, False]


def test_branches_have_proxies_and_memories_of_their_own():
    loss = S2SD(build("proxy_anchor"), FEATURES, sizes=SIZES)
    assert [one.proxies.shape for one in loss.branch_losses] == [(3, 5), (3, 9)]
    inner = CrossBatchMemory(Matryoshka(losses.build("contrastive"), [DIM, 2]), size=20)
    loss = S2SD(inner, FEATURES, sizes=SIZES).double()
    for seed in range(2):
        loss(rows(seed, DIM), LABELS, features=rows(1, FEATURES), ids=torch.arange(B) + B * seed)
    assert [one.embeddings.shape[1] for one in loss.branch_losses] == list(SIZES)
    assert all(isinstance(one.loss, losses.Contrastive) for one in loss.branch_losses)  # nothing is cut there


def test_the_seed_draws_the_branches():
    def first(seed):
        made = S2SD(build("contrastive"), FEATURES, sizes=[8], generator=torch.Generator().manual_seed(seed))
        return made.branches[0].first.weight

    state = torch.random.get_rng_state()
    assert torch.equal(first(1), first(1))
    assert not torch.equal(first(1), first(2))
    assert torch.equal(state, torch.random.get_rng_state())


def test_branches_learn_as_the_head_does_and_proxies_as_proxies():
    groups = S2SD(build("proxy_anchor"), FEATURES, sizes=[8]).param_groups(0.5)
    told = {group["name"]: group.get("as_head", False) for group in groups}
    assert told == {
        "proxies": False,
        "branches.0.first.weight": True,
        "branches.0.first.bias": True,
        "branches.0.second.weight": True,
        "branches.0.second.bias": True,
        "branch_losses.0.proxies": False,
    }


def test_values_by_sample_and_weights():
    loss = S2SD(build("multi_similarity"), FEATURES, sizes=SIZES, feature_after=0).double()
    x, f = rows(0, DIM), rows(1, FEATURES)
    values = loss(x, LABELS, features=f, reduction="none")
    torch.testing.assert_close(values.mean(), loss(x, LABELS, features=f))
    ones = torch.ones(B, dtype=torch.float64)
    torch.testing.assert_close(loss(x, LABELS, features=f, weights=ones), values.mean())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    loss = S2SD(losses.build("contrastive"), FEATURES, sizes=SIZES)
    x, f = rows(0, DIM).to(dtype).requires_grad_(), rows(1, FEATURES).to(dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(x, LABELS, features=f)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, loss(x.float(), LABELS, features=f.float()))
    value.backward()
    assert torch.isfinite(x.grad).all()


def test_what_is_missing_or_wrong_is_said():
    loss = S2SD(build("contrastive"), FEATURES, sizes=SIZES)
    with pytest.raises(ValueError, match="pass features="):
        loss(rows(0, DIM), LABELS)
    with pytest.raises(ValueError, match=r"features have shape \(7, 3\), not \(7, 6\)"):
        loss(rows(0, DIM), LABELS, features=rows(1, 3))
    with pytest.raises(ValueError, match="temperature"):
        S2SD(build("contrastive"), FEATURES, temperature=0)
    with pytest.raises(ValueError, match="sizes"):
        S2SD(build("contrastive"), FEATURES, sizes=[0])


def test_a_module_of_ones_own_with_parameters_is_refused():
    own = torch.nn.Bilinear(2, 2, 1)
    with pytest.raises(ValueError, match="cannot be made for embeddings of another size"):
        S2SD(own, FEATURES, sizes=[8])
    S2SD(lambda embeddings, labels: embeddings.square().mean(), FEATURES, sizes=[8])
