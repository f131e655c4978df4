from __future__ import annotations

import pytest
import torch

from nearkin.losses.exponentials import (
    Outside,
    log_one_plus_sum_exp,
    log_one_plus_sum_exp_,
    log_sum_exp,
    log_sum_exp_,
)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("bound", [50.0, float("inf")], ids=["bounded", "shifted"])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("kind", ["mask", "columns", "none"])
def test_sums_of_exponentials(bound, dim, kind):
    T = 10 * random(6, 5)
    mask = random(6, 5, seed=2) > 0
    mask[2] = False
    mask[:, 1] = False
    columns = torch.tensor([[0], [1], [4], [4], [2], [0]])
    inside = {"mask": mask, "columns": torch.ones(6, 5, dtype=torch.bool).scatter(1, columns, False)}.get(
        kind
    )
    outside = {"mask": Outside(mask=mask), "columns": Outside(columns=columns)}.get(kind, Outside())
    exact = T.clone().requires_grad_()
    kept = exact if inside is None else exact.masked_fill(~inside, -torch.inf)
    with_one = torch.cat([kept, torch.zeros(1, 5) if dim == 0 else torch.zeros(6, 1)], dim=dim)
    for function, terms in ((log_sum_exp_, kept), (log_one_plus_sum_exp_, with_one)):
        expected = terms.logsumexp(dim)
        (gradient,) = torch.autograd.grad(expected[expected > -torch.inf].sum(), exact, retain_graph=True)
        weights = T.clone()
        log, share = function(weights, dim, bound, outside)
        torch.testing.assert_close(log, expected.detach())
        torch.testing.assert_close(weights * share, gradient.nan_to_num(0))


@pytest.mark.parametrize("offset", [-3.0, 2.0])
@pytest.mark.parametrize("bound", [50.0, float("inf")], ids=["bounded", "shifted"])
def test_an_offset_is_added_to_every_exponent(bound, offset):
    plain, shifted = random(6, 5) + offset, random(6, 5)
    expected, share = log_one_plus_sum_exp_(plain, 1, bound)
    log, its_share = log_one_plus_sum_exp_(shifted, 1, bound, offset=offset)
    torch.testing.assert_close(log, expected)
    torch.testing.assert_close(shifted * its_share, plain * share)


@pytest.mark.parametrize("function", [log_sum_exp_, log_one_plus_sum_exp_])
def test_huge_exponents_without_a_bound(function):
    T = torch.tensor([[1e4, 1e4, -1e4]])
    log, share = function(T, 1)
    torch.testing.assert_close(log, torch.tensor([1e4 + 0.6931]))
    torch.testing.assert_close(T * share, torch.tensor([[0.5, 0.5, 0.0]]))


@pytest.mark.parametrize("dim", [0, 1])
def test_sums_that_autograd_differentiates(dim):
    T = (10 * random(6, 5)).requires_grad_()
    among = random(6, 5, seed=2) > 0
    among[2], among[:, 1] = False, False
    one = torch.zeros(1, 5) if dim == 0 else torch.zeros(6, 1)
    kept = T.masked_fill(~among, -torch.inf)
    for function, terms in ((log_sum_exp, kept), (log_one_plus_sum_exp, torch.cat([kept, one], dim=dim))):
        expected, found = terms.logsumexp(dim), function(T, among, dim)
        some = expected > -torch.inf
        torch.testing.assert_close(found[some], expected[some])
        assert (found[~some] < -1e300).all()
        (wanted,) = torch.autograd.grad(expected[some].sum(), T, retain_graph=True)
        (gradient,) = torch.autograd.grad(found.sum(), T)
        torch.testing.assert_close(gradient, wanted.nan_to_num(0))
