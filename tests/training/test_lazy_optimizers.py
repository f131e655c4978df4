"""Lazy optimisers: every row as if it had a dense optimiser of its own, called when it has a gradient."""

from __future__ import annotations

import pytest
import torch

from nearkin import losses
from nearkin.training import lazy_optimizers
from nearkin.training.optimizers import refuse_sampled_classes
from nearkin.training.resuming import load_optimizer_state, optimizer_state

ROWS, STEPS = 12, 25
KINDS = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    ("SGD", {"lr": 0.1, "momentum": 0.8, "dampening": 0.3, "maximize": True}),
    ("Adam", {"lr": 0.05}),
    ("Adam", {"lr": 0.05, "weight_decay": 0.1, "betas": (0.5, 0.9), "eps": 1e-4}),
    ("AdamW", {"lr": 0.05, "weight_decay": 0.1}),
    ("AdamW", {"lr": 0.05, "maximize": True}),
]


def sparse(rows: torch.Tensor, values: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    return torch.sparse_coo_tensor(rows.unsqueeze(0), values, shape, check_invariants=True)


def plan(dtype: torch.dtype, every_row: bool = False, seed: int = 0):
    """For each step, which rows have a gradient, and which."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(STEPS):
        count = ROWS if every_row else int(torch.randint(1, 6, (), generator=generator))
        rows = torch.randperm(ROWS, generator=generator)[:count]
        yield rows, torch.randn(count, 2, 3, generator=generator, dtype=dtype)


def start(dtype: torch.dtype = torch.float64) -> torch.nn.Parameter:
    values = torch.randn(ROWS, 2, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    return torch.nn.Parameter(values.to(dtype))


def stepped(optimizer: torch.optim.Optimizer, steps: int) -> None:
    """A schedule, as the engine has one."""
    for group in optimizer.param_groups:
        group["lr"] *= 0.97**steps


@pytest.mark.parametrize(("kind", "keywords"), KINDS, ids=str)
def test_each_row_has_an_optimiser_of_its_own(kind, keywords):
    weight = start()
    ours = getattr(lazy_optimizers, kind)([weight], **keywords)
    alone = [torch.nn.Parameter(row.clone()) for row in weight.detach()]
    theirs = [getattr(torch.optim, kind)([row], **keywords) for row in alone]
    for rows, values in plan(torch.float64):
        weight.grad = sparse(rows, values, weight.shape)
        ours.step()
        for row, value in zip(rows.tolist(), values, strict=True):
            alone[row].grad = value
            theirs[row].step()
        for optimizer in (ours, *theirs):
            stepped(optimizer, 1)
        torch.testing.assert_close(weight.detach(), torch.stack(list(alone)).detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("kind", "keywords"), KINDS, ids=str)
def test_with_every_row_in_every_step_it_is_the_dense_optimiser(kind, keywords):
    weight, dense = start(), start()
    ours = getattr(lazy_optimizers, kind)([weight], **keywords)
    theirs = getattr(torch.optim, kind)([dense], **keywords)
    for rows, values in plan(torch.float64, every_row=True):
        weight.grad = sparse(rows, values, weight.shape)
        dense.grad = weight.grad.to_dense()
        ours.step()
        theirs.step()
    torch.testing.assert_close(weight, dense, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW"])
def test_dense_gradients_go_the_usual_way(kind):
    keywords = {"lr": 0.1, "weight_decay": 0.1, **({"momentum": 0.9} if kind == "SGD" else {})}
    weight, dense = start(), start()
    ours = getattr(lazy_optimizers, kind)([weight], **keywords)
    theirs = getattr(torch.optim, kind)([dense], **keywords)
    for seed in range(5):
        weight.grad = torch.randn(
            weight.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
        )
        dense.grad = weight.grad.clone()
        ours.step()
        theirs.step()
    assert torch.equal(weight, dense)
    assert ours.state_dict()["state"][0].keys() == theirs.state_dict()["state"][0].keys()


@pytest.mark.parametrize(("kind", "keywords"), KINDS, ids=str)
def test_restored_in_the_middle_it_goes_on_bit_for_bit(kind, keywords):
    def make(weight, bias):
        return getattr(lazy_optimizers, kind)([{"params": [bias]}, {"params": [weight]}], **keywords)

    weight, bias = start(torch.float32), torch.nn.Parameter(torch.ones(4))
    optimizer, restored = make(weight, bias), None
    for step, (rows, values) in enumerate(plan(torch.float32)):
        if step == STEPS // 2:
            other_weight, other_bias = (torch.nn.Parameter(one.detach().clone()) for one in (weight, bias))
            restored = make(other_weight, other_bias)
            tensors, plain = optimizer_state(optimizer)
            load_optimizer_state(restored, {name: one.clone() for name, one in tensors.items()}, plain)
        weight.grad, bias.grad = sparse(rows, values, weight.shape), torch.full((4,), float(step))
        optimizer.step()
        if restored is not None:
            other_weight.grad, other_bias.grad = weight.grad.clone(), bias.grad.clone()
            restored.step()
    assert torch.equal(weight, other_weight)
    assert torch.equal(bias, other_bias)


def test_state_is_kept_for_rows_that_had_a_gradient():
    weight = torch.nn.Parameter(torch.zeros(1_000_000, 4))
    optimizer = lazy_optimizers.AdamW([weight], lr=0.1)
    for rows in ([5, 700_000], [5, 9, 999_999]):
        weight.grad = sparse(torch.tensor(rows), torch.ones(len(rows), 4), weight.shape)
        optimizer.step()
        assert weight.grad.is_sparse
    state = optimizer.state_dict()["state"][0]
    assert state["rows"].tolist() == [5, 700_000, 9, 999_999]
    assert state["steps"].tolist() == [2, 1, 1, 1]
    assert state["exp_avg"].shape == (4, 4)
    assert weight.detach().nonzero()[:, 0].unique().tolist() == [5, 9, 700_000, 999_999]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rows_in_half_precision_are_updated_in_float32(dtype):
    weight, exact = start(dtype), start(dtype).detach().float()
    exact = torch.nn.Parameter(exact)
    ours = lazy_optimizers.AdamW([weight], lr=0.05)
    theirs = lazy_optimizers.AdamW([exact], lr=0.05)
    for rows, values in plan(torch.float32):
        weight.grad = sparse(rows, values.to(dtype), weight.shape)
        exact.grad = sparse(rows, values.to(dtype).float(), weight.shape)
        ours.step()
        theirs.step()
    assert ours.state_dict()["state"][0]["exp_avg"].dtype == torch.float32
    torch.testing.assert_close(weight.float(), exact, rtol=0, atol=STEPS * 4 * torch.finfo(dtype).eps)


def test_a_closure_and_an_empty_gradient():
    weight = start()
    before = weight.detach().clone()
    optimizer = lazy_optimizers.SGD([weight], lr=0.1, momentum=0.9)

    def closure():
        weight.grad = sparse(torch.empty(0, dtype=torch.long), torch.empty(0, 2, 3).double(), weight.shape)
        return 3.0

    assert optimizer.step(closure) == 3.0
    assert torch.equal(weight, before)


def test_amsgrad_is_refused():
    weight = start()
    optimizer = lazy_optimizers.Adam([weight], lr=0.1, amsgrad=True)
    weight.grad = sparse(torch.tensor([1]), torch.ones(1, 2, 3).double(), weight.shape)
    with pytest.raises(ValueError, match="amsgrad=True"):
        optimizer.step()


def test_optimisers_that_want_dense_gradients_are_refused():
    loss = losses.build("arcface", num_classes=9, embedding_dim=2, sample=0.5)
    with pytest.raises(ValueError, match="not RMSprop: use optimizer.name=adamw, adam or sgd"):
        refuse_sampled_classes(torch.optim.RMSprop(loss.parameters()), loss)
    refuse_sampled_classes(torch.optim.SparseAdam(loss.parameters()), loss)
    refuse_sampled_classes(lazy_optimizers.AdamW(loss.parameters()), loss)
    dense = losses.build("arcface", num_classes=9, embedding_dim=2)
    refuse_sampled_classes(torch.optim.RMSprop(dense.parameters()), dense)


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW"])
def test_sampled_proxies_learn(kind):
    generator = torch.Generator().manual_seed(1)
    loss = losses.build("arcface", num_classes=200, embedding_dim=8, sample=0.1, scale=16.0)
    centres = torch.randn(200, 8, generator=generator)
    optimizer = getattr(lazy_optimizers, kind)(loss.parameters(), lr=0.5 if kind == "SGD" else 0.02)
    labels = torch.arange(200)
    before = loss.eval()(centres, labels).item()
    loss.train()
    for _ in range(60):
        some = torch.randint(200, (32,), generator=generator)
        optimizer.zero_grad()
        loss(centres[some], some).backward()
        optimizer.step()
    assert loss.eval()(centres, labels).item() < 0.8 * before
