from __future__ import annotations

import pytest
import torch

from nearkin.losses import similarity
from nearkin.losses.similarity import (
    Measured,
    Side,
    distance,
    distance_and_inverse,
    inverse_distance,
    normalise,
    similarities,
    through_similarities,
)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def cubes(S: torch.Tensor, with_weights: bool) -> Measured:
    return Measured(S.pow(3).sum(), 3 * S.square() if with_weights else None)


@pytest.mark.parametrize("norms", [True, False], ids=["units", "raw"])
def test_weights_reach_both_sides(norms):
    def side(rows):
        return Side(rows, rows.detach().norm(dim=-1, keepdim=True) if norms else None)

    def of_both(left, right):
        return through_similarities(cubes, side(left), side(right))

    def of_itself(rows):
        return through_similarities(cubes, side(rows))

    left, right = random(5, 3).requires_grad_(), random(4, 3, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(of_both, (left, right))
    assert torch.autograd.gradcheck(of_itself, (left,))


def test_gradient_is_scaled_by_what_comes_from_above():
    x = random(4, 3).requires_grad_()
    (plain,) = torch.autograd.grad(through_similarities(cubes, Side(x)), x)
    (scaled,) = torch.autograd.grad(7 * through_similarities(cubes, Side(x)), x)
    torch.testing.assert_close(scaled, 7 * plain)


def test_small_and_large_weights_are_added_to_their_transpose_alike(monkeypatch):
    x = random(7, 3).requires_grad_()
    lopsided = random(7, 7, seed=1)

    def gradient():
        value = through_similarities(lambda S, _: Measured((S * lopsided).sum(), lopsided), Side(x))
        return torch.autograd.grad(value, x)[0]

    small = gradient()
    monkeypatch.setattr(similarity, "_TILE", 2)
    torch.testing.assert_close(gradient(), small)


@pytest.mark.parametrize("others", [None, Side(random(5, 3, seed=1))], ids=["itself", "others"])
def test_a_measure_that_overwrites_its_input_is_told(others):
    def careless(S, with_weights):
        return Measured(S.sum(), S.fill_(1.0))

    x = random(4, 3).requires_grad_()
    with pytest.raises(RuntimeError, match="must leave the similarities as they are"):
        through_similarities(careless, Side(x), others)


def test_a_graph_can_be_used_twice():
    x = random(4, 3).requires_grad_()
    value = through_similarities(cubes, Side(x, x.detach().norm(dim=1, keepdim=True)))
    (first,) = torch.autograd.grad(value, x, retain_graph=True)
    first = first.clone()
    (second,) = torch.autograd.grad(value, x)
    assert torch.equal(first, second)


def test_zero_rows_stay_zero_without_gradient():
    x = random(3, 4)
    x[1] = 0
    x.requires_grad_()
    units = normalise(x)
    (units * random(3, 4, seed=1)).sum().backward()
    assert not units[1].any()
    assert not x.grad[1].any()
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("scale", [1e-30, 1e-18, 1e15])
def test_lengths_far_from_one_do_no_harm(scale):
    left, right = (random(4, 3, seed=seed).float() for seed in (0, 1))
    plain, scaled = (left * factor for factor in (1, scale))
    gradients = []
    for rows in (plain, scaled):
        rows.requires_grad_()
        one, other = (Side(side, side.detach().norm(dim=1, keepdim=True)) for side in (rows, right))
        values = (through_similarities(cubes, one, other), through_similarities(cubes, one))
        gradients += [torch.autograd.grad(value, rows)[0] * rows.detach().norm() for value in values]
    for reference, gradient in zip(gradients[:2], gradients[2:], strict=True):
        if scale < 1e-19:  # too short to have a direction
            assert not gradient.any()
        else:
            torch.testing.assert_close(gradient, reference, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_distance_of_the_same_is_zero_and_has_no_slope(dtype):
    eps = torch.finfo(dtype).eps
    S = torch.tensor([1.0, 1 + eps, 1 - eps, 0.0, -1.0], dtype=dtype)
    D, inverse = distance_and_inverse(S)
    torch.testing.assert_close(D, torch.tensor([0, 0, 0, 2**0.5, 2], dtype=dtype))
    torch.testing.assert_close(inverse, torch.tensor([0, 0, 0, 0.5**0.5, 0.5], dtype=dtype))
    torch.testing.assert_close(inverse_distance(S), inverse)
    torch.testing.assert_close(distance(S), D)


@pytest.mark.parametrize("function", [distance, inverse_distance])
def test_distances_can_be_differentiated(function):
    S = torch.tensor([1.0, 1 + 1e-16, 0.9, 0.0, -0.5], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(function(S).sum(), S)
    assert gradient[:2].tolist() == [0, 0]
    D = (2 - 2 * S[2:].detach()).sqrt()
    torch.testing.assert_close(gradient[2:], -1 / D if function is distance else 1 / D**3)


@pytest.mark.parametrize("norms", [True, False], ids=["units", "raw"])
@pytest.mark.parametrize("others", [True, False], ids=["others", "itself"])
def test_both_ways_through_the_similarities_agree(norms, others):
    """One node with weights in closed form, and autograd's graph of the same function."""
    left, right = random(5, 3), random(4, 3, seed=1)
    left[2] = 0
    gradients = []
    for way in ("node", "graph"):
        rows = [side.clone().requires_grad_() for side in (left, right)]
        sides = [Side(side, side.detach().norm(dim=1, keepdim=True) if norms else None) for side in rows]
        sides = sides if others else sides[:1]
        value = through_similarities(cubes, *sides) if way == "node" else similarities(*sides).pow(3).sum()
        gradients.append([value, *torch.autograd.grad(value, rows[: len(sides)])])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)
