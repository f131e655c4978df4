from __future__ import annotations

import naive
import pytest
import torch

from nearkin import losses, mining

LABELS = [0, 0, 0, 1, 1, 2, 3, 3]


def embeddings(seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(len(LABELS), 4, dtype=torch.float64, generator=generator)
    x[1] = x[0]
    x[5] = x[0]
    return x


def mined_pairs(loss: losses.Margin, x: torch.Tensor) -> tuple[list, list]:
    """What the loss is going to mine, as lists of pairs, without moving its generator."""
    z = torch.nn.functional.normalize(x)
    y = torch.tensor(LABELS)
    same = y[:, None] == y
    generator = torch.Generator()
    generator.set_state(loss.generator.get_state())
    S = z @ z.T
    mined = loss.miner(
        S, same.clone().fill_diagonal_(False), ~same, embedding_dim=x.shape[1], generator=generator
    )
    if isinstance(mined, mining.Masks):
        return mined.positive.nonzero().tolist(), mined.negative.nonzero().tolist()
    a, p, n = (index.tolist() for index in mined)
    return [*zip(a, p, strict=True)], [*zip(a, n, strict=True)]


@pytest.mark.parametrize("mining", ["distance_weighted", "all", "random", "semi_hard"])
@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.parametrize("nu", [0.0, 0.3])
def test_against_naive(mining, per_class, nu):
    loss = losses.Margin(mining=mining, per_class=per_class, nu=nu, num_classes=5).double()
    if per_class:
        loss.beta.data += torch.arange(5) * 0.05
    for seed in range(3):
        x = embeddings(seed).requires_grad_()
        pairs = mined_pairs(loss, x.detach())
        loss.zero_grad()
        value = loss(x, torch.tensor(LABELS))
        value.backward()
        exact, beta = x.detach().clone().requires_grad_(), loss.beta.detach().clone().requires_grad_()
        expected = naive.margin_of_pairs(exact, LABELS, *pairs, beta, nu=nu).sum()
        expected.backward()
        assert value.item() == pytest.approx(expected.item(), abs=1e-10)
        torch.testing.assert_close(x.grad, exact.grad, rtol=0, atol=1e-9)
        torch.testing.assert_close(loss.beta.grad, beta.grad, rtol=0, atol=1e-10)


@pytest.mark.parametrize("mining", ["distance_weighted", "all"])
@pytest.mark.parametrize("counts", [None, [2, 0, 1, 0.5, 3, 1, 1, 0.1]])
def test_values_of_samples_against_naive(mining, counts):
    loss = losses.Margin(mining=mining, per_class=True, nu=0.3, num_classes=5).double()
    loss.beta.data += torch.arange(5) * 0.05
    x = embeddings().requires_grad_()
    pairs = mined_pairs(loss, x.detach())
    weights = None if counts is None else torch.tensor(counts)
    values = loss(x, torch.tensor(LABELS), weights=weights, reduction="none")
    exact, beta = x.detach().clone().requires_grad_(), loss.beta.detach().clone().requires_grad_()
    expected = naive.margin_of_pairs(exact, LABELS, *pairs, beta, nu=0.3, counts=counts) * len(LABELS)
    torch.testing.assert_close(values, expected)
    upstream = torch.arange(8).double()
    (values @ upstream).backward()
    (expected @ upstream).backward()
    torch.testing.assert_close(x.grad, exact.grad)
    torch.testing.assert_close(loss.beta.grad, beta.grad)


def test_beta_is_a_parameter_or_a_constant():
    assert [group["name"] for group in losses.Margin().param_groups(5e-5)] == ["beta"]
    constant = losses.Margin(learn_beta=False)
    assert constant.param_groups(0.1) == []
    assert constant.beta.item() == pytest.approx(1.2)
    assert losses.build("margin", per_class=True, num_classes=4).beta.shape == (4,)


def test_per_class_needs_classes_and_labels_in_range():
    with pytest.raises(ValueError, match="per_class=True needs num_classes"):
        losses.Margin(per_class=True)
    loss = losses.Margin(per_class=True, num_classes=3).double()
    with pytest.raises(ValueError, match="label 3 is out of range for num_classes=3"):
        loss(embeddings(), torch.tensor(LABELS))
    with pytest.raises(ValueError, match="one label per sample"):
        loss(embeddings(), torch.eye(len(LABELS), dtype=torch.long))


def test_the_draws_follow_the_generator():
    x, y = embeddings(), torch.tensor(LABELS)
    first = losses.build("margin", generator=torch.Generator().manual_seed(1)).double()
    second = losses.build("margin", generator=torch.Generator().manual_seed(2)).double()
    draws = [[loss(x, y).item() for _ in range(6)] for loss in (first, second)]
    assert draws[0] != draws[1]
    assert len(set(draws[0])) > 1
