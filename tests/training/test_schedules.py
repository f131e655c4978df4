from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from nearkin.training.schedules import Constant, Cosine, MultiStep, Schedule, Step


def test_the_shapes_of_the_schedules():
    cosine = Schedule(Cosine(), warmup=2)
    assert cosine(1, 10) == 0.5
    assert cosine(2, 10) == 1
    assert cosine(6, 10) == pytest.approx(0.5)
    assert cosine(10, 10) == pytest.approx(0)
    step = Schedule(Step(every=5, factor=0.1))
    assert [step(e, 100) for e in (0, 4.99, 5, 10)] == pytest.approx([1, 1, 0.1, 0.01])
    falls = Schedule(MultiStep((2, 4), factor=0.5))
    assert [falls(e, 6) for e in (1.9, 2, 3.9, 4)] == [1, 0.5, 0.5, 0.25]
    assert Schedule(Constant())(9, 10) == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Step(factor=0), "factor=0 must be above 0"),
        (lambda: Step(every=0), "every=0 must be at least 1"),
        (lambda: MultiStep(()), "must be rising epochs"),
        (lambda: MultiStep((4, 2)), r"milestones=\[4, 2\] must be rising"),
    ],
)
def test_values_that_cannot_be(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_scheduler_counts_steps():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = Schedule(Cosine(), warmup=1).scheduler(optimizer, epochs=4, steps=10)
    rates = []
    for _ in range(40):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates[0] == rates[1] == pytest.approx(0.1)
    assert rates[10] == pytest.approx(1)
    assert rates[25] == pytest.approx(0.5 * (1 + math.cos(math.pi * 0.5)))
    assert rates[11:] == sorted(rates[11:], reverse=True)


def test_a_training_of_one_step_moves():
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    Schedule(Cosine(), warmup=0.5).scheduler(optimizer, epochs=1, steps=1)
    assert optimizer.param_groups[0]["lr"] == 0.5
